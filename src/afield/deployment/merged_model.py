"""Merging models into a model folder: like the folder of a fitted model, but without an estimate.

A merge has weights and no data, so there is no estimate, no temperature and no distance. Classes
and scaling come from a model `like` it. The merged models must have the same classes and scaling,
as far as their folders say.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from afield.data.scaling import TableScaling
from afield.deployment.fitting import describe_model
from afield.deployment.model import Model, build_network, load, load_weights
from afield.deployment.model_card import render_card
from afield.deployment.model_files import WEIGHTS_FILE, is_model_folder
from afield.deployment.model_folder import (
    Description,
    check_output_folder,
    read_description,
    write_model,
)
from afield.errors import MergeError
from afield.merging.files import FileMerge
from afield.merging.job import MergeJob
from afield.runs.finished import reopen
from afield.runs.run_files import read_record, read_run_inputs
from afield.studies.commands import write_command


def merge_model(
    how: str,
    base: str | Path,
    experts: Sequence[str | Path],
    out: str | Path,
    *,
    like: str | Path | None = None,
    scale: float = 1.0,
    statistics: Sequence[str | Path] = (),
    overwrite: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    **params: Any,
) -> Model:
    """Merge models into a model folder, ready for `load` and ``afield predict``.

    Parameters
    ----------
    how, base, experts, scale, statistics, workers, device, params
        As in `merge_files`. Models may also be model folders that `fit` has written, or folders of
        runs in a store.
    out
        The folder to write.
    like
        The model folder, or the folder of a run, whose network, classes and inputs the result has;
        by default the base.
    overwrite
        Whether the folder of another model may be replaced.
    """
    models, files = tuple(map(Path, experts)), tuple(map(Path, statistics))
    request = FileMerge(how, Path(base), models, scale, files, params, device)
    path = Path(out).expanduser()
    write_merged_model(request, path, Path(like or base), overwrite=overwrite, workers=workers)
    return load(out)


def write_merged_model(
    request: FileMerge,
    out: Path,
    like: Path,
    *,
    overwrite: bool = False,
    workers: int | None = None,
) -> MergeJob:
    """Merge models and write a model folder."""
    check_output_folder(out, overwrite=overwrite)
    about = _describe_like(like)
    paths = (request.base, *request.experts)
    inputs = [facts for path in paths if (facts := _InputModel.of(path)) is not None]
    for model in inputs:
        model.check_same(about, like)
    plain = replace(
        request,
        base=_weights_path(request.base),
        experts=tuple(map(_weights_path, request.experts)),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / WEIGHTS_FILE
        job = plain.write(file, workers=workers)
        weights = load_file(file)
        with safe_open(file, "pt") as handle:
            provenance = json.loads(handle.metadata()["afield"])
        network = build_network(about)
        load_weights(network, weights, out)
    bad = next((name for name, value in weights.items() if not torch.isfinite(value).all()), None)
    if bad is not None:
        raise MergeError(f"{bad}: NaN or infinity in the merged model; nothing is written")
    experts = [model for model in inputs if model.path in request.experts]
    merged = replace(
        about,
        name=f"{about.run.dataset if about.run else about.name}-{request.how}",
        sources=_merged_sources(about, experts),
        merged=provenance,
        estimate=None,
        calibration=None,
        command=_command(request, like, out),
    )
    write_model(out, merged, network.state_dict(), None, render_card(merged), overwrite=overwrite)
    return job


@dataclass(frozen=True)
class _InputModel:
    """What the folder of a merged model says about its classes, scaling and sources."""

    path: Path
    classes: tuple[str, ...]
    scaling: dict[str, Any]
    sources: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> "_InputModel | None":
        """Read a model folder or the folder of a run; None for other files."""
        if is_model_folder(path):
            about = read_description(path)
            scaling = _scaling(vars(about.inputs))
            return cls(path, tuple(about.classes), scaling, about.sources)
        if _is_run_folder(path):
            content = read_run_inputs(path)
            scaling = _scaling(content)
            sources = read_record(path).run.sources
            return cls(path, tuple(content["classes"]), scaling, sources)
        return None

    def check_same(self, about: Description, like: Path) -> None:
        """Raise if classes or scaling differ from those of the model `like`."""
        if self.classes != tuple(about.classes):
            raise MergeError(f"{self.path}: has other classes than {like}; they cannot be merged")
        if self.scaling != _scaling(vars(about.inputs)):
            raise MergeError(
                f"{self.path}: scales its inputs differently from {like}; they cannot be merged"
            )


def _scaling(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The scaling of a model's inputs in a form that can be compared."""
    columns = tuple(inputs.get("table") or ())
    if columns and isinstance(columns[0], Mapping):
        columns = TableScaling.from_dict({"table": columns}).columns
    return {"mean": tuple(inputs["mean"]), "std": tuple(inputs["std"]), "table": columns}


def _describe_like(path: Path) -> Description:
    if is_model_folder(path):
        return read_description(path)
    if not _is_run_folder(path):
        raise MergeError(
            f"{path}: has no classes and inputs; give --like with a model folder, or the folder of "
            "a run in a store"
        )
    return describe_model(reopen(path), path)


def _is_run_folder(path: Path) -> bool:
    return (path / "record.json").exists()


def _weights_path(path: Path) -> Path:
    """The file of weights in a model folder or run folder; other paths unchanged."""
    return path / WEIGHTS_FILE if is_model_folder(path) or _is_run_folder(path) else path


def _merged_sources(about: Description, experts: Sequence[_InputModel]) -> tuple[str, ...]:
    """The sources of all experts, without duplicates."""
    sources = tuple(dict.fromkeys(name for expert in experts for name in expert.sources))
    # A wrapper has a mask or a head for each of its own sources.
    return about.sources if about.architecture.wrapper or not sources else sources


def _command(request: FileMerge, like: Path, out: Path) -> str:
    """The command that makes the same model again."""
    # The model card may be published, and paths do not belong in it.
    names = [Path(path).name for path in (request.base, *request.experts)]
    options: list[tuple[str, Any]] = [
        *(("set", f"{name}={value}") for name, value in request.params.items()),
        ("scale", "" if request.scale == 1.0 else f"{request.scale:g}"),
        ("like", like.name),
        ("out", out.name),
    ]
    return write_command("merge", request.how, *names, options=options)
