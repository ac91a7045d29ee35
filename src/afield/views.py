"""How a network sees samples: their features, the path that they take, and what it says of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.backbone import Classifier
from afield.errors import SpecError
from afield.evaluation import outputs
from afield.loading import Samples
from afield.stages import channel_means, found_stages, watched

__all__ = ["Views", "viewed"]


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
    def joined(cls, several: Sequence["Views"]) -> "Views":
        """All samples of several views, one after the other."""
        columns = zip(*((v.features, v.path, v.logits, v.y) for v in several), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    @property
    def answers(self) -> Tensor:
        """The classes that the network names."""
        return self.logits.argmax(dim=1)

    @property
    def losses(self) -> Tensor:
        """The cross-entropy of every sample."""
        return F.cross_entropy(self.logits, self.y, reduction="none")


def viewed(model: nn.Module, samples: Samples, chosen: Tensor) -> Views:
    """The chosen samples, not augmented, as the network sees them in evaluation mode.

    A network in a wrapper is looked at within it; where a sample passes it in several forms, as
    with the masks of several domains, it is their mean that counts.
    """
    inner = next((each for each in model.modules() if isinstance(each, Classifier)), None)
    if inner is None:
        raise SpecError(f"{type(model).__name__} has no features and no head; use another network")
    stages = found_stages(inner, samples.prepare(next(samples.x.chunks(1, chosen[:1]))))
    features: list[Tensor] = []
    path: dict[str, list[Tensor]] = {name: [] for name in stages}
    sizes: list[int] = []

    def mean(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, sizes[-1])).mean(dim=0)

    def note(name: str, output: Tensor) -> None:
        path[name].append(mean(channel_means(output, stages[name])).argmax(dim=1).cpu())

    hooks = [
        model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0]))),
        inner.head.register_forward_pre_hook(lambda _, a: features.append(mean(a[0]).cpu())),
    ]
    try:
        with watched(inner, note, *stages):
            logits = outputs(model, samples.x, samples.prepare, chosen=chosen)
    finally:
        for hook in hooks:
            hook.remove()
    return Views(
        features=torch.cat(features).float(),
        path=torch.stack([torch.cat(parts) for parts in path.values()], dim=1),
        logits=logits.cpu(),
        y=samples.y.cpu()[chosen.cpu()],
    )
