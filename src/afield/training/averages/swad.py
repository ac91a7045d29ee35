"""SWAD: the mean of all weights in the flat valley of the validation loss (Cha et al., 2021).

    segment t: the mean of the weights after every step from one checkpoint to the next
    loss t:    the mean over the source domains of the trained model's loss on their validation
               splits
    start:     the loss has not fallen for `converge` checkpoints;  bound = their mean · (1 + slack)
    end:       for `patience` checkpoints all losses were above the bound; training stops

The default reproduces the authors' code exactly: all segments have the same weight, the segment at
the start is mostly counted twice, and segments shortly before it are included if their loss is
below the bound. `form=paper` follows the text of the paper: the mean of all weights from the start
to the end, each counted once.

A segment is the interval between two checkpoints of the run (`every`). On the authors' datasets,
the dataset has their values: every 100 of 5,000 steps; VLCS every 50, with a slack of 0.2;
DomainNet every 500.

Differs from the authors' code: on other datasets `every` is the dataset's own, and the first
segment has as many steps as the others, while theirs has one.
Differs from the paper: with `form=paper` too, the last segment is deployed if no start was found.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Variant
from afield.tensors import assign, clone_tensors, mix
from afield.training.average import Average
from afield.training.scores import Checkpoint

__all__ = ["SWAD"]


@dataclass
class SWAD(Average):
    """Dense weight averaging in the loss valley.

    The paper calls `converge` the optimum patience, `patience` the overfit patience, and `slack`
    the tolerance rate.
    """

    converge: Annotated[int, Variant((2, 3, 5))] = 3
    patience: Annotated[int, Variant((3, 6, 9))] = 6
    slack: Annotated[float, Variant((0.05, 0.2, 0.3))] = 0.3
    form: Annotated[Literal["code", "paper"], Variant(("code", "paper"))] = "code"

    deploys_at_end: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, least in (("converge", 1), ("patience", 1), ("slack", 0)):
            if getattr(self, name) < least:
                raise SpecError(f"swad.{name}={getattr(self, name):g}: must not be below {least}")

    @property
    def done(self) -> bool:
        """Whether the valley has ended."""
        return self.over

    def setup(self, model: nn.Module, *, steps: int) -> None:
        """Start without any segment."""
        del steps
        self.model = copy.deepcopy(model)
        self.segment = clone_tensors(list(model.parameters()))
        self.steps = 0
        # The most recent segments with their numbers of steps, and the losses of all segments.
        self.recent: list[tuple[list[Tensor], int]] = []
        self.losses: list[float] = []
        # The step of every checkpoint, and the segments that are in the mean.
        self.ends: list[int] = []
        self.added: list[int] = []
        self.begin: int | None = None
        self.bound = 0.0
        self.over = False
        # The mean so far, and its weight.
        self.total = clone_tensors(self.segment), 0

    def after_step(self, model: nn.Module) -> None:
        """Include the weights in the current segment."""
        self.steps += 1
        mix(self.segment, list(model.parameters()), share=1 / self.steps)
        assign(list(self.model.buffers()), list(model.buffers()))

    def after_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Close the segment, and decide which segments are in the valley."""
        if self.over:
            return
        self.ends.append(checkpoint.step)
        scores = [domain.probe for domain in checkpoint.scores.values()]
        self.losses.append(fmean(score.loss for score in scores if score is not None))
        self.recent.append((self.segment, self.steps))
        self.recent = self.recent[-max(self.converge, self.patience + 1) :]
        self.segment, self.steps = clone_tensors(self.segment), 0
        for i in self._new_segments(opened=self.begin is None and self._open_valley()):
            self.total = self._extend(self.total, i)
            self.added.append(i)
        assign(list(self.model.parameters()), self._mean_if_ended())

    def logs(self) -> dict[str, float]:
        """First and last step of the mean; `valley` is 0 if no start was found."""
        used = [*self.added, *self._tail()] if self.begin is not None else []
        used = used or [len(self.losses) - 1 if self.begin is None else self.begin]
        ends = [0, *self.ends]
        return {
            "valley": float(self.begin is not None),
            "averaged_from": float(ends[min(used)] + 1),
            "averaged_to": float(ends[max(used) + 1]),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the hyperparameters."""
        attributes = {name: getattr(self, name) for name in STATE}
        return {"model": self.model.state_dict(), **attributes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.model.load_state_dict(state["model"])
        device = self.segment[0].device
        for name in STATE:
            setattr(self, name, copy.deepcopy(state[name]))
        self.segment = _to_device(self.segment, device)
        self.recent = [(_to_device(segment, device), steps) for segment, steps in self.recent]
        self.total = _to_device(self.total[0], device), self.total[1]

    def _open_valley(self) -> bool:
        """Start the valley if the first loss of the window is the least; return whether it is."""
        window = self.losses[-self.converge :]
        if len(window) < self.converge or window.index(min(window)) > 0:
            return False
        self.begin = len(self.losses) - self.converge
        self.bound = fmean(window) * (1 + self.slack)
        # Takes the place of the mean while no segment is in it.
        self.total = self._segment(self.begin)[0], 0
        return True

    def _new_segments(self, *, opened: bool) -> Iterable[int]:
        """Segments that this checkpoint shows to be in the valley; also sets `over`."""
        oldest = len(self.losses) - self.patience
        if self.begin is None:
            return ()
        if self.form == "paper":
            full = not opened and oldest >= self.begin
            self.over = full and min(self.losses[oldest:]) > self.bound
            # All segments before the window, each once.
            return range(self.begin if opened else max(self.begin, oldest - 1), oldest)
        if opened:
            return self._segments_at_opening(self.begin)
        oldest = max(0, oldest)
        if oldest < self.begin:
            return ()
        self.over = min(self.losses[oldest:]) > self.bound
        return () if self.over else (oldest,)

    def _segments_at_opening(self, begin: int) -> Iterable[int]:
        """Segments that the authors' code adds when the valley opens."""
        if self.patience < self.converge:
            return range(begin + 1, begin + 1 + self.converge - self.patience)
        oldest = max(0, len(self.losses) - self.patience)
        end = min(len(self.losses), oldest + self.patience - self.converge + 1)
        above = [i for i in range(oldest, end) if self.losses[i] > self.bound]
        return range(above[-1] + 2 if above else oldest + 1, end)

    def _mean_if_ended(self) -> list[Tensor]:
        """The mean if training ended now, with the window's segments that are in the valley."""
        if self.begin is None:
            return self.recent[-1][0]
        total = self.total
        for i in self._tail():
            total = self._extend(total, i)
        return total[0]

    def _tail(self) -> Iterable[int]:
        """Segments that would be added if training ended now."""
        now = len(self.losses)
        oldest = max(0, now - self.patience)
        if self.over or self.begin is None:
            return ()
        if self.form == "paper":
            return range(max(self.begin, oldest), now)
        return takewhile(lambda i: min(self.losses[i:]) <= self.bound, range(oldest + 1, now))

    def _extend(self, total: tuple[list[Tensor], int], i: int) -> tuple[list[Tensor], int]:
        """The mean including one more segment; in the paper's form all steps weigh the same."""
        (segment, steps), (mean, weight) = self._segment(i), total
        added = steps if self.form == "paper" else 1
        extended = clone_tensors(mean)
        mix(extended, segment, share=added / (weight + added))
        return extended, weight + added

    def _segment(self, i: int) -> tuple[list[Tensor], int]:
        return self.recent[i - len(self.losses)]


def _to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    return [tensor.to(device) for tensor in tensors]


# Attributes that a snapshot keeps, beside the model.
STATE = (
    *("segment", "steps", "recent", "losses", "ends", "added"),
    *("begin", "bound", "over", "total"),
)
