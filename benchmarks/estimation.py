"""Accuracy without labels, prediction sets and strangeness, on domains that are left out twice.

    python benchmarks/estimation.py [NAME ...] [--store FOLDER]

With up to seven domains, each is the new one in turn; the model is trained on the others, and each
of these is held out as well, as `afield fit` does. Of more domains, a quarter is new in turn, and a
quarter of the others is held out at once. Models that left out two domains serve both as the new
one. The class shares of the new domain are as they are, or drawn at random (every share alike).

Printed are, for each dataset and all pairs of a dataset and a new domain:

- the mean error of every estimator, and of the chosen one;
- how often a domain is too far away for a number (`far`; the other columns count it all the same);
- how often the 80 % interval has the truth, its mean width, and that of the ranges on the card: the
  smallest to the largest accuracy on held-out domains, and the prediction interval at 80 %;
- the coverage of 90 % prediction sets on new domains, and what the card says it is, with the mean
  number of classes in a set;
- the AUROC with which confidence and each score of strangeness tell wrong predictions, and how many
  samples are too far away, with the share of mistakes among them and among the same number of the
  least confident others.
"""

import argparse
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from afield.compute import deterministic
from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.deployment.class_shares import with_random_shares
from afield.deployment.estimates import fit_strangeness, separation
from afield.deployment.estimator import MIN_DOMAINS, measure_errors, measure_estimators
from afield.deployment.held_out import DomainOutputs
from afield.deployment.model_folder import Estimate
from afield.deployment.new_domain import TOO_FAR
from afield.deployment.prediction_sets import PredictionSets, conformity, select_classes
from afield.networks.features import capture_features
from afield.networks.inference import compute_outputs
from afield.runs.finished import reopen
from afield.runs.pool import default_pool
from afield.runs.store import Store, open_store
from afield.runs.sweep import complete
from afield.studies.planning import plan_training
from afield.training.calibration import balanced_quantiles, fit_temperature

# The data, and settings that shorten the training: what counts here are the outputs.
DATA: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "rotated_digits": ("rotated_digits", {}),
    "colored_digits": ("colored_digits", {}),
    "spoken_digits": ("spoken_digits", {"steps": 200, "every": 200}),
    "fonts": ("fonts", {"steps": 300, "every": 300}),
    "handwriting": ("handwriting", {}),
    "pacs_mini": (
        "{root}/pacs_mini",
        {
            "backbone": "timm:tf_efficientnet_lite0",
            "weights": "{root}/weights/tf_efficientnet_lite0.safetensors",
        },
    ),
    "heart": ("{root}/heart/heart.csv?label=diagnosis&domain=hospital", {}),
    "reviews": (
        "{root}/reviews/reviews.csv.gz", {"backbone": "bag:", "steps": 150, "every": 150}
    ),
}  # fmt: skip
MANY, PARTS = 7, 4
LEVEL, FAR, ABSTAIN = 0.9, 0.99, 0.1


@dataclass(frozen=True)
class Trained:
    """The domains that a model left out as new ones and as held-out ones, and its outputs there."""

    new: tuple[str, ...]
    held_out: tuple[str, ...]
    outputs: Mapping[str, DomainOutputs]


@dataclass(frozen=True)
class Case:
    """A new domain, and the held-out domains of the model that it is new to."""

    new: DomainOutputs
    held_out: tuple[DomainOutputs, ...]


def left_out(domains: Sequence[str]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The domains to leave out of each training: new ones, and held-out ones."""
    if len(domains) <= MANY:
        yield from (((name,), ()) for name in domains)
        yield from (((), pair) for pair in combinations(domains, 2))
        return
    order = list(domains)
    random.Random(0).shuffle(order)
    for part in range(PARTS):
        new = tuple(order[part::PARTS])
        rest = [name for name in order if name not in new]
        yield new, ()
        yield new, tuple(rest[::PARTS])


def train(name: str, store: Store) -> list[Trained]:
    """Train on all that is left, and keep the outputs for what is left out."""
    spec, settings = DATA[name]
    spec = spec.format(root=data_root())
    settings = {
        key: value.format(root=data_root()) if isinstance(value, str) else value
        for key, value in settings.items()
    }
    trained = []
    for new, held_out in left_out(find_dataset(spec).domains):
        names = (*new, *held_out)
        runs = plan_training(spec, "erm", target=names, settings=settings)
        for outcome in complete(runs, store, pool=default_pool()):
            if outcome.error:
                raise SystemExit(f"{outcome.run.key}: {outcome.error}")
        with deterministic(1):
            finished = reopen(store.folder(runs[-1]))
            strangeness = fit_strangeness(finished)
            outputs = {}
            for each in names:
                logits, features, labels = [], [], []
                for part in (finished.domains[each], finished.probes[each]):
                    with capture_features(finished.model) as captured:
                        logits.append(compute_outputs(finished.model, part.x, part.prepare).cpu())
                    features.append(torch.cat(captured.features).float())
                    labels.append(part.y.cpu())
                z, f = torch.cat(logits), torch.cat(features)
                scores = strangeness.all_scores(f, z) | {"distance": strangeness.classes(f)}
                outputs[each] = DomainOutputs(each, z, torch.cat(labels), scores).shuffled(0)
        trained.append(Trained(new, held_out, outputs))
    return trained


def cases(trained: Sequence[Trained]) -> list[Case]:
    """Every new domain, with the outputs for held-out domains."""
    found = []
    for model in trained:
        if model.held_out:
            continue
        for name in model.new:
            if len(model.new) > 1:
                (other,) = [t for t in trained if t.new == model.new and t.held_out]
                held = tuple(other.outputs[each] for each in other.held_out)
            else:
                pairs = [t for t in trained if not t.new and name in t.held_out]
                held = tuple(t.outputs[each] for t in pairs for each in t.held_out if each != name)
            found.append(Case(model.outputs[name], held))
    return found


def estimates(all_cases: Sequence[Case], *, drawn: bool) -> list[dict[str, float]]:
    """The errors of the estimators and the intervals on every new domain."""
    known: dict[tuple[str, ...], dict[str, tuple[float, ...]]] = {}
    rows = []
    for number, case in enumerate(all_cases):
        if len(case.held_out) < MIN_DOMAINS:
            continue
        new = with_random_shares(case.new, number) if drawn else case.new
        names = tuple(each.name for each in case.held_out)
        if names not in known:
            known[names] = measure_errors(case.held_out)
        results = measure_estimators(case.held_out, new, known[names])
        low, high = results[0].interval(len(new))
        values = {each.name: each.accuracy for each in case.held_out}
        card = Estimate(0, 0, 0, values, 1).prediction_interval(0.8)
        row = {each.name: abs(each.estimate - new.accuracy) for each in results}
        rows.append(
            row
            | {
                "far": float(is_far(case)),
                "chosen": row[results[0].name],
                "inside": float(low <= new.accuracy <= high),
                "width": high - low,
                "range": max(values.values()) - min(values.values()),
                "card": card[1] - card[0],
            }
        )
    return rows


def is_far(case: Case) -> bool:
    """Whether `afield estimate` would give no number, because the new domain is too far away."""
    far = max(float(each.scores["distance"].mean()) for each in case.held_out)
    return float(case.new.scores["distance"].mean()) > TOO_FAR * far


def sets(all_cases: Sequence[Case]) -> dict[str, float]:
    """The coverage of prediction sets on new domains, and what the card says of it."""
    rows = defaultdict(list)
    for case in all_cases:
        temperature = fit_temperature(
            [each.logits for each in case.held_out], [each.labels for each in case.held_out]
        )
        tables = {
            each.name: conformity(each.probabilities(temperature), each.labels)
            for each in case.held_out
        }
        known = PredictionSets(tables)
        for name, threshold in zip(("mean", "worst"), known.thresholds(LEVEL), strict=True):
            probabilities = case.new.probabilities(temperature).tolist()
            chosen = [select_classes(row, threshold) for row in probabilities]
            labels = case.new.labels.tolist()
            hits = [label in each for label, each in zip(labels, chosen, strict=True)]
            rows[f"coverage ({name})"].append(np.mean(hits))
            rows[f"size ({name})"].append(np.mean([len(each) for each in chosen]))
        expected, stderr = known.expected(LEVEL)
        rows["card"].append(expected)
        rows["its standard error"].append(stderr)
    return {name: float(np.mean(values)) for name, values in rows.items()}


def strangeness(all_cases: Sequence[Case]) -> dict[str, float]:
    """How well scores tell mistakes on new domains, and what the rule for too far marks."""
    rows = defaultdict(list)
    marked = mistakes = others = total = 0
    for case in all_cases:
        new, held = case.new, case.held_out
        right = new.hits.numpy().astype(bool)
        confidence = new.confidences().numpy()
        total += len(new)
        scores = {k: v.double().numpy() for k, v in new.scores.items() if k != "distance"}
        for name, values in (*scores.items(), ("confidence", -confidence)):
            if 0 < right.sum() < len(right):
                rows[name].append(separation(values[right], values[~right]))
        far = _quantile([each.scores["neighbors"].double().numpy() for each in held], FAR)
        least = _quantile([each.confidences().numpy() for each in held], ABSTAIN)
        kept = confidence >= least
        strange = (scores["neighbors"] > far) & kept
        unsure = np.flatnonzero(kept)[np.argsort(confidence[kept])][: strange.sum()]
        marked += int(strange.sum())
        mistakes += int((~right[strange]).sum())
        others += int((~right[unsure]).sum())
    result = {name: float(np.mean(values)) for name, values in rows.items()}
    rates = {"mistakes among them": mistakes, "among as many unsure ones": others}
    result |= {name: count / max(1, marked) for name, count in rates.items()}
    return result | {"too far": marked / total}


def _quantile(values: Sequence[Any], level: float) -> float:
    quantiles = balanced_quantiles(values)
    return float(np.interp(level, np.linspace(0, 1, len(quantiles)), quantiles))


def show(title: str, rows: Mapping[str, Mapping[str, float]], *, plain: Sequence[str] = ()) -> None:
    """Print numbers by dataset, in percent unless they are `plain`, as a table of Markdown."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    print(f"\n{title}\n\n| | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for name, row in rows.items():
        cells = [
            "" if c not in row else f"{row[c]:.2f}" if c in plain else f"{100 * row[c]:.1f}"
            for c in columns
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Measure the datasets that are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(DATA), metavar="NAME")
    parser.add_argument("--store", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        store = open_store(args.store or Path(scratch) / "runs")
        by_data = {name: cases(train(name, store)) for name in args.names}
    for drawn in (False, True):
        rows: dict[str, Mapping[str, float]] = {}
        every = []
        for name, found in by_data.items():
            measured = estimates(found, drawn=drawn)
            every += measured
            if measured:
                rows[f"{name} ({len(measured)})"] = _mean(measured)
        rows[f"all pairs ({len(every)})"] = _mean(every)
        shares = "drawn at random" if drawn else "as they are"
        show(f"Errors in points, class shares {shares}", rows)
    show(
        "Prediction sets of 90 %", {name: sets(found) for name, found in by_data.items()},
        plain=("size (mean)", "size (worst)"),
    )  # fmt: skip
    show("AUROC of mistakes, and samples that are too far away",
         {name: strangeness(found) for name, found in by_data.items()})  # fmt: skip


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


if __name__ == "__main__":
    main()
