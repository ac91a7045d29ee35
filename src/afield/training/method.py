"""What a method is: frozen hyperparameters, and one training step that uses them.

A method has no state. Everything that changes during training is in the `Learner`: the model,
additional networks (`parts`), the optimizer, additional optimizers and a `memory` of tensors. All
of it is saved in snapshots.

Methods draw random numbers from torch's generators only. They log detached tensors, never floats,
because reading a number off the device within a step would make the device wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.samples import Batch as Batch
from afield.data.samples import PooledBatches, Samples
from afield.errors import SpecError
from afield.training.learner import Learner, Task

if TYPE_CHECKING:
    from afield.data.modality import Modality

Batches = Sequence[Batch]
Logs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Method:
    """A training algorithm. Most methods override only `loss`.

    A method whose formula is not defined for one source domain in a step, or for one sample of a
    domain, sets `min_domains` or `min_batch`.

    `predicts_from_batches` is true if the trained network is a `BatchPredictor`, whose predictions
    depend on other unlabelled samples of the same domain. `may_refuse_network` is true if `setup`
    raises `SpecError` for some kinds of networks, which is then checked before anything is trained.
    `mixes_inputs` is true if inputs are mixed, which token ids of texts do not allow.
    `is_classical` is true if the method is fitted once, without steps (`ClassicalMethod`).
    `array_backbone` is the network on arrays, if none is given and the dataset's own would do no
    good; empty means the dataset's own.
    """

    min_domains: ClassVar[int] = 1
    min_batch: ClassVar[int] = 1
    array_backbone: ClassVar[str] = ""
    predicts_from_batches: ClassVar[bool] = False
    may_refuse_network: ClassVar[bool] = False
    mixes_inputs: ClassVar[bool] = False
    is_classical: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the method, which is that of its file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def batches_per_group(self) -> int:
        """How many batches per group one step consumes; 1 for most methods."""
        return 1

    @property
    def differentiates_gradients(self) -> bool:
        """Whether a step differentiates gradients of the network; compiled ones do not allow it."""
        return False

    def check(self, domains: int) -> None:
        """Raise `SpecError` if a step cannot use this number of source domains."""
        self._require(domains, self.min_domains, "source domain(s) per step")

    def check_batch(self, samples: int) -> None:
        """Raise `SpecError` if a step cannot use this number of samples of a domain."""
        self._require(samples, self.min_batch, "sample(s) of a domain per step (batch)")

    def check_modality(self, modality: "Modality") -> None:
        """Raise `SpecError` if samples of this kind cannot be used."""
        if self.mixes_inputs and modality.has_tokens:
            raise SpecError(
                f"{self.name} mixes inputs, which token ids of texts do not allow; use it on the "
                "features that `afield embed` writes"
            )

    def check_compilation(self, modality: "Modality", *, compiled: bool) -> None:
        """Raise `SpecError` if the network is to be compiled, but cannot be."""
        if compiled and self.differentiates_gradients:
            raise SpecError(
                f"compile=true: {self.name} differentiates gradients of the network, which torch "
                "cannot compile; leave it out"
            )
        if compiled and modality.has_tokens:
            raise SpecError(
                "compile=true: not for texts, because every length would be compiled by itself"
            )

    def _require(self, count: int, least: int, what: str) -> None:
        if count < least:
            raise SpecError(f"{self.name} needs {least} or more {what}, not {count}")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Return the state to train; override to add networks, masks or buffers."""
        return Learner(model, task)

    def regroup(
        self, learner: Learner, samples: Samples
    ) -> Sequence[Sequence[int] | Tensor] | None:
        """Override to draw batches from groups other than the source domains.

        Called before every step. Returns the indices of each group's samples, or None to keep the
        present groups.
        """
        del learner, samples
        return None

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Return the loss to minimize and what to log; `batches` has one batch per group."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither loss nor update")

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Do one training step; override if it is more than one descent on `loss`."""
        loss, logs = self.loss(learner, batches)
        learner.descend(loss)
        return {"loss": loss.detach(), **logs}


def pool(batches: Batches) -> Batch:
    """Concatenate all batches to one.

    Batches that are pieces of one are not copied: the inputs share their memory.
    """
    if isinstance(batches, PooledBatches) and batches.pooled.x.is_contiguous():
        return batches.pooled._replace(x=batches.pooled.x.detach())
    return Batch(*(torch.cat(column) for column in zip(*batches, strict=True)))


def origins(batches: Batches) -> Tensor:
    """Index of each batch's group; a step may draw from only some of many groups."""
    return torch.stack([batch.group[0] for batch in batches])


def risks(model: nn.Module, batches: Batches) -> Tensor:
    """Mean loss of each batch, computed in one forward pass over all batches."""
    pooled = pool(batches)
    losses = F.cross_entropy(model(pooled.x), pooled.y, reduction="none")
    return domain_means(losses, batches)


def domain_means(values: Tensor, batches: Batches) -> Tensor:
    """Mean of each batch over its samples, from the values of all samples."""
    sizes = [len(batch.y) for batch in batches]
    if len(set(sizes)) == 1:
        return values.unflatten(0, (len(sizes), -1)).mean(dim=1)
    return torch.stack([batch_values.mean(dim=0) for batch_values in values.split(sizes)])
