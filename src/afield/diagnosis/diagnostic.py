"""What a diagnostic is: a look at finished runs that ends in numbers, a sentence and a picture.

A diagnostic is frozen; its fields are its settings. It looks at runs (network and data brought
back), or reads the records of a store, or both. Unseen domains may be looked at here: all is over.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pandas as pd
import torch
from torch import Tensor, nn

from afield import registry
from afield.data.stream import Batch, Samples, Stream
from afield.errors import DataError, SpecError
from afield.experiments.record import Record
from afield.networks.masks import Masked
from afield.seeds import restore_state
from afield.training.evaluation import outputs
from afield.training.loop import fit
from afield.training.method import Learner, Method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Diagnostic",
    "Finding",
    "Revive",
    "Subject",
    "check_plain",
    "checked_domains",
    "checked_picture",
    "further_networks",
    "only",
]

# Inches of a panel, and how many stand side by side.
PANEL, ACROSS = (4.2, 3.6), (4, 3)
FORMATS = ("png", "svg", "pdf")

Draw = Callable[[Sequence["Axes"]], None]
Revive = Callable[[Record], "Subject"]


@dataclass(frozen=True)
class Subject:
    """A finished run brought back: its record, its deployed model (as of a `step`), and its start.

    `learner` and `stream` are as they were before the first step; `domains` has the main part of
    every domain, unseen ones too, without augmentation, `probes` the other part, and `called` what
    each sample of the main part is called: its file's name, or the number of its row. `random` is
    the state of the random generators at the first step. `trained` has the model once more, with
    the method's further networks as they were then, if these were kept (`whole`). Of a merged run,
    `base` has the weights that its experts started from and `experts` theirs, each with the name of
    its source or method.
    """

    record: Record
    step: int
    model: nn.Module
    method: Method
    learner: Learner
    trained: Learner
    stream: Stream
    domains: Mapping[str, Samples]
    probes: Mapping[str, Samples]
    called: Mapping[str, Sequence[str]] = field(repr=False)
    random: Mapping[str, Any] = field(repr=False)
    whole: bool = True
    base: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    experts: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, repr=False)

    def shown(self, most: int) -> list[str]:
        """The domains to show, at most so many: the first sources, and at least a third unseen."""
        sources = self.record.run.sources
        unseen = [name for name in self.domains if name not in sources]
        room = max(most - len(sources), min(len(unseen), most // 3))
        kept = {*unseen[:room], *sources[: most - len(unseen[:room])]}
        return [name for name in self.domains if name in kept]

    def batches(self, domain: str) -> Iterator[Batch]:
        """Endless batches of one domain, as large and as augmented as those of the run."""
        run, augment = self.record.run, self.stream.samples.augment
        samples = replace(self.domains[domain], augment=augment)
        for (batch,) in Stream(samples, batch=run.batch, seed=run.seed):
            yield batch

    def again(self, moments: int) -> Iterator[tuple[int, nn.Module]]:
        """Train the run once more, and show the model at its start and at most so often after it.

        On the same machine, with as many threads, it is the same training, bit for bit. It changes
        the learner, the stream and torch's random generators, and can be done once.
        """
        restore_state(self.random)
        learner, last = self.learner, self.record.checkpoints[-1].step
        average = registry.find("averages", "last")()
        average.follow(learner.model, steps=last)
        yield 0, learner.model
        every = -(-last // moments)
        steps = {"steps": last, "every": every}
        for moment in fit(self.method, learner, average, self.stream, lambda _: {}, **steps):
            yield moment.step, learner.model

    def answers(
        self, model: nn.Module, samples: Samples, chosen: Tensor, *, domain: int | None = None
    ) -> Tensor:
        """The classes that a model names for chosen samples, if need be told the source."""
        logits = outputs(model, samples.x, samples.prepare, chosen=chosen, domain=domain)
        return logits.argmax(dim=1).cpu()

    def logits(self, samples: Samples) -> Tensor:
        """What the deployed model makes of samples, on the CPU."""
        return outputs(self.model, samples.x, samples.prepare).cpu()

    def some(self, domain: str, count: int) -> Tensor:
        """So many of a domain's samples, by their indices, drawn at random but the same again."""
        generator = torch.Generator().manual_seed(self.record.run.seed)
        return torch.randperm(len(self.domains[domain]), generator=generator)[:count]


@dataclass(frozen=True)
class Finding:
    """What was found: the numbers (`data`), what they say (`told`), and how they are drawn.

    Where there are numbers of several kinds, `more` has the others, each kind with its name.
    """

    data: pd.DataFrame
    told: str
    paint: Draw = field(repr=False)
    panels: int = 1
    more: Mapping[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    def draw(self, axes: "Axes | Sequence[Axes] | Any") -> None:
        """Draw to given axes, as many as there are panels."""
        given = list(axes.flat) if hasattr(axes, "flat") else axes
        listed = list(given) if isinstance(given, Sequence) else [given]
        if len(listed) < self.panels:
            raise SpecError(f"{self.panels} panel(s) are to be drawn, but {len(listed)} axes given")
        self.paint(listed[: self.panels])
        for unused in listed[self.panels :]:
            unused.set_axis_off()

    def figure(self) -> "Figure":
        """The picture."""
        from matplotlib.figure import Figure

        # Of three or four side by side, what leaves fewer places empty.
        columns = min(self.panels, min(ACROSS, key=lambda across: -self.panels % across))
        rows = -(-self.panels // columns)
        made = Figure((PANEL[0] * columns, PANEL[1] * rows), dpi=120, layout="constrained")
        self.draw(made.subplots(rows, columns, squeeze=False))
        return made

    def save(self, out: str | Path) -> tuple[Path, ...]:
        """Write the picture, and beside it the numbers as CSV; the picture's path comes first."""
        path = checked_picture(out)
        tables = {path.with_suffix(".csv"): self.data}
        tables |= {path.with_suffix(f".{name}.csv"): table for name, table in self.more.items()}
        try:
            with warnings.catch_warnings():
                # A name in letters that the font lacks is drawn as boxes.
                warnings.filterwarnings("ignore", message="Glyph")
                self.figure().savefig(path)
            for place, table in tables.items():
                table.to_csv(place, index=False)
        except OSError as error:
            raise _unwritable(path, error) from None
        return path, *tables


@dataclass(frozen=True)
class Diagnostic:
    """A way to look; overrides `look`, or `read` or `study` where it `takes` records or a store."""

    takes: ClassVar[Literal["runs", "records", "store"]] = "runs"

    def look(self, subjects: Sequence[Subject]) -> Finding:
        """Look at one run, or at several where that makes sense."""
        raise NotImplementedError(f"{type(self).__name__} does not look at runs")

    def read(self, records: Sequence[Record]) -> Finding:
        """Read the records of a store."""
        raise NotImplementedError(f"{type(self).__name__} does not read records")

    def study(self, records: Sequence[Record], revive: "Revive") -> Finding:
        """Read the records of a store, and bring some of its runs back, one at a time."""
        raise NotImplementedError(f"{type(self).__name__} does not study a store")


def checked_picture(out: str | Path) -> Path:
    """The path of a picture that can be written, as far as is known before there is one."""
    path = Path(out)
    if path.suffix[1:] not in FORMATS:
        raise SpecError(f"{path}: a picture is one of {', '.join(FORMATS)}; name it fig.png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def _unwritable(path: Path, error: OSError) -> SpecError:
    return SpecError(f"cannot write {path} ({error.strerror}); use another --out")


def only(subjects: Sequence[Subject], name: str) -> Subject:
    """The one run that a diagnostic looks at."""
    if len(subjects) != 1:
        raise SpecError(f"{name} looks at one run, not at {len(subjects)}")
    return subjects[0]


def checked_domains(subject: Subject, wanted: Sequence[str], most: int) -> list[str]:
    """The domains to show: those that are asked for, if they are there, or at most so many."""
    for name in wanted:
        if name not in subject.domains:
            known = registry.hint(name, list(subject.domains))
            raise SpecError(f"{subject.record.run.dataset} has no domain {name!r}; {known}")
    return list(dict.fromkeys(wanted)) or subject.shown(most)


def further_networks(subject: Subject) -> Learner:
    """The model with the method's further networks as they were at the end."""
    if not subject.whole:
        raise DataError(
            f"{subject.record.run.key}: the weights of its further networks were not kept, by an "
            "earlier version; remove its folder and run it again"
        )
    return subject.trained


def check_plain(subject: Subject, name: str) -> None:
    """Refuse runs whose network is not trained by itself."""
    if isinstance(subject.model, Masked):
        method = subject.record.run.method
        raise SpecError(f"{name} trains a network by itself; {method} trains masks with it")
