"""What a run trains on, and what it is examined on: no more than its rules read.

Nothing of an unseen domain is in `samples` or in the scaling; unseen domains are in exams only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from afield.domains import Domain, DomainSet, parts
from afield.evaluation import Checkpoint, Exam, Scores, merged_scores
from afield.loading import Prepare, Samples, Scaling, pooled_samples
from afield.record import Run
from afield.selection import RULES

__all__ = ["Exams", "Material"]

# How many samples of all unseen domains together are read for the curves at a checkpoint, but of
# each at least so many.
CURVE_SAMPLES, CURVE_LEAST = 64, 8


@dataclass(frozen=True)
class Exams:
    """What is read at every checkpoint, at the last one, and at the best on the sources."""

    regular: Exam
    last: Exam
    best: Exam
    order: tuple[str, ...]

    def take(self, model: nn.Module) -> dict[str, Scores]:
        """What is read at every checkpoint."""
        return merged_scores(self.regular.take(model), {}, self.order)

    def completed(self, checkpoint: Checkpoint, model: nn.Module, exam: Exam) -> Checkpoint:
        """A checkpoint with what is read of it in another exam as well."""
        return replace(
            checkpoint, scores=merged_scores(checkpoint.scores, exam.take(model), self.order)
        )


@dataclass(frozen=True)
class Material:
    """The samples to train on, the exams, and how the inputs of both are scaled."""

    samples: Samples
    exams: Exams
    scaling: Scaling

    @classmethod
    def of(
        cls, run: Run, dataset: DomainSet, domains: Mapping[str, Domain], device: torch.device
    ) -> "Material":
        """Cut the domains; inputs are scaled by what the sources' main parts are like."""
        cuts = {
            name: parts(len(domain.y), trial=run.trial, domain=name)
            for name, domain in domains.items()
        }

        def portion(name: str, index: Tensor) -> Domain:
            domain = domains[name]
            return Domain(domain.x[index].to(device), domain.y[index].to(device))

        samples = pooled_samples({name: portion(name, cuts[name].main) for name in run.sources})
        scaling = Scaling.fitted(samples.x)
        unseen = dataset.without(*run.sources)
        share = max(CURVE_LEAST, CURVE_SAMPLES // max(1, len(unseen)))
        portions = {(name, "probe"): portion(name, cuts[name].probe) for name in dataset.domains}
        for name in unseen:
            portions[name, "main"] = portion(name, cuts[name].main)
            portions[name, "sample"] = portion(name, cuts[name].main[:share])
        exams = _exams(run, portions, dataset.domains, scaling)
        return cls(replace(samples, prepare=scaling), exams, scaling)


def _exams(
    run: Run,
    portions: Mapping[tuple[str, str], Domain],
    order: tuple[str, ...],
    prepare: Prepare,
) -> Exams:
    rules = [RULES[name] for name in run.rules]
    often = {part for rule in rules for part in rule.at_every} or {"sample"}
    unseen = [name for name in order if name not in run.sources]

    def exam(parts: Iterable[str], *, also: Iterable[tuple[str, str]] = ()) -> Exam:
        wanted = sorted(set(parts))
        keys = [*also, *((name, part) for name in unseen for part in wanted)]
        return Exam({key: portions[key] for key in keys}, prepare)

    return Exams(
        regular=exam(often, also=[(name, "probe") for name in run.sources]),
        last=exam({part for rule in rules for part in rule.at_last} - often),
        best=exam({part for rule in rules for part in rule.at_best_on_sources} - often),
        order=order,
    )
