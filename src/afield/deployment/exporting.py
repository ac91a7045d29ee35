"""Export of a model for other programs, as ONNX or with torch.export, checked before it is kept.

    x              float32, n × channels × height × width (or n × features), any n: samples at the
                   network's size, as stored (images from 0 to 255), not yet scaled
    logits         n × classes
    probabilities  n × classes: softmax(logits / T), with the temperature of the model

A model for texts takes two inputs instead of x:

    input_ids       int64, n × tokens, any n and any number of tokens up to that of the model
    attention_mask  int64, n × tokens: 1 for a token, 0 for padding

The export includes scaling, temperature and softmax. It does not include reading files, resizing
images (which rounds to bytes, as no operator of ONNX does), the tokenizer, or the distance. For
images, ``predict_onnx.py`` beside an ONNX file does the rest. A model that can use the domain label
is exported for unknown domains.
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from afield.deployment.model import Model, load
from afield.errors import AfieldError, SpecError
from afield.files import atomic_write, check_output
from afield.networks.inference import BatchPredictor

ExportFormat = Literal["onnx", "torch"]
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
# The largest allowed difference from the model, and the batch sizes to check it with.
TOLERANCE = 1e-4
CHECKED_BATCH_SIZES = (1, 2, 7)

# The program that is written beside an exported model for images.
SCRIPT = Path(__file__).with_name("predict_onnx.py")

log = logging.getLogger(__name__)

ExportedForward = Callable[..., tuple[Tensor, Tensor]]


def export(
    model: str | Path | Model,
    to: ExportFormat = "onnx",
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Write a model in a format that other programs read, and check that it gives the same results.

    Parameters
    ----------
    model
        A model folder, or a loaded model.
    to
        ``onnx``, or ``torch`` for torch.export.
    out
        The file to write; by default beside the model folder, with its name. Beside an ONNX file
        for images, ``predict_onnx.py`` is written as well.
    overwrite
        Whether an existing file may be replaced.
    """
    if to not in get_args(ExportFormat):
        raise SpecError(f"cannot export to {to!r}; give {' or '.join(get_args(ExportFormat))}")
    path = _output_path(model, to, out, overwrite=overwrite)
    writer = {"onnx": _write_onnx, "torch": _write_program}[to]
    loaded = load(model) if isinstance(model, str | Path) else model
    if isinstance(loaded.module, BatchPredictor):
        raise SpecError(
            f"{loaded.about.name}: {loaded.about.architecture.wrapper or 'an adapted model'} "
            "predicts from batches of unlabelled samples, which an exported function of one sample "
            "cannot; use afield predict, or another method"
        )
    if loaded.about.adaptation:
        raise SpecError(
            f"{loaded.about.name}: was fitted to adapt to the files it predicts "
            f"({loaded.about.adaptation}), which an exported function of one sample cannot; use "
            "afield predict, or fit it with --adapt none"
        )
    if reason := loaded.about.inputs.modality.no_export:
        raise SpecError(f"{loaded.about.name}: {reason}")
    deployed = _deploy(loaded)
    with atomic_write(path) as temporary, _silence_exporters(), torch.no_grad():
        try:
            exported = writer(deployed, loaded, temporary)
        except (AfieldError, OSError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise SpecError(
                f"{loaded.about.name}: {loaded.about.architecture.backbone} cannot be exported to "
                f"{to} ({reason}); use another network"
            ) from error
        _check_same(deployed, exported, loaded, to)
    if to == "onnx" and loaded.about.inputs.modality.resizable:
        _write_script(path.parent / SCRIPT.name, overwrite=overwrite)
    return path


def _write_script(path: Path, *, overwrite: bool) -> None:
    """Write the program that decodes images and runs the exported file, unless there is one."""
    content = SCRIPT.read_text(encoding="utf-8")
    if path.exists() and not overwrite:
        if path.is_dir() or path.read_text(encoding="utf-8") != content:
            log.warning("%s: exists already and is kept; --force replaces it", path)
        return
    with atomic_write(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def _output_path(
    model: str | Path | Model, to: ExportFormat, out: str | Path | None, *, overwrite: bool
) -> Path:
    if out is None and isinstance(model, Model):
        raise SpecError("give `out`, the file to write: a loaded model has no folder")
    if out is None:
        folder = Path(str(model)).expanduser()
        folder = folder if folder.name not in ("", "..") else folder.resolve()
        out = folder.with_name(folder.name + SUFFIXES[to])
    path = Path(out).expanduser()
    if path.suffix != SUFFIXES[to]:
        raise SpecError(f"{path}: the suffix of {to} files is {SUFFIXES[to]}; use it")
    check_output(path, overwrite=overwrite)
    return path


def _deploy(model: Model) -> nn.Module:
    """The network to export, on the CPU, whatever device the loaded model uses."""
    # A copy, so that the loaded model stays on its device.
    module = copy.deepcopy(model.module).cpu()
    for layer in module.modules():
        # The results are the same, but torch takes several times as long to trace inplace layers.
        if getattr(layer, "inplace", False):
            layer.inplace = False  # type: ignore[assignment]
    inputs = model.about.inputs
    return inputs.modality.export_network(inputs, module, model.temperature).eval()


def _example(model: Model, count: int) -> tuple[Tensor, ...]:
    """Random samples of the kind that the model takes."""
    return model.about.inputs.modality.export_example(model.about.inputs, count)


def _write_program(deployed: nn.Module, model: Model, path: Path) -> ExportedForward:
    shapes = _dynamic_shapes(model)
    # Two samples: with one, torch would take the batch size for a constant.
    program = torch.export.export(deployed, _example(model, 2), dynamic_shapes=shapes)
    _forget_places(program.graph_module)
    # In memory first: on a full disk, torch's writer would abort the process.
    content = io.BytesIO()
    torch.export.save(program, content, extra_files=_metadata(model))
    path.write_bytes(content.getbuffer())
    content.seek(0)
    exported: Any = torch.export.load(content).module()
    return exported


def _write_onnx(deployed: nn.Module, model: Model, path: Path) -> ExportedForward:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  imported by torch.onnx.export
    except ImportError as error:
        raise SpecError(
            f"ONNX needs a package that is missing ({error}); pip install 'afield[onnx]'"
        ) from None
    shapes = _dynamic_shapes(model)
    program = torch.onnx.export(
        deployed,
        _example(model, 2),
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=list(shapes),
        output_names=["logits", "probabilities"],
        verbose=False,
    )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    for node in program.model.graph.all_nodes():
        # Lines of code with the absolute paths of this installation.
        node.metadata_props.clear()
        node.doc_string = None
    program.model.metadata_props.update(_metadata(model))
    program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*values: Tensor) -> tuple[Tensor, Tensor]:
        arrays = [value.numpy() for value in values]
        named = dict(zip(shapes, arrays, strict=True))
        logits, probabilities = session.run(None, named)
        return torch.from_numpy(logits), torch.from_numpy(probabilities)

    return run


def _forget_places(module: torch.fx.GraphModule) -> None:
    """Remove the lines of code behind each operation, which have absolute paths of this machine."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
            node.stack_trace = None


def _dynamic_shapes(model: Model) -> dict[str, dict[int, Any]]:
    """The axes of every input that may have any length."""
    axes = model.about.inputs.modality.export_form(model.about.inputs).axes
    return {name: dict.fromkeys(each, torch.export.Dim.DYNAMIC) for name, each in axes.items()}


def _metadata(model: Model) -> dict[str, str]:
    """The metadata of the exported file."""
    return {
        "classes": json.dumps(model.classes),
        "temperature": repr(model.temperature),
        "name": model.about.name,
        **model.about.inputs.modality.export_metadata(model.about.inputs),
    }


def _check_same(
    deployed: nn.Module, exported: ExportedForward, model: Model, to: ExportFormat
) -> None:
    """Raise unless the export gives the same results as the network, for several batch sizes."""
    for count in CHECKED_BATCH_SIZES:
        x = _example(model, count)
        try:
            pairs = list(zip(exported(*x), deployed(*x), strict=True))
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise SpecError(f"{to}: the export fails for a batch of {count} ({reason})") from error
        for actual, expected in pairs:
            # Relative to large logits; probabilities are at most 1.
            allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
            difference = float((actual - expected).abs().max())
            if actual.shape != expected.shape or not difference <= allowed:
                raise SpecError(
                    f"{to}: the export differs by {difference:.1e} for a batch of {count}; it is "
                    "not kept"
                )


@contextmanager
def _silence_exporters() -> Iterator[None]:
    """Suppress the warnings and logs of the exporters, which are about their own code."""
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
