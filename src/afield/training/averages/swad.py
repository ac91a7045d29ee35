"""SWAD: the mean of all weights in the flat valley of the validation loss (Cha et al., 2021).

    segment t: the mean of the weights after every step from one checkpoint to the next
    loss t:    the mean over the source domains of the loss on their probe parts, as trained so far
    start:     the loss has not fallen for `converge` checkpoints;  bound = their mean · (1 + slack)
    end:       for `patience` checkpoints all losses were above the bound; training stops

The default is the authors' code to the letter: segments weigh alike, the one at the start is mostly
counted twice, and those shortly before it that lie below the bound are in it too. `form=paper` is
what the paper says: the mean of all weights from the start to the end, each once.

Differs from the authors' code: segments go from checkpoint to checkpoint of the run (`every`; with
them 100 steps of 5,000), and the first has as many steps as the others, theirs has one.
Differs from the paper: in `form=paper` too, a training in which no start was found deploys its last
segment.
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
from afield.training.average import Average, Checkpoint

__all__ = ["SWAD"]


@dataclass
class SWAD(Average):
    """Dense weight averaging in the loss valley; `converge`, `patience`, `slack` as in the paper.

    The paper calls them the optimum patience, the overfit patience and the tolerance rate.
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
        """The valley has ended."""
        return self.over

    def setup(self, model: nn.Module, *, steps: int) -> None:
        """Begin with nothing."""
        del steps
        self.model = copy.deepcopy(model)
        self.segment = clone_tensors(list(model.parameters()))
        self.steps = 0
        # The last segments, each with how many steps are in it, and the losses of all.
        self.recent: list[tuple[list[Tensor], int]] = []
        self.losses: list[float] = []
        # The step of every checkpoint, and the segments that have been added.
        self.ends: list[int] = []
        self.added: list[int] = []
        self.begin: int | None = None
        self.bound = 0.0
        self.over = False
        # What has been added so far, and its weight.
        self.total = clone_tensors(self.segment), 0

    def after_step(self, model: nn.Module) -> None:
        """Take the weights into the present segment."""
        self.steps += 1
        mix(self.segment, list(model.parameters()), share=1 / self.steps)
        assign(list(self.model.buffers()), list(model.buffers()))

    def after_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Close the segment, and see where in the valley it is."""
        if self.over:
            return
        self.ends.append(checkpoint.step)
        scores = [each.probe for each in checkpoint.scores.values()]
        self.losses.append(fmean(score.loss for score in scores if score is not None))
        self.recent.append((self.segment, self.steps))
        self.recent = self.recent[-max(self.converge, self.patience + 1) :]
        self.segment, self.steps = clone_tensors(self.segment), 0
        for i in self._entered(opened=self.begin is None and self._opens()):
            self.total = self._with(self.total, i)
            self.added.append(i)
        assign(list(self.model.parameters()), self._ended())

    def logs(self) -> dict[str, float]:
        """The steps from which and to which the mean goes; `valley` is 0 if no start was found."""
        used = [*self.added, *self._tail()] if self.begin is not None else []
        used = used or [len(self.losses) - 1 if self.begin is None else self.begin]
        ends = [0, *self.ends]
        return {
            "valley": float(self.begin is not None),
            "averaged_from": float(ends[min(used)] + 1),
            "averaged_to": float(ends[max(used) + 1]),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything but the settings."""
        kept = {name: getattr(self, name) for name in STATE}
        return {"model": self.model.state_dict(), **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
        self.model.load_state_dict(state["model"])
        place = self.segment[0].device
        for name in STATE:
            setattr(self, name, copy.deepcopy(state[name]))
        self.segment = _moved(self.segment, place)
        self.recent = [(_moved(segment, place), steps) for segment, steps in self.recent]
        self.total = _moved(self.total[0], place), self.total[1]

    def _opens(self) -> bool:
        """The valley begins at a loss that is the least of its window, and the first in it."""
        window = self.losses[-self.converge :]
        if len(window) < self.converge or window.index(min(window)) > 0:
            return False
        self.begin = len(self.losses) - self.converge
        self.bound = fmean(window) * (1 + self.slack)
        # Stands in for the mean as long as that is empty.
        self.total = self._segment(self.begin)[0], 0
        return True

    def _entered(self, *, opened: bool) -> Iterable[int]:
        """The segments that are known since this checkpoint to be in the valley."""
        oldest = len(self.losses) - self.patience
        if self.begin is None:
            return ()
        if self.form == "paper":
            full = not opened and oldest >= self.begin
            self.over = full and min(self.losses[oldest:]) > self.bound
            # All that came before the window, each once.
            return range(self.begin if opened else max(self.begin, oldest - 1), oldest)
        if opened:
            return self._just_before(self.begin)
        oldest = max(0, oldest)
        if oldest < self.begin:
            return ()
        self.over = min(self.losses[oldest:]) > self.bound
        return () if self.over else (oldest,)

    def _just_before(self, begin: int) -> Iterable[int]:
        """In the authors' code, what is added when the valley opens."""
        if self.patience < self.converge:
            return range(begin + 1, begin + 1 + self.converge - self.patience)
        oldest = max(0, len(self.losses) - self.patience)
        end = min(len(self.losses), oldest + self.patience - self.converge + 1)
        above = [i for i in range(oldest, end) if self.losses[i] > self.bound]
        return range(above[-1] + 2 if above else oldest + 1, end)

    def _ended(self) -> list[Tensor]:
        """The mean if training ended here: with what of the window is in the valley still."""
        if self.begin is None:
            return self.recent[-1][0]
        total = self.total
        for i in self._tail():
            total = self._with(total, i)
        return total[0]

    def _tail(self) -> Iterable[int]:
        """The segments that would be added if training ended here."""
        now = len(self.losses)
        oldest = max(0, now - self.patience)
        if self.over or self.begin is None:
            return ()
        if self.form == "paper":
            return range(max(self.begin, oldest), now)
        return takewhile(lambda i: min(self.losses[i:]) <= self.bound, range(oldest + 1, now))

    def _with(self, total: tuple[list[Tensor], int], i: int) -> tuple[list[Tensor], int]:
        """The mean with one segment more; in the paper's form each of its steps weighs alike."""
        (segment, steps), (mean, weight) = self._segment(i), total
        own = steps if self.form == "paper" else 1
        longer = clone_tensors(mean)
        mix(longer, segment, share=own / (weight + own))
        return longer, weight + own

    def _segment(self, i: int) -> tuple[list[Tensor], int]:
        return self.recent[i - len(self.losses)]


def _moved(tensors: Sequence[Tensor], place: torch.device) -> list[Tensor]:
    return [tensor.to(place) for tensor in tensors]


STATE = (
    *("segment", "steps", "recent", "losses", "ends", "added"),
    *("begin", "bound", "over", "total"),
)
