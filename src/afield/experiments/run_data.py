"""What a run trains on, and what it is examined on: no more than its rules read.

Nothing of an unseen domain is in `samples` or in the scaling; unseen domains are in exams only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from afield.data.augmentation import Augmentation, Resize
from afield.data.domains import Domain, DomainSet, Parts, listed_parts, parts
from afield.data.samples import Prepare, Samples, pool_domains
from afield.data.scaling import Scaling
from afield.errors import SpecError
from afield.experiments.record import Run
from afield.experiments.selection import RULES
from afield.networks.backbone import find_backbone
from afield.seeds import derive_seed
from afield.training.evaluation import Checkpoint, Evaluator, Scores, combine_scores

__all__ = ["Evaluations", "RunData", "known_splits", "split_domains", "training_rows"]

# How many samples of all unseen domains together are read for the curves at a checkpoint, but of
# each at least so many.
CURVE_SAMPLES, MIN_CURVE_SAMPLES = 64, 8


@dataclass(frozen=True)
class Evaluations:
    """What is read at every checkpoint, at the last one, and at the best on the sources."""

    regular: Evaluator
    last: Evaluator
    best: Evaluator
    order: tuple[str, ...]

    def evaluate(self, model: nn.Module) -> dict[str, Scores]:
        """What is read at every checkpoint."""
        return combine_scores(self.regular.evaluate(model), {}, self.order)

    def completed(self, checkpoint: Checkpoint, model: nn.Module, exam: Evaluator) -> Checkpoint:
        """A checkpoint with what is read of it in another exam as well."""
        return replace(
            checkpoint, scores=combine_scores(checkpoint.scores, exam.evaluate(model), self.order)
        )


@dataclass(frozen=True)
class RunData:
    """The samples to train on, the exams, how inputs are scaled, and the shape a network sees."""

    samples: Samples
    evaluations: Evaluations
    scaling: Scaling
    shape: tuple[int, ...]
    dropped: int = 0

    @classmethod
    def of(
        cls,
        run: Run,
        dataset: DomainSet,
        domains: Mapping[str, Domain],
        device: torch.device,
        start_inputs: Mapping[str, Any] | None = None,
    ) -> "RunData":
        """Cut the domains; inputs are scaled as the network expects, or as the sources suggest.

        Or as is `told`, by the run from whose weights this one starts.
        """
        cuts = split_domains(run, domains)
        samples = pool_domains(domains, training_rows(run, domains), device)
        scaling = _scaling(run, samples, device)
        if start_inputs is not None:
            scaling = Scaling.from_dict(start_inputs, scaling)
        unseen = dataset.without(*run.sources, *run.unused)
        share = max(MIN_CURVE_SAMPLES, CURVE_SAMPLES // max(1, len(unseen)))
        rows = {(name, "probe"): cuts[name].probe for name in dataset.domains}
        for name in unseen:
            main = cuts[name].main
            rows[name, "main"], rows[name, "sample"] = main, _spread(main, share)
        shape = tuple(samples.x.shape)
        prepare: Prepare = scaling
        if len(shape) == 3 and run.size:
            shape = (shape[0], run.size, run.size)
            prepare = Resize(run.size, scaling)
        augment = Augmentation(run.augment, shape[-1], scaling) if run.augment else None
        if augment and not _square_pictures(samples):
            raise SpecError(
                f"augment={run.augment}: {dataset.name} has no square pictures; use none"
            )
        exam = partial(
            _exam, domains=domains, rows=rows, prepare=prepare, device=device, trial=run.trial
        )
        return cls(
            samples=replace(samples, prepare=prepare, augment=augment),
            evaluations=_exams(run, dataset.domains, exam),
            scaling=scaling,
            shape=shape,
            dropped=sum(len(domain.broken) for domain in domains.values()),
        )


def split_domains(run: Run, domains: Mapping[str, Domain]) -> dict[str, Parts]:
    """The rows of every domain's two parts, as this run cuts them."""
    return {name: _cut(name, domain, run) for name, domain in domains.items()}


def known_splits(run: Run, domains: Mapping[str, Domain]) -> dict[str, Parts]:
    """The rows of every domain's two parts, without those whose class the run does not know."""
    cuts = split_domains(run, domains)
    return {name: Parts(*(_known(domains[name], p) for p in cut)) for name, cut in cuts.items()}


def _known(domain: Domain, rows: Tensor) -> Tensor:
    """The rows whose class the run knows."""
    return rows[domain.y[rows] >= 0]


def training_rows(run: Run, domains: Mapping[str, Domain]) -> dict[str, Tensor]:
    """The rows of every source that the run trains on."""
    cuts = {name: _cut(name, domains[name], run) for name in run.sources}
    return {name: _limited(name, domains[name], cut.main, run) for name, cut in cuts.items()}


def _cut(name: str, domain: Domain, run: Run) -> Parts:
    """Main and probe part: by the dataset's own lists where it has them."""
    if domain.test is not None:
        return listed_parts(domain.test, seen=name in run.sources)
    return parts(len(domain.y), trial=run.trial, domain=name)


def _limited(name: str, domain: Domain, main: Tensor, run: Run) -> Tensor:
    """At most so many samples of each class to train on, others in every trial."""
    main = _known(domain, main)
    if not run.limit:
        return main
    labels = domain.y[main]
    order = np.random.default_rng(derive_seed("limit", run.trial, name)).permutation(len(main))
    kept = [
        torch.from_numpy(order)[labels[order] == label][: run.limit] for label in labels.unique()
    ]
    return main[torch.cat(kept).sort().values]


def _spread(rows: Tensor, count: int) -> Tensor:
    """At most so many, from first to last: official lists have one class after the other."""
    count = min(count, len(rows))
    return rows[torch.arange(count) * len(rows) // count]


def _square_pictures(samples: Samples) -> bool:
    shape = samples.x.shape
    return samples.x.is_pixels and len(shape) == 3 and shape[1] == shape[2]


def _scaling(run: Run, samples: Samples, device: torch.device) -> Scaling:
    """As the network was made for, if it was made for pictures and gets them."""
    form = find_backbone(run.backbone).input_form()
    if form is None or not samples.x.is_pixels:
        return Scaling.fit(samples.x)
    channels = samples.x.shape[0]
    return Scaling.for_images(form.mean, form.std, channels=channels, device=device)


def _exam(
    keys: Sequence[tuple[str, str]],
    *,
    domains: Mapping[str, Domain],
    rows: Mapping[tuple[str, str], Tensor],
    prepare: Prepare,
    device: torch.device,
    trial: int,
    confidence: bool = True,
) -> Evaluator:
    return Evaluator(
        {key: domains[key[0]] for key in keys},
        prepare,
        # In the order in which they lie on the disk.
        indices={key: rows[key].sort().values for key in keys},
        device=device,
        confidence=confidence,
        trial=trial,
    )


def _exams(run: Run, order: tuple[str, ...], exam: Callable[..., Evaluator]) -> Evaluations:
    rules = [RULES[name] for name in run.rules]
    often = {part for rule in rules for part in rule.at_every} or {"sample"}
    unseen = [name for name in order if name not in (*run.sources, *run.unused)]
    validated = [name for name in unseen if run.tested and name not in run.tested]
    tests = [name for name in unseen if name not in validated]

    def of_tests(parts: Iterable[str]) -> list[tuple[str, str]]:
        return [(name, part) for name in tests for part in sorted(set(parts))]

    regular = [(name, "probe") for name in run.sources] + of_tests(often)
    regular += [(name, part) for name in validated for part in ("main", "probe")]
    return Evaluations(
        # Tables show how confident a model is where it is reported on, which is mostly not here.
        regular=exam(regular, confidence="main" in often),
        last=exam(of_tests({part for rule in rules for part in rule.at_last} - often)),
        best=exam(of_tests({part for rule in rules for part in rule.at_best} - often)),
        order=order,
    )
