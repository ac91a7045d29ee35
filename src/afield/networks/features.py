"""How a network sees samples: their features, the path that they take, and what it says of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.samples import Samples
from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.networks.inference import compute_outputs
from afield.networks.stages import channel_means, find_stages, hook_outputs

__all__ = ["CapturedFeatures", "Views", "capture_features", "inner_classifier", "view_samples"]


@dataclass(frozen=True)
class Views:
    """One row a sample, on the CPU: features, path, logits, and the true class.

    A path has for every stage of the network the channel with the highest mean activation; the
    last stage is the head, so it ends in what the network answers.
    """

    features: Tensor
    path: Tensor
    logits: Tensor
    y: Tensor

    @classmethod
    def concatenate(cls, several: Sequence["Views"]) -> "Views":
        """All samples of several views, one after the other."""
        columns = zip(*((v.features, v.path, v.logits, v.y) for v in several), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    @property
    def predictions(self) -> Tensor:
        """The classes that the network names."""
        return self.logits.argmax(dim=1)

    @property
    def losses(self) -> Tensor:
        """The cross-entropy of every sample."""
        return F.cross_entropy(self.logits, self.y, reduction="none")


class CapturedFeatures:
    """The features that have passed, a tensor for each batch, and how large the last one was."""

    def __init__(self) -> None:
        self.features: list[Tensor] = []
        self.size = 0

    def mean(self, rows: Tensor) -> Tensor:
        """One row a sample, where a sample passes in several forms their mean."""
        return rows.unflatten(0, (-1, self.size)).mean(dim=0)


@contextmanager
def capture_features(model: nn.Module) -> Iterator[CapturedFeatures]:
    """Note what the head takes, whenever samples pass the network."""
    noted = CapturedFeatures()

    def begin(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        noted.size = len(inputs[0])

    def note(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        noted.features.append(noted.mean(inputs[0]).cpu())

    hooks = [
        model.register_forward_pre_hook(begin),
        inner_classifier(model).head.register_forward_pre_hook(note),
    ]
    try:
        yield noted
    finally:
        for hook in hooks:
            hook.remove()


def inner_classifier(model: nn.Module) -> Classifier:
    """The network with features and a head, also where it is in a wrapper."""
    inner = next((each for each in model.modules() if isinstance(each, Classifier)), None)
    if inner is None:
        raise SpecError(f"{type(model).__name__} has no features and no head; use another network")
    return inner


def view_samples(model: nn.Module, samples: Samples, indices: Tensor) -> Views:
    """The chosen samples, not augmented, as the network sees them in evaluation mode.

    A network in a wrapper is looked at within it; where a sample passes it in several forms, as
    with the masks of several domains, it is their mean that counts.
    """
    inner = inner_classifier(model)
    stages = find_stages(inner, samples.prepare(next(samples.x.chunks(1, indices[:1]))))
    path: dict[str, list[Tensor]] = {name: [] for name in stages}
    with capture_features(model) as noted:

        def note(name: str, output: Tensor) -> None:
            means = noted.mean(channel_means(output, stages[name]))
            path[name].append(means.argmax(dim=1).cpu())

        with hook_outputs(inner, note, *stages):
            logits = compute_outputs(model, samples.x, samples.prepare, indices=indices)
    return Views(
        features=torch.cat(noted.features).float(),
        path=torch.stack([torch.cat(parts) for parts in path.values()], dim=1),
        logits=logits.cpu(),
        y=samples.y.cpu()[indices.cpu()],
    )
