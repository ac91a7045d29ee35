"""Merged models in use: the same folder as that of a fitted one, but nothing is known of its worth.

A merge sees weights and no data: there is no estimate, no temperature and no distance. Classes and
scaling come from a model `like` it, and must be those of all models that go in, as far as they say.
"""

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from afield.deployment.fitting import describe_model
from afield.deployment.model import Model, build_network, load, load_weights
from afield.deployment.model_card import render_card
from afield.deployment.model_folder import (
    WEIGHTS_FILE,
    Description,
    check_output_folder,
    is_model_folder,
    read_description,
    write_model,
)
from afield.errors import MergeError
from afield.experiments.finished import reopen
from afield.experiments.store import read_record, read_run_inputs
from afield.merging.files import FileMerge
from afield.merging.job import MergeJob

__all__ = ["merge_model", "write_merged_model"]


def merge_model(
    how: str,
    base: str | Path,
    experts: Sequence[str | Path],
    out: str | Path,
    *,
    like: str | Path | None = None,
    scale: float = 1.0,
    overwrite: bool = False,
    workers: int = 1,
    **params: Any,
) -> Model:
    """Merge models into the folder of a model, ready for `load` and ``afield predict``.

    Parameters
    ----------
    how, base, experts, scale, params
        As in `merge_files`; models may also be given as folders that `fit` has written, or as
        folders of runs in a store.
    out
        The folder to write.
    like
        A model of the same network, classes and inputs: a folder of either kind; by default the
        base.
    overwrite, workers
        Whether the folder of another model may be replaced; processes, as in `merge_files`.
    """
    asked = FileMerge(how, Path(base), tuple(map(Path, experts)), scale, (), params)
    write_merged_model(asked, Path(out).expanduser(), Path(like or base), overwrite=overwrite,
                 workers=workers)  # fmt: skip
    return load(out)


def write_merged_model(
    request: FileMerge, out: Path, like: Path, *, overwrite: bool = False, workers: int = 1
) -> MergeJob:
    """Merge, and write the folder of a model."""
    check_output_folder(out, overwrite=overwrite)
    about = _like(like)
    paths = (request.base, *request.experts)
    known = [told for path in paths if (told := _known(path)) is not None]
    _check_alike(about, known, like)
    plain = replace(
        request, base=_weights(request.base), experts=tuple(map(_weights, request.experts))
    )
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / WEIGHTS_FILE
        job = plain.write(file, workers=workers)
        weights = load_file(file)
        with safe_open(file, "pt") as opened:
            account = json.loads(opened.metadata()["afield"])
        network = build_network(about)
        load_weights(network, weights, out)
    bad = next((name for name, value in weights.items() if not torch.isfinite(value).all()), None)
    if bad is not None:
        raise MergeError(f"{bad}: NaN or infinity in the merged model; nothing is written")
    merged = _described(about, request, account, known, out, like)
    write_model(out, merged, network.state_dict(), None, render_card(merged), overwrite=overwrite)
    return job


def _like(path: Path) -> Description:
    if is_model_folder(path):
        return read_description(path)
    if not (path / "record.json").exists():
        raise MergeError(
            f"{path}: says neither classes nor inputs; give --like and the folder of a model, or "
            "of a run in a store"
        )
    return describe_model(reopen(path), path)


def _known(path: Path) -> dict[str, Any] | None:
    """What a folder says of its model, as far as merging is concerned."""
    if is_model_folder(path):
        about = read_description(path)
        told = {"classes": about.classes, "mean": about.inputs.mean, "std": about.inputs.std}
        return {**told, "sources": about.sources, "path": path}
    if (path / "record.json").exists():
        told = {key: tuple(read_run_inputs(path)[key]) for key in ("classes", "mean", "std")}
        return {**told, "sources": read_record(path).run.sources, "path": path}
    return None


def _check_alike(about: Description, known: list[dict[str, Any]], like: Path) -> None:
    expected = {"classes": about.classes, "mean": about.inputs.mean, "std": about.inputs.std}
    for told in known:
        for name, value in expected.items():
            if tuple(told[name]) != tuple(value):
                what = "other classes" if name == "classes" else "inputs scaled in another way"
                raise MergeError(f"{told['path']}: has {what} than {like}; they cannot be merged")


def _weights(path: Path) -> Path:
    """The file of weights in a folder of ours; others are as they are."""
    ours = is_model_folder(path) or (path / "record.json").exists()
    return path / WEIGHTS_FILE if ours else path


def _described(
    about: Description,
    asked: FileMerge,
    account: Mapping[str, Any],
    known: list[dict[str, Any]],
    out: Path,
    like: Path,
) -> Description:
    experts = [told["sources"] for told in known if told["path"] in asked.experts]
    sources = tuple(dict.fromkeys(name for each in experts for name in each))
    words = ["afield", "merge", asked.how, str(asked.base), *map(str, asked.experts)]
    for name, value in asked.params.items():
        words += ["--set", f"{name}={value}"]
    words += [] if asked.scale == 1.0 else ["--scale", f"{asked.scale:g}"]
    dataset = about.run.dataset if about.run else about.name
    return replace(
        about,
        name=f"{dataset}-{asked.how}",
        # A wrapper has a mask or a head for each of its own.
        sources=about.sources if about.architecture.wrapper or not sources else sources,
        merged=dict(account),
        estimate=None,
        calibration=None,
        command=shlex.join([*words, "--like", str(like), "--out", str(out)]),
    )
