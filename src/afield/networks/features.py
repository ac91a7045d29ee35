"""Features, activation paths and predictions of samples."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.samples import Samples
from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.networks.ensemble import ensemble_members
from afield.networks.inference import compute_outputs
from afield.networks.stages import channel_means, find_stages, hook_outputs


@dataclass(frozen=True)
class Views:
    """Features, path, logits and true class, with one row per sample, on the CPU.

    A path has the channel with the highest mean activation for every stage of the network. The last
    stage is the head, so a path ends with the predicted class.
    """

    features: Tensor
    path: Tensor
    logits: Tensor
    y: Tensor

    @classmethod
    def concatenate(cls, views: Sequence["Views"]) -> "Views":
        """Join the samples of several views."""
        columns = zip(*((v.features, v.path, v.logits, v.y) for v in views), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    @property
    def predictions(self) -> Tensor:
        """Predicted classes."""
        return self.logits.argmax(dim=1)

    @property
    def losses(self) -> Tensor:
        """Cross-entropy of every sample."""
        return F.cross_entropy(self.logits, self.y, reduction="none")


# Features of more numbers, such as all n-grams of a text, are added up in this many sums.
MAX_WIDTH, SUMS = 2048, 512


def added_up(features: Tensor) -> Tensor:
    """Features of which there are too many for distances, as sums with signs; others as they are.

    Each feature is added to or subtracted from one of the sums, which a hash of its number decides:
    a random projection, which keeps distances up to a few percent.
    """
    width = features.shape[1]
    if width <= MAX_WIDTH:
        return features
    # The multiplicative hash of Knuth; its upper bits are the random ones.
    hashes = torch.arange(width, device=features.device) * 2654435761 % 2**32
    sums = hashes >> 23
    signs = 1.0 - 2.0 * ((hashes >> 22) & 1)
    return features.new_zeros(len(features), SUMS).index_add_(1, sums, features * signs)


class CapturedFeatures:
    """Features of the samples that passed, one tensor per batch, and the size of the last batch.

    The features of an ensemble are those of its members, side by side. Very many features are
    added up (`added_up`).
    """

    def __init__(self, members: int = 1) -> None:
        self.by_member: list[list[Tensor]] = [[] for _ in range(members)]
        self.size = 0

    @property
    def features(self) -> list[Tensor]:
        """The features of every batch."""
        return [torch.cat(batch, dim=1) for batch in zip(*self.by_member, strict=True)]

    def mean(self, rows: Tensor) -> Tensor:
        """One row per sample: the mean, if a sample passes several times in one batch."""
        return rows.unflatten(0, (-1, self.size)).mean(dim=0)


@contextmanager
def capture_features(model: nn.Module) -> Iterator[CapturedFeatures]:
    """Collect the inputs of the head whenever samples pass the network."""
    members = ensemble_members(model)
    captured = CapturedFeatures(len(members))

    def begin(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        captured.size = len(inputs[0])

    def collect(into: list[Tensor], _: nn.Module, inputs: tuple[Any, ...]) -> None:
        into.append(added_up(captured.mean(inputs[0])).cpu())

    hooks = [model.register_forward_pre_hook(begin)]
    for member, into in zip(members, captured.by_member, strict=True):
        head = inner_classifier(member).head
        hooks.append(head.register_forward_pre_hook(partial(collect, into)))
    try:
        yield captured
    finally:
        for hook in hooks:
            hook.remove()


def inner_classifier(model: nn.Module) -> Classifier:
    """The classifier itself, or the classifier within a wrapper."""
    inner = next((m for m in model.modules() if isinstance(m, Classifier)), None)
    if inner is None:
        raise SpecError(f"{type(model).__name__} has no features and no head; use another network")
    return inner


def view_samples(model: nn.Module, samples: Samples, indices: Tensor) -> Views:
    """Compute the views of the selected samples, in evaluation mode and without augmentation.

    If the network is in a wrapper and a sample passes it several times, such as with the masks of
    several domains, the view has the means.
    """
    inner = inner_classifier(model)
    stages = find_stages(inner, samples.prepare(next(samples.x.chunks(1, indices[:1]))))
    path: dict[str, list[Tensor]] = {name: [] for name in stages}
    with capture_features(model) as captured:

        def add_to_path(name: str, output: Tensor) -> None:
            means = captured.mean(channel_means(output, stages[name]))
            path[name].append(means.argmax(dim=1).cpu())

        with hook_outputs(inner, add_to_path, *stages):
            logits = compute_outputs(model, samples.x, samples.prepare, indices=indices)
    return Views(
        features=torch.cat(captured.features).float(),
        path=torch.stack([torch.cat(batches) for batches in path.values()], dim=1),
        logits=logits.cpu(),
        y=samples.y.cpu()[indices.cpu()],
    )
