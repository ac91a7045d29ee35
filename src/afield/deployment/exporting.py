"""A model for other programs: as ONNX, or as a program of torch.export; compared before it is kept.

    x              float32, n × channels × height × width (or n × features), any n: samples at the
                   network's size, as they are stored (pictures from 0 to 255), not yet scaled
    logits         n × classes
    probabilities  n × classes: softmax(logits / T), with the temperature of the model

Scaling, temperature and softmax are in it. Reading files is not, nor is the resizing of pictures,
nor the distance; a model that can be told the domain is exported for unknown ones.
"""

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from afield.data.scaling import Scaling
from afield.deployment.model import Model, load
from afield.errors import AfieldError, SpecError
from afield.files import atomic_write

__all__ = ["TOLERANCE", "DeployedNetwork", "ExportFormat", "export"]

ExportFormat = Literal["onnx", "torch"]
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
# How far what is exported may be off, and the batches with which that is tried.
TOLERANCE = 1e-4
CHECKED_BATCH_SIZES = (1, 2, 7)

ExportedForward = Callable[[Tensor], tuple[Tensor, Tensor]]


class DeployedNetwork(nn.Module):
    """A network with what comes before and after it: scaling, temperature and softmax."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, scaling: Scaling, temperature: float) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mean", scaling.mean)
        self.register_buffer("std", scaling.std)
        self.temperature = temperature

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and probabilities of samples that are not scaled yet."""
        logits = self.module((x - self.mean) / self.std)
        return logits, (logits / self.temperature).softmax(dim=1)


def export(
    model: str | Path | Model,
    to: ExportFormat = "onnx",
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Write a model in a form that other programs read, if it gives the same there.

    Parameters
    ----------
    model
        The folder of a model, or a loaded one.
    to
        ``onnx``, or ``torch`` for torch.export.
    out
        The file to write; by default beside the folder, with its name.
    overwrite
        Whether a file that is there may be replaced.
    """
    if to not in get_args(ExportFormat):
        raise SpecError(f"cannot export to {to!r}; {' or '.join(get_args(ExportFormat))}")
    path = _place(model, to, out, overwrite=overwrite)
    writer = {"onnx": _onnx, "torch": _program}[to]
    loaded = load(model) if isinstance(model, str | Path) else model
    # In their own memory layout and on the CPU, whatever the loaded model is used for.
    ready = _ready(loaded)
    with atomic_write(path) as part, _quiet(), torch.no_grad():
        try:
            run = writer(ready, loaded, part)
        except AfieldError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            name = loaded.about.architecture.backbone
            told = f"{name} cannot be exported to {to} ({type(error).__name__}: {reason})"
            raise SpecError(f"{loaded.about.name}: {told}; use another network") from error
        _compare(ready, run, loaded, to)
    return path


def _place(
    model: str | Path | Model, to: ExportFormat, out: str | Path | None, *, overwrite: bool
) -> Path:
    if out is None and isinstance(model, Model):
        raise SpecError("give `out`, a file to write: a loaded model has no folder")
    if out is None:
        folder = Path(str(model)).expanduser()
        folder = folder if folder.name not in ("", "..") else folder.resolve()
        out = folder.with_name(folder.name + SUFFIXES[to])
    path = Path(out).expanduser()
    if path.suffix != SUFFIXES[to]:
        raise SpecError(f"{path}: {to} goes to a file {SUFFIXES[to]}; name it so")
    if path.exists() and (path.is_dir() or not overwrite):
        raise SpecError(f"{path}: is there already; give another --out, or --force to replace it")
    return path


def _ready(model: Model) -> DeployedNetwork:
    inputs = model.about.inputs
    scaling = Scaling(inputs.scale(inputs.mean), inputs.scale(inputs.std))
    # A copy: the loaded model stays where it computes.
    module = copy.deepcopy(model.module).cpu()
    for each in module.modules():
        # In place or not, numbers are the same; torch takes several times as long to trace it.
        if getattr(each, "inplace", False):
            each.inplace = False  # type: ignore[assignment]
    return DeployedNetwork(module, scaling, model.temperature).eval()


def _example(model: Model, count: int) -> Tensor:
    """Samples of the kind that the model takes, at random."""
    generator = torch.Generator().manual_seed(count)
    noise = torch.randn(count, *model.about.inputs.shape, generator=generator)
    inputs = model.about.inputs
    x = noise * inputs.scale(inputs.std) + inputs.scale(inputs.mean)
    return x.clamp(0, 255).round() if inputs.dtype == "uint8" else x


def _program(ready: DeployedNetwork, model: Model, part: Path) -> ExportedForward:
    # The length of a batch of one would be taken for a constant.
    given = (_example(model, 2),)
    program = torch.export.export(ready, given, dynamic_shapes=_shapes())
    with part.open("wb") as file:
        torch.export.save(program, file, extra_files=_told(model))
    with part.open("rb") as file:
        again: Any = torch.export.load(file).module()
    return again


def _onnx(ready: DeployedNetwork, model: Model, part: Path) -> ExportedForward:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  torch imports it on the way
    except ImportError as error:
        raise SpecError(
            f"ONNX: a package is needed ({error}); pip install 'afield[onnx]'"
        ) from None
    program = torch.onnx.export(
        ready,
        (_example(model, 2),),
        dynamo=True,
        dynamic_shapes=_shapes(),
        input_names=["x"],
        output_names=["logits", "probabilities"],
        verbose=False,
    )
    if program is None:
        raise RuntimeError("torch gives no program")
    program.model.metadata_props.update(_told(model))
    program.save(part, external_data=False)
    session = onnxruntime.InferenceSession(part, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        logits, probabilities = session.run(None, {"x": x.numpy()})
        return torch.from_numpy(logits), torch.from_numpy(probabilities)

    return run


def _shapes() -> dict[str, dict[int, Any]]:
    return {"x": {0: torch.export.Dim.DYNAMIC}}


def _told(model: Model) -> dict[str, str]:
    """What goes into the file beside the network."""
    return {
        "classes": json.dumps(model.classes),
        "temperature": repr(model.temperature),
        "name": model.about.name,
    }


def _compare(ready: DeployedNetwork, run: ExportedForward, model: Model, to: ExportFormat) -> None:
    """Refuse what is not the same network, or only for one length of a batch."""
    for count in CHECKED_BATCH_SIZES:
        x = _example(model, count)
        try:
            pairs = list(zip(run(x), ready(x), strict=True))
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise SpecError(f"{to}: fails for a batch of {count} ({reason})") from error
        for found, expected in pairs:
            # Logits may be large; of probabilities 1 is the most.
            least = TOLERANCE * max(1.0, float(expected.abs().max()))
            off = float((found - expected).abs().max())
            if found.shape != expected.shape or not off <= least:
                raise SpecError(f"{to}: off by {off:.1e} for a batch of {count}; nothing is kept")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' notes, which are about their own code."""
    names = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "torch._dynamo")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
