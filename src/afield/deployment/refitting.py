"""A model fitted again with one more domain, by the recipe of an older folder, and both compared.

The data of both are joined beside the new model, so that they are ordinary data afterwards:

    OUT-data/       a folder of links: the domains of the data, and the new one
    OUT-data.csv    the rows of a table, and those of the new domain
    OUT-data.npz    the arrays of both

The older recipe left each old domain out of the others; the new one leaves it out of the others and
the new domain. The new domain itself was unseen by the old model, and is a domain like any other
for the new one. The older folder stays as it is.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from afield.data.domains import DomainSet
from afield.data.frames import is_table, read_frame, split_spec
from afield.data.lookup import find_dataset
from afield.deployment.evaluation import evaluate
from afield.deployment.fitting import BEST, FitRequest, fit, plan_fit
from afield.deployment.labelled import LabelledSamples, read_labelled
from afield.deployment.model import Model, load
from afield.deployment.model_folder import Description, check_output_folder
from afield.errors import DataError, SpecError
from afield.files import atomic_write, check_output
from afield.runs.pool import Pool
from afield.runs.record import Record
from afield.runs.selection import selection_value
from afield.runs.store import open_store
from afield.studies.protocol import Protocol

# Options of `afield fit` that belong to a recipe, and the type of their values.
RECIPE_OPTIONS: Mapping[str, type] = {
    "average": str, "classes": str, "start": str, "adapt": str, "ensemble": int, "trials": int,
    "hold-out": float, "set": str,
}  # fmt: skip
FLAGS = {"--finetune": True, "--no-finetune": False}


@dataclass(frozen=True)
class Comparison:
    """The accuracies of both recipes on domains that were left out, and on the new domain.

    `domains` has the accuracy on every old domain without and with the new one. `before` is the
    accuracy of the old model on the new domain, `left_out` that of the new recipe without it, and
    `trained` that of the new model on the part of it that was kept for validation.
    """

    name: str
    domains: Mapping[str, tuple[float, float]]
    before: float
    left_out: float | None
    trained: float | None

    @property
    def change(self) -> float:
        """The mean change on the old domains, in shares."""
        return float(np.mean([after - before for before, after in self.domains.values()]))

    @property
    def summary(self) -> str:
        """Both in one sentence."""
        new = f"{self.name}: {100 * self.before:.1f} % before"
        if self.trained is not None:
            new += f", {100 * self.trained:.1f} % now that it is trained on"
        old = f"{100 * self.change:+.1f} points on the {len(self.domains)} old domains"
        return f"{new}; left out in turn, {old}"


def refit(
    dataset: str | Path,
    like: str | Path,
    add: tuple[str, str | Path],
    out: str | Path,
    *,
    store: str | Path = "runs",
    settings: Mapping[str, Any] | None = None,
    license: str = "",  # noqa: A002  the word of the command line and of the hub
    held_out: bool = True,
    overwrite: bool = False,
    pool: Pool | None = None,
    threads: int = 1,
    device: str | None = None,
) -> tuple[Model, Comparison]:
    """Fit a model with one more domain by the recipe of another, and compare both.

    Parameters
    ----------
    dataset
        The data of the older model.
    like
        The folder of the older model, which stays as it is.
    add
        The name of the new domain, and its labelled samples; see `read_labelled`.
    out
        The folder of the new model.
    settings
        Settings that replace those of the recipe.
    store, license, held_out, overwrite, pool, threads, device
        As in `fit`.
    """
    path = Path(out).expanduser()
    check_output_folder(path, overwrite=overwrite)
    old = load(like, device=device)
    if old.about.estimate is None:
        raise SpecError(f"{like}: was fitted without an estimate, so there is nothing to compare")
    request = read_recipe(old.about, str(dataset))
    request = replace(request, settings={**(request.settings or {}), **(settings or {})})
    name, data = add
    found = find_dataset(dataset)
    label = label_column(found, data)
    deployed = old.adapted() if old.about.adaptation else old
    before = evaluate(deployed, data, label=label).overall.accuracy
    joined = join_data(found, old, name, data, path, overwrite=overwrite)
    request = replace(request, dataset=joined)
    model = fit(
        joined,
        request.method,
        path,
        store=store,
        average=request.average,
        classes=request.classes,
        finetune=request.finetune,
        start=request.start,
        adapt=request.adapt,
        ensemble=request.ensemble,
        settings=request.settings,
        trials=request.protocol.trials,
        hold_out=request.protocol.hold_out,
        held_out=held_out,
        license=license,
        overwrite=overwrite,
        pool=pool,
        threads=threads,
        device=device,
    )
    opened = open_store(store)
    record = opened.get(plan_fit(request, opened).run)
    return model, _compare(old.about, model.about, name, before, record)


def read_recipe(about: Description, dataset: str) -> FitRequest:
    """What a model was fitted with, from the command and the run in its description."""
    run = about.run
    if run is None or about.merged or run.experts:
        raise SpecError(
            f"{about.name}: is a merge, which has no recipe to fit again; name a method"
        )
    words = shlex.split(about.command)
    method = words[3] if words[:2] == ["afield", "fit"] and len(words) > 3 else ""
    if not method or method.startswith("-"):
        raise SpecError(f"{about.name}: was not made by `afield fit`; name a method instead")
    if method == BEST:
        return FitRequest(
            dataset, run.method, run.average, dict(run.given),
            ensemble=len(run.members) or None, adapt=about.adaptation,
        )  # fmt: skip
    options, settings, finetune = _read_options(words[4:])
    return FitRequest(
        dataset,
        method,
        options.get("average", "last"),
        settings,
        protocol=Protocol(trials=options.get("trials", 1), hold_out=options.get("hold-out", 0.0)),
        classes=options.get("classes"),
        finetune=finetune,
        start=options.get("start", ""),
        adapt=options.get("adapt", ""),
        ensemble=options.get("ensemble"),
    )


def _read_options(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], bool | None]:
    """The options of a recipe, its settings, and whether a network was fine-tuned."""
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    finetune = next((FLAGS[word] for word in words if word in FLAGS), None)
    for option, value in pairwise(words):
        kind = RECIPE_OPTIONS.get(option.removeprefix("--")) if option.startswith("--") else None
        if kind is None:
            continue
        if option == "--set":
            key, _, text = value.partition("=")
            settings[key] = text
        else:
            options[option.removeprefix("--")] = kind(value)
    return options, settings, finetune


def label_column(dataset: DomainSet, data: str | Path) -> str:
    """The column of labels of the data, if the table of the new domain has it too; or empty."""
    label = split_spec(dataset.spec)[1].label
    path = Path(data).expanduser()
    return label if label and is_table(path) and label in read_frame(path).columns else ""


def join_data(
    dataset: DomainSet, old: Model, name: str, data: str | Path, out: Path, *, overwrite: bool
) -> str:
    """Write the data of both beside the new model; return what `find_dataset` finds them by."""
    if name in dataset.domains or not name or "/" in name:
        raise SpecError(
            f"--add {name}=…: {dataset.name} has such a domain already; choose another name"
            if name in dataset.domains
            else f"--add {name}=…: not a name of a domain"
        )
    samples = read_labelled(data, old.about.inputs, label=label_column(dataset, data))
    origin, choice = split_spec(dataset.spec)
    place = out.absolute()
    if is_table(Path(origin)):
        file = place.with_name(f"{place.name}-data.csv")
        check_output(file, overwrite=overwrite)
        _join_tables(Path(origin), dataset, samples, name, file)
        return f"{file}{choice.query}"
    domains = dataset.load()
    if all(domain.folder for domain in domains.values()):
        folder = place.with_name(f"{place.name}-data")
        _link_files(dataset, domains, samples, name, folder, overwrite=overwrite)
        return str(folder)
    file = place.with_name(f"{place.name}-data.npz")
    check_output(file, overwrite=overwrite)
    _join_arrays(dataset, domains, samples, name, file)
    return str(file)


def _join_tables(
    origin: Path, dataset: DomainSet, samples: LabelledSamples, name: str, out: Path
) -> None:
    import pandas as pd

    from afield.data.sources.tables import find_columns

    frame = read_frame(origin)
    columns = find_columns(frame, split_spec(dataset.spec)[1], str(origin))
    fresh = samples.samples
    if not isinstance(fresh, pd.DataFrame):
        raise DataError(f"{dataset.name}: is a table; give the new domain as a table as well")
    fresh = fresh.assign(**{columns.label: list(samples.labels), columns.domain: name})
    # Types of labels differ if one table has numbers and the other texts.
    frame[columns.label] = frame[columns.label].astype(str)
    missing = [each for each in frame.columns if each not in fresh.columns]
    joined = pd.concat([frame, fresh[[c for c in frame.columns if c not in missing]]])
    _write(out, lambda temporary: joined.to_csv(temporary, index=False))


def _join_arrays(
    dataset: DomainSet, domains: Mapping[str, Any], samples: LabelledSamples, name: str, out: Path
) -> None:
    x = [domain.x[:].numpy() for domain in domains.values()]
    fresh = np.asarray(samples.samples)
    if fresh.shape[1:] != x[0].shape[1:]:
        x = [_plain(each) for each in x]
    if fresh.shape[1:] != x[0].shape[1:]:
        raise DataError(
            f"samples of shape {fresh.shape[1:]}; those of {dataset.name} have {x[0].shape[1:]}"
        )
    labels = [dataset.classes[label] for d in domains.values() for label in d.y.tolist()]
    names = [each for each, domain in domains.items() for _ in range(len(domain.y))]
    arrays: dict[str, Any] = {
        "X": np.concatenate([*x, fresh.astype(x[0].dtype)]),
        "y": np.array([*labels, *samples.labels]),
        "domain": np.array([*names, *[name] * len(samples.labels)]),
    }

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)

    _write(out, save)


def _plain(x: Any) -> Any:
    """Images with channels last, or without channels if there is one."""
    return x[:, 0] if x.ndim == 4 and x.shape[1] == 1 else np.moveaxis(x, 1, -1)


def _link_files(
    dataset: DomainSet,
    domains: Mapping[str, Any],
    samples: LabelledSamples,
    name: str,
    out: Path,
    *,
    overwrite: bool,
) -> None:
    if out.exists() and not overwrite:
        raise SpecError(f"{out}: exists already; give another --out, or --force to replace it")
    if any(domain.test is not None for domain in domains.values()):
        raise SpecError(
            f"{dataset.name}: has lists of test files, which a new domain does not have"
        )
    links: dict[Path, Path] = {}
    for each, domain in domains.items():
        for file, label in zip(domain.names, domain.y.tolist(), strict=True):
            place = Path(each, dataset.classes[label])
            links[_free(links, place / Path(file).name)] = Path(domain.folder, file).absolute()
    for file, label in zip(samples.samples, samples.labels, strict=True):
        links[_free(links, Path(name, label, Path(file).name))] = Path(file).absolute()
    try:
        with atomic_write(out, folder=True) as folder:
            for link, target in links.items():
                (folder / link).parent.mkdir(parents=True, exist_ok=True)
                (folder / link).symlink_to(target)
    except OSError as error:
        raise SpecError(
            f"{out}: cannot be written ({error.strerror}); give another --out"
        ) from None


def _free(links: Mapping[Path, Path], place: Path) -> Path:
    """The place of a link, or one with a number if it is taken."""
    number = 2
    free = place
    while free in links:
        free = place.with_name(f"{place.stem}-{number}{place.suffix}")
        number += 1
    return free


def _write(out: Path, write: Any) -> None:
    try:
        with atomic_write(out) as temporary:
            write(temporary)
    except OSError as error:
        raise SpecError(
            f"{out}: cannot be written ({error.strerror}); give another --out"
        ) from None


def _compare(
    old: Description, new: Description, name: str, before: float, record: Record | None
) -> Comparison:
    first, second = old.estimate, new.estimate
    assert first is not None
    after = second.domains if second else {}
    both = {each: (v, after[each]) for each, v in first.domains.items() if each in after}
    trained = None
    if record is not None:
        best = max(record.candidates, key=lambda each: selection_value(each, record.run))
        score = best.score(name, "probe")
        trained = score.accuracy if score else None
    return Comparison(name, both, before, after.get(name), trained)
