"""Ensembles: one network whose probabilities are the mean of those of several networks.

    logits(x) = log mean over members m of softmax(logits_m(x))

The outputs are logarithms of probabilities, so a loss, a temperature and a softmax apply to them as
to the logits of one network. The features of an ensemble are those of its members side by side
(`afield.networks.features`).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from afield.networks.inference import BatchPredictor


def mean_log_probabilities(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities that several networks give.

    >>> sure, unsure = torch.tensor([[9.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    >>> [round(p, 4) for p in mean_log_probabilities([sure, unsure]).exp().flatten().tolist()]
    [0.7499, 0.2501]
    """
    members = torch.stack([each.float().log_softmax(dim=1) for each in logits])
    return members.logsumexp(dim=0) - math.log(len(members))


class EnsembleNetwork(nn.Module):
    """Outputs the logarithm of the mean of its members' probabilities."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domain labels that the members can use."""
        return tuple(getattr(self.members[0], "domains", ()))

    def forward(self, x: Tensor, *label: int) -> Tensor:
        """Samples × classes."""
        return mean_log_probabilities([member(x, *label) for member in self.members])


class BatchEnsemble(EnsembleNetwork, BatchPredictor):
    """The same for members that predict from batches of unlabelled samples."""

    def __init__(self, members: Sequence[BatchPredictor]) -> None:
        super().__init__(members)
        self.batch_size = members[0].batch_size

    def reset(self) -> None:
        """Forget all samples seen so far."""
        for member in self.members:
            member.reset()  # type: ignore[operator]


def make_ensemble(members: Sequence[nn.Module]) -> EnsembleNetwork:
    """The ensemble of several networks of one kind."""
    by_batch = [member for member in members if isinstance(member, BatchPredictor)]
    return BatchEnsemble(by_batch) if by_batch else EnsembleNetwork(members)


class CapturedVotes:
    """The classes that each member of an ensemble has predicted for the samples that passed."""

    def __init__(self, members: int) -> None:
        self.by_member: list[list[Tensor]] = [[] for _ in range(members)]

    def agreement(self) -> Tensor | None:
        """The share of the pairs of members that agree on each sample; None without pairs."""
        votes = [torch.cat(batches) for batches in self.by_member if batches]
        pairs = [(one == other).float() for one, other in combinations(votes, 2)]
        return torch.stack(pairs).mean(dim=0) if pairs else None


@contextmanager
def capture_votes(model: nn.Module) -> Iterator[CapturedVotes]:
    """Collect what the members of an ensemble predict whenever samples pass the network."""
    members = ensemble_members(model)
    captured = CapturedVotes(len(members))

    def collect(into: list[Tensor], _: nn.Module, _inputs: Any, logits: Tensor) -> None:
        into.append(logits.argmax(dim=1).cpu())

    hooks = [
        member.register_forward_hook(partial(collect, into))
        for member, into in zip(members, captured.by_member, strict=True)
    ]
    try:
        yield captured
    finally:
        for hook in hooks:
            hook.remove()


def ensemble_members(model: nn.Module) -> list[nn.Module]:
    """The members of an ensemble, perhaps within a wrapper; another network is its own member."""
    found = (module for module in model.modules() if isinstance(module, EnsembleNetwork))
    ensemble = next(found, None)
    return [model] if ensemble is None else list(ensemble.members)
