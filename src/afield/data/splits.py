"""The splits of a domain.

Each domain is split once per trial into `main` (80 %) and `probe` (20 %). A source domain trains on
`main` and validates on `probe`. An unseen domain is tested on `main`; only test-domain validation
(the rule `target`) looks at its `probe`.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from afield.errors import SpecError
from afield.seeds import derive_seed

__all__ = ["PROBE_FRACTION", "Parts", "listed_parts", "parts"]

PROBE_FRACTION = 0.2


class Parts(NamedTuple):
    """Indices of the two splits of a domain."""

    main: Tensor
    probe: Tensor


def parts(size: int, *, trial: int, domain: str, fraction: float = PROBE_FRACTION) -> Parts:
    """Split a domain; the split depends only on its size, the trial and the domain's name.

    >>> [len(part) for part in parts(10, trial=0, domain="sketch")]
    [8, 2]
    """
    if size < 2:
        raise SpecError(
            f"domain {domain!r} has {size} sample(s); training and validation need at least two"
        )
    order = np.random.default_rng(derive_seed("parts", trial, domain)).permutation(size)
    probe = max(1, int(size * fraction))
    return Parts(main=torch.from_numpy(order[probe:]), probe=torch.from_numpy(order[:probe]))


def listed_parts(test: Tensor, validation: Tensor | None = None, *, seen: bool) -> Parts:
    """Split a domain by its official lists.

    A source domain trains on its train list and validates on its validation list, or on its test
    list if there are only two lists. An unseen domain is tested on its test list, as the authors of
    the lists intended.
    """
    if seen and validation is not None:
        train = ~(test | validation)
        return Parts(train.nonzero().flatten(), validation.nonzero().flatten())
    others, tested = (~test).nonzero().flatten(), test.nonzero().flatten()
    return Parts(others, tested) if seen else Parts(tested, others)
