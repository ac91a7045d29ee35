"""The data of a run: samples to train on, and evaluations of what its rules read.

Samples of unseen domains are never trained on and do not affect the scaling; they are only
evaluated.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from afield.data.augmentation import Augmentation
from afield.data.bag_of_words import NGRAMS
from afield.data.domains import Domain, DomainSet, Parts, listed_parts, parts
from afield.data.groups import group_labels
from afield.data.modality import Modality
from afield.data.samples import TOKEN_DTYPE, Augment, Prepare, Rows, Samples, pool_domains
from afield.data.scaling import Scaling
from afield.errors import SpecError
from afield.networks.backbone import find_backbone
from afield.runs.run import Run
from afield.runs.selection import RULES
from afield.seeds import derive_seed
from afield.training.evaluation import Evaluator, combine_scores
from afield.training.scores import Checkpoint, Scores


@dataclass(frozen=True)
class TextLengths:
    """The lengths of texts in tokens, as a `Record` has them; all 0 if the samples are no texts."""

    truncated: int = 0
    median_tokens: int = 0
    embedded_tokens: int = 0

    @classmethod
    def of(
        cls,
        dataset: DomainSet,
        domains: Mapping[str, Domain],
        rows: Mapping[str, Tensor],
        samples: Samples,
    ) -> "TextLengths":
        """Those of a dataset; the median is that of the `rows` to train on, which are `samples`."""
        if samples.x.is_tokens:
            truncated = sum(domain.truncated for domain in domains.values())
            return cls(truncated, int(samples.x.lengths.median()))
        lengths = [_embedded(domains[name], of_domain) for name, of_domain in rows.items()]
        if not all(map(len, lengths)):
            return cls()
        # A file of features is a user's: what it says need not be a number.
        cut, tokens = (dataset.provenance.get(key) for key in ("truncated", "tokens"))
        return cls(
            cut if isinstance(cut, int) else 0,
            int(torch.cat(lengths).median()),
            tokens if isinstance(tokens, int) else 0,
        )


def _embedded(domain: Domain, rows: Tensor) -> Tensor:
    return torch.empty(0) if domain.text_lengths is None else domain.text_lengths[rows]


class PreparedInputs(NamedTuple):
    """The scaling, the shape that a network sees, and what is done to a batch."""

    scaling: Scaling
    shape: tuple[int, ...]
    prepare: Prepare
    augment: Augment | None = None


def prepare_inputs(
    run: Run,
    dataset: DomainSet,
    samples: Samples,
    device: torch.device,
    start_inputs: Mapping[str, Any] | None = None,
) -> PreparedInputs:
    """Fit or restore the scaling of a run, and set up resizing and augmentation."""
    if run.augment and not _square_images(samples):
        raise SpecError(f"augment={run.augment}: {dataset.name} has no square images; use none")
    scaling = _scaling(run, dataset, samples, device)
    if start_inputs is not None:
        scaling = scaling.restored(start_inputs)
    stored = tuple(samples.x.shape)
    modality = _tokenized(run, dataset)
    shape = modality.network_shape(scaling, stored, run.size)
    prepare = modality.prepare(scaling, stored, run.size)
    augment = Augmentation(run.augment, shape[-1], scaling) if run.augment else None
    return PreparedInputs(scaling, shape, prepare, augment)


def _scaling(run: Run, dataset: DomainSet, samples: Samples, device: torch.device) -> Scaling:
    """The scaling that a pretrained network expects of images, or one fitted to the sources."""
    form = find_backbone(run.backbone).input_form()
    if form is None or not samples.x.is_pixels:
        modality = _tokenized(run, dataset)
        robust = run.columns == "robust"
        by_sources = robust or run.columns == "sources"
        return modality.fit_scaling(samples.x, by_sources=by_sources, robust=robust)
    channels = samples.x.shape[0]
    return Scaling.for_images(form.mean, form.std, channels=channels, device=device)


def _tokenized(run: Run, dataset: DomainSet) -> Modality:
    """The kind of samples, with the tokenizer of the run's network if they are texts."""
    tokenizer = find_backbone(run.backbone).tokenizer if run.tokens else ""
    return dataset.modality.with_tokens(tokenizer, run.tokens)


def _square_images(samples: Samples) -> bool:
    shape = samples.x.shape
    return samples.x.is_pixels and len(shape) == 3 and shape[1] == shape[2]


# Samples of all unseen domains together that are evaluated for the curves at a checkpoint, and the
# least number per domain. An accuracy of 512 samples has a standard error of at most 2.2 points.
CURVE_SAMPLES, MIN_CURVE_SAMPLES = 512, 8
# Vectors, and images of at most this many values, are cheap to evaluate: curves then use the whole
# test split, up to the second number of samples of all unseen domains together.
CHEAP_VALUES, CHEAP_CURVE_SAMPLES = 3 * 32 * 32, 4096


@dataclass(frozen=True)
class Evaluations:
    """What to evaluate at every checkpoint, at the last one, and at the best one on the sources."""

    regular: Evaluator
    last: Evaluator
    best: Evaluator
    order: tuple[str, ...]

    def evaluate(self, model: nn.Module) -> dict[str, Scores]:
        """The scores of a checkpoint."""
        return combine_scores(self.regular.evaluate(model), {}, self.order)

    def add_scores(
        self, checkpoint: Checkpoint, model: nn.Module, evaluator: Evaluator
    ) -> Checkpoint:
        """The checkpoint with the scores of another evaluator added."""
        scores = combine_scores(checkpoint.scores, evaluator.evaluate(model), self.order)
        return replace(checkpoint, scores=scores)


@dataclass(frozen=True)
class RunData:
    """The samples to train on, the evaluations, the scaling, and the shape that a network sees.

    `dropped` counts unreadable files that were left out.
    """

    samples: Samples
    evaluations: Evaluations
    scaling: Scaling
    shape: tuple[int, ...]
    dropped: int = 0
    text_lengths: TextLengths = field(default_factory=TextLengths)

    @classmethod
    def of(
        cls,
        run: Run,
        dataset: DomainSet,
        domains: Mapping[str, Domain],
        device: torch.device,
        start_inputs: Mapping[str, Any] | None = None,
    ) -> "RunData":
        """Split the domains of a run and set up its scaling and evaluations.

        Inputs are scaled as a pretrained network expects, or else by the mean and standard
        deviation of the sources. If `start_inputs` is given, it has the scaling of the run from
        whose weights this one starts, which is reused.
        """
        splits = split_domains(run, domains)
        to_train = training_rows(run, domains)
        samples = pool_domains(domains, to_train, device)
        inputs = prepare_inputs(run, dataset, samples, device, start_inputs)
        unseen = dataset.without(*run.sources, *run.unused)
        share = _curve_share(inputs.shape, len(unseen), is_text=samples.x.is_tokens)
        rows = {(name, "probe"): splits[name].probe for name in dataset.domains}
        rows |= {(name, "test"): test for name, test in _source_tests(run, domains).items()}
        for name in unseen:
            main = splits[name].main
            if run.metric and run.tested and name not in run.tested:
                # Other metrics of two splits do not add up to that of all samples.
                main = torch.cat(splits[name])
            rows[name, "main"], rows[name, "sample"] = main, _spread(main, share)
        _check_metric(run, domains, splits)
        evaluator = partial(
            _evaluator,
            domains=domains,
            rows=rows,
            prepare=inputs.prepare,
            device=device,
            trial=run.trial,
            groups=group_labels(run.group, domains, dataset.name) if run.group else {},
        )
        return cls(
            samples=replace(samples, prepare=inputs.prepare, augment=inputs.augment),
            evaluations=_evaluations(
                run, dataset.domains, evaluator, [key for key in rows if key[1] == "test"]
            ),
            scaling=inputs.scaling,
            shape=inputs.shape,
            dropped=sum(len(domain.broken) for domain in domains.values()),
            text_lengths=TextLengths.of(dataset, domains, to_train, samples),
        )


def _check_metric(run: Run, domains: Mapping[str, Domain], splits: Mapping[str, Parts]) -> None:
    """Refuse to select by AUROC where a source's validation split has only one class."""
    for name in run.sources if run.metric == "auroc" else ():
        if len(domains[name].y[splits[name].probe].unique()) < 2:
            raise SpecError(
                f"auroc: the validation split of {name!r} has only one class; use another metric"
            )


def truncation_warnings(run: Run, domains: Mapping[str, Domain]) -> list[str]:
    """One sentence that says how many texts are cut, if there are any."""
    truncated = sum(domain.truncated for domain in domains.values())
    total = sum(len(domain.y) for domain in domains.values())
    unit = "n-grams" if find_backbone(run.backbone).tokenizer == NGRAMS else "tokens"
    counts = f"{truncated} of {total} texts are cut at {run.tokens} {unit}"
    return [f"{counts}; --set tokens=N changes that"] if truncated else []


def split_domains(run: Run, domains: Mapping[str, Domain]) -> dict[str, Parts]:
    """The indices of both splits of every domain in this run."""
    return {name: _split(name, domain, run) for name, domain in domains.items()}


def known_splits(run: Run, domains: Mapping[str, Domain]) -> dict[str, Parts]:
    """The indices of both splits of every domain, without samples of classes unknown to the run."""
    splits = split_domains(run, domains)
    return {
        name: Parts(*(_known(domains[name], rows) for rows in split))
        for name, split in splits.items()
    }


def _source_tests(run: Run, domains: Mapping[str, Domain]) -> dict[str, Tensor]:
    """The test lists of the sources that have three lists."""
    listed = [domains[name] for name in run.sources] if run.split != "random" else []
    return {
        name: domain.test.nonzero().flatten()
        for name, domain in zip(run.sources, listed, strict=False)
        if domain.test is not None and domain.validation is not None
    }


def _known(domain: Domain, rows: Tensor) -> Tensor:
    """The rows whose class the run knows."""
    return rows[domain.y[rows] >= 0]


def training_rows(run: Run, domains: Mapping[str, Domain]) -> dict[str, Tensor]:
    """The rows of every source that the run trains on."""
    splits = {name: _split(name, domains[name], run) for name in run.sources}
    return {name: _limit(name, domains[name], split.main, run) for name, split in splits.items()}


def _split(name: str, domain: Domain, run: Run) -> Parts:
    """The splits of a domain: by its official lists if it has them.

    If whole domains are reported on, the main part of a domain to test on has all of its samples.
    """
    if domain.test is not None and run.split != "random":
        split = listed_parts(domain.test, domain.validation, seen=name in run.sources)
    else:
        split = parts(len(domain.y), trial=run.trial, domain=name)
    tested = name not in run.sources and (not run.tested or name in run.tested)
    if run.report == "whole" and tested:
        return split._replace(main=torch.arange(len(domain.y)))
    return split


def _limit(name: str, domain: Domain, main: Tensor, run: Run) -> Tensor:
    """At most `limit` samples of each class to train on, drawn anew for every trial."""
    main = _known(domain, main)
    if not run.limit:
        return main
    labels = domain.y[main]
    order = np.random.default_rng(derive_seed("limit", run.trial, name)).permutation(len(main))
    kept = [
        torch.from_numpy(order)[labels[order] == label][: run.limit] for label in labels.unique()
    ]
    return main[torch.cat(kept).sort().values]


def _curve_share(shape: tuple[int, ...], domains: int, *, is_text: bool = False) -> int:
    """The samples of each unseen domain that are evaluated for the curves at a checkpoint."""
    cheap = not is_text and (len(shape) == 1 or math.prod(shape) <= CHEAP_VALUES)
    total = CHEAP_CURVE_SAMPLES if cheap else CURVE_SAMPLES
    return max(MIN_CURVE_SAMPLES, total // max(1, domains))


def _spread(rows: Tensor, count: int) -> Tensor:
    """At most `count` rows, evenly spaced: official lists are sorted by class."""
    count = min(count, len(rows))
    return rows[torch.arange(count) * len(rows) // count]


def _reading_order(x: Tensor, rows: Tensor) -> Tensor:
    """Rows in the order in which they lie on the disk; short texts first, which saves padding."""
    rows = rows.sort().values
    if x.dtype != TOKEN_DTYPE:
        return rows
    return rows[Rows([x], [rows]).lengths.argsort(stable=True)]


def _evaluator(
    keys: Sequence[tuple[str, str]],
    *,
    domains: Mapping[str, Domain],
    rows: Mapping[tuple[str, str], Tensor],
    prepare: Prepare,
    device: torch.device,
    trial: int,
    groups: Mapping[str, Sequence[str]],
    confidence: bool = True,
) -> Evaluator:
    indices = {key: _reading_order(domains[key[0]].x, rows[key]) for key in keys}
    return Evaluator(
        {key: domains[key[0]] for key in keys},
        prepare,
        indices=indices,
        groups={
            key: [groups[key[0]][row] for row in indices[key].tolist()]
            for key in keys
            if key[0] in groups
        },
        device=device,
        confidence=confidence,
        trial=trial,
    )


def _evaluations(
    run: Run,
    order: tuple[str, ...],
    evaluator: Callable[..., Evaluator],
    source_tests: list[tuple[str, str]],
) -> Evaluations:
    """Evaluators of exactly the splits that the rules of a run read.

    The test lists of sources are evaluated wherever the test splits of unseen domains are.
    """
    rules = [RULES[name] for name in run.rules]
    often = {part for rule in rules for part in rule.at_every} or {"sample"}
    unseen = [name for name in order if name not in (*run.sources, *run.unused)]
    validated = [name for name in unseen if run.tested and name not in run.tested]
    tests = [name for name in unseen if name not in validated]

    def of_tests(parts: Iterable[str]) -> list[tuple[str, str]]:
        keys = [(name, part) for name in tests for part in sorted(set(parts))]
        return keys + (source_tests if "main" in set(parts) else [])

    regular = [(name, "probe") for name in run.sources] + of_tests(often)
    both = ("main",) if run.metric else ("main", "probe")
    regular += [(name, part) for name in validated for part in both]
    return Evaluations(
        # Tables show calibration scores only of the checkpoints that rules pick.
        regular=evaluator(regular, confidence="main" in often),
        last=evaluator(of_tests({part for rule in rules for part in rule.at_last} - often)),
        best=evaluator(of_tests({part for rule in rules for part in rule.at_best} - often)),
        order=order,
    )
