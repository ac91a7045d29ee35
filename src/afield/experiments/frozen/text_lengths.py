"""How long the texts of a run are: of token ids, or of the texts whose features it trains on."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from afield.data.domains import Domain, DomainSet
from afield.data.samples import Samples

__all__ = ["TextLengths"]


@dataclass(frozen=True)
class TextLengths:
    """The lengths of texts in tokens, as a `Record` has them; all 0 if the samples are no texts."""

    truncated: int = 0
    median_tokens: int = 0
    embedded_tokens: int = 0

    @classmethod
    def of(
        cls,
        dataset: DomainSet,
        domains: Mapping[str, Domain],
        rows: Mapping[str, Tensor],
        samples: Samples,
    ) -> "TextLengths":
        """Those of a dataset; the median is that of the `rows` to train on, which are `samples`."""
        if samples.x.is_tokens:
            truncated = sum(domain.truncated for domain in domains.values())
            return cls(truncated, int(samples.x.lengths.median()))
        lengths = [_embedded(domains[name], of_domain) for name, of_domain in rows.items()]
        if not all(map(len, lengths)):
            return cls()
        # A file of features is a user's: what it says need not be a number.
        cut, tokens = (dataset.provenance.get(key) for key in ("truncated", "tokens"))
        return cls(
            cut if isinstance(cut, int) else 0,
            int(torch.cat(lengths).median()),
            tokens if isinstance(tokens, int) else 0,
        )


def _embedded(domain: Domain, rows: Tensor) -> Tensor:
    return torch.empty(0) if domain.text_lengths is None else domain.text_lengths[rows]
