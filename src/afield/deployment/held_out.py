"""What models made of domains that they were not trained on, kept beside the deployed model.

    held_out.safetensors   for each held-out domain the logits, labels and distances of its samples,
                           in random order; for an ensemble also how many of its members agree

Names of samples and inputs are not kept. From these numbers, `afield estimate` calibrates its
estimators and measures their errors, and `afield predict --coverage` its prediction sets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from afield.errors import DataError

# The largest number of samples of a domain that are kept.
MAX_SAMPLES = 2000
# The logit of a class that a held-out model did not know: its probability is 0.
UNKNOWN_LOGIT = -1e4


@dataclass(frozen=True)
class DomainOutputs:
    """The outputs of a model for the samples of one domain.

    Attributes
    ----------
    name
        The domain.
    logits
        Samples × classes.
    labels
        The true classes by their numbers; empty for a new domain without labels.
    scores
        Further numbers of every sample: ``distance``, and for an ensemble ``agreement``, the share
        of the pairs of members that predict the same class.
    """

    name: str
    logits: Tensor
    labels: Tensor
    scores: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def hits(self) -> Tensor:
        """Whether each prediction is right, as 0 or 1."""
        return (self.logits.argmax(dim=1) == self.labels).double()

    @property
    def accuracy(self) -> float:
        """The share of predictions that are right."""
        return float(self.hits.mean())

    def probabilities(self, temperature: float = 1.0) -> Tensor:
        """The probabilities of the classes."""
        return (self.logits.double() / temperature).softmax(dim=1)

    def confidences(self, temperature: float = 1.0) -> Tensor:
        """The probability of the predicted class."""
        return self.probabilities(temperature).amax(dim=1)

    def take(self, rows: Tensor) -> "DomainOutputs":
        """The outputs for some of the samples."""
        scores = {name: values[rows] for name, values in self.scores.items()}
        labels = self.labels[rows] if len(self.labels) else self.labels
        return replace(self, logits=self.logits[rows], labels=labels, scores=scores)

    def shuffled(self, seed: int) -> "DomainOutputs":
        """At most `MAX_SAMPLES` of the samples, in random order."""
        generator = torch.Generator().manual_seed(seed)
        return self.take(torch.randperm(len(self), generator=generator)[:MAX_SAMPLES])

    def with_classes(self, known: Sequence[str], classes: Sequence[str]) -> "DomainOutputs":
        """The outputs of a model that knows only some of the classes, for all of them."""
        if tuple(known) == tuple(classes):
            return self
        places = torch.tensor([list(classes).index(name) for name in known])
        logits = self.logits.new_full((len(self), len(classes)), UNKNOWN_LOGIT)
        logits[:, places] = self.logits
        return replace(self, logits=logits, labels=places[self.labels])


def to_tensors(domains: Sequence[DomainOutputs]) -> dict[str, Tensor]:
    """The tensors to store in a file, by the number of the domain and by their name."""
    return {
        f"{number}.{name}": values.contiguous()
        for number, domain in enumerate(domains)
        for name, values in {
            "logits": domain.logits.float(),
            "labels": domain.labels.int(),
            **{name: scores.float() for name, scores in domain.scores.items()},
        }.items()
    }


def from_tensors(
    tensors: Mapping[str, Tensor], names: Sequence[str], classes: int, where: str
) -> list[DomainOutputs]:
    """Restore what `to_tensors` returned, after checking its shapes."""
    domains = []
    for number, name in enumerate(names):
        prefix = f"{number}."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        logits, labels = own.pop("logits", torch.empty(0)), own.pop("labels", torch.empty(0))
        count = len(logits)
        sizes = [tuple(values.shape) for values in (labels, *own.values())]
        valid = count and logits.shape == (count, classes) and set(sizes) == {(count,)}
        if not valid or labels.dtype != torch.int32 or not 0 <= labels.min() <= labels.max():
            raise DataError(f"{where}: not the outputs for {name}; get the folder again")
        if labels.max() >= classes:
            raise DataError(f"{where}: a label of {name} is not a class; get the folder again")
        domains.append(DomainOutputs(name, logits, labels.long(), own))
    return domains
