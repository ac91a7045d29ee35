"""The model folder: all that is needed to use a model, and no code.

    model.safetensors      the weights, as a plain state dict
    distance.safetensors   where the sources lie in its features (see `strangeness`), if known
    held_out.safetensors   outputs for held-out domains (see `held_out`), if they are kept
    encoder/               configuration and tokenizer of an encoder of texts (see `EncoderFiles`)
    model.json             everything else: `Description`
    adapter_config.json, adapter_model.safetensors
                           in place of the weights, if the folder has an adapter of a base
    README.md              the model card, the same for people (see `model_card`)

The folder is written under a temporary name and renamed, so it is complete or absent. When it is
read, the hashes of its files must be those in model.json. That detects accidents, and
files that were changed without their hash. Even if both are changed, no code can run: only JSON and
safetensors are read, and the network is one of afield's, built by its name.


Its weights are among those of the model. In memory, a description has the paths of these files. On
disk it has names without paths, and whatever they are, the files of the folder are used: reading a
model neither downloads an encoder nor looks at another folder.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from afield.data.bag_of_words import NGRAMS
from afield.data.inputs import Inputs
from afield.deployment.distances import MAHALANOBIS
from afield.deployment.held_out import DomainOutputs, from_tensors, to_tensors
from afield.deployment.model_files import (
    ADAPTER_FILES,
    CARD_FILE,
    DESCRIPTION_FILE,
    DISTANCES_FILE,
    ENCODER_FILES,
    HELD_OUT_FILE,
    WEIGHTS_FILE,
    check_model_folder,
    file_inside,
    is_model_folder,
)
from afield.deployment.prediction_sets import check_quantiles
from afield.deployment.strangeness import BACKGROUND, BANK, NEIGHBORS, Strangeness, check_score
from afield.errors import DataError, SpecError
from afield.files import atomic_write, read_json_object, read_text, sha256, unwritable_reason
from afield.networks.backbone import find_backbone
from afield.runs.run import Run, name_without_path
from afield.studies.benchmark import MAX_MEMBERS
from afield.training.calibration import TEMPERATURE_RANGE

FORMAT_VERSION = 1
# More than any network has; a description that asks for more is not valid.
MAX_FEATURES = 2**20
# How often the prediction interval of an estimate should hold the accuracy on one more domain.
PREDICTION_LEVEL = 0.9
# The log-odds of a higher accuracy say more about the number of samples than about the domain.
MAX_ACCURACY = 0.995


@dataclass(frozen=True)
class FrozenEncoder:
    """The frozen network in front of a model that was trained on its features.

    `features` is their number, and `weights` the digest of its tensors.
    """

    backbone: str
    features: int
    weights: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.features <= MAX_FEATURES:
            raise SpecError(f"features={self.features}: not the number of features of a network")


@dataclass(frozen=True)
class Architecture:
    """The network: its backbone, and the method whose wrapper it is in, if any.

    With an `encoder`, the inputs are images, and the backbone gets their features. `members` is the
    number of such networks in an ensemble; 0 means that there is one.
    """

    backbone: str
    freeze_bn: bool = False
    wrapper: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    encoder: FrozenEncoder | None = None
    members: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.members <= MAX_MEMBERS:
            raise SpecError(f"members={self.members}: an ensemble has at most {MAX_MEMBERS}")


@dataclass(frozen=True)
class Base:
    """The network that an adapter changes: its name, its first weights, and a digest of these.

    `weights` is ``hub`` or the name of a file.
    """

    backbone: str
    weights: str
    digest: str


@dataclass(frozen=True)
class Selection:
    """How a recipe was chosen among several, and what choosing cost.

    `accuracy` is the mean accuracy on left-out domains by which the recipe was chosen. `cost` is
    how far it is above the nested estimate, for which the recipe is chosen again without each
    domain. `runs` has, for each domain, the keys of the runs of the recipe that is chosen without
    it; `same` are the domains without which the deployed recipe is chosen. With `twins`, the choice
    without a domain used only runs that were not trained on it.
    """

    accuracy: float
    cost: float
    runs: Mapping[str, tuple[str, ...]]
    same: tuple[str, ...] = ()
    twins: bool = False


@dataclass(frozen=True)
class Estimate:
    """The accuracy to expect on unseen domains, from runs with domains held out.

    `domains` has the accuracy on each held-out domain, averaged over trials. `accuracy` and `worst`
    are the mean and the minimum over domains within a trial, averaged over trials. `in_domain` is
    the accuracy on the source domains. `stderr` is the standard error of `accuracy` over trials,
    `spread` the standard deviation over domains. `recipes` is the number of recipes among which
    this one was chosen; `selection` says how. If `recipes` is above 1 without a `selection`, as in
    folders of earlier versions, the numbers are those by which the recipe was chosen.
    """

    accuracy: float
    worst: float
    in_domain: float
    domains: Mapping[str, float]
    trials: int
    stderr: float | None = None
    spread: float | None = None
    recipes: int = 1
    selection: Selection | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 90 % prediction interval for one more domain; None with one domain."""
        return self.prediction_interval(PREDICTION_LEVEL)

    def prediction_interval(self, level: float) -> tuple[float, float] | None:
        """The ends of the prediction interval of a level; None with one domain.

        Student's t on the log-odds of the accuracies, with a degree of freedom less than there are
        domains, so that few domains give a wide interval::

            log-odds = mean ± t · standard deviation · √(1 + 1 / domains)
        """
        from scipy import special

        count = len(self.domains)
        if count < 2:
            return None
        shares = np.clip(list(self.domains.values()), 1 - MAX_ACCURACY, MAX_ACCURACY)
        odds = special.logit(shares)
        quantile = special.stdtrit(count - 1, (1 + level) / 2)
        reach = quantile * odds.std(ddof=1) * math.sqrt(1 + 1 / count)
        low, high = odds.mean() - reach, odds.mean() + reach
        # Accuracies beyond the limits were not told apart, so none of them is excluded.
        least, greatest = special.logit([1 - MAX_ACCURACY, MAX_ACCURACY])
        return (
            float(special.expit(low)) if low > least else 0.0,
            float(special.expit(high)) if high < greatest else 1.0,
        )


@dataclass(frozen=True)
class Calibration:
    """Confidence and distance on held-out domains, each from a model that was not trained on it.

    `confidences` and `distances` are quantiles in equal steps, from the smallest to the largest;
    domains have the same weight. `error_before` is the expected calibration error with temperature
    1, `error_after` with the fitted temperature, on the same samples. `separations` has, for each
    held-out domain, the AUROC with which the distance separates its samples from those of the
    sources' validation splits, averaged over trials; folders of earlier versions have none.
    `confidence_auroc` and `distance_auroc` have the AUROC with which a low confidence, or a large
    distance, tells wrong predictions from right ones, for each held-out domain that has both.
    `score` is the score of strangeness that was chosen (see `strangeness`), `strangeness` has its
    quantiles, and `score_auroc` the mean of this AUROC for each score. `conformity` has,
    for each held-out domain, the quantiles with which prediction sets are made.
    """

    temperature: float
    confidences: tuple[float, ...]
    distances: tuple[float, ...]
    samples: int
    error_before: float
    error_after: float
    separations: Mapping[str, float] = field(default_factory=dict)
    confidence_auroc: Mapping[str, float] = field(default_factory=dict)
    distance_auroc: Mapping[str, float] = field(default_factory=dict)
    score: str = MAHALANOBIS
    strangeness: tuple[float, ...] = ()
    score_auroc: Mapping[str, float] = field(default_factory=dict)
    conformity: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        low, high = TEMPERATURE_RANGE
        check_score(self.score)
        check_quantiles(self.conformity)
        if not 0.99 * low <= self.temperature <= 1.01 * high:
            raise SpecError(f"temperature={self.temperature}: must be between {low} and {high}")
        known = (self.strangeness,) if self.strangeness else ()
        for values in (self.confidences, self.distances, *known):
            finite = all(map(math.isfinite, values))
            if len(values) < 2 or not finite or list(values) != sorted(values):
                raise SpecError("quantiles must be at least two numbers in rising order")


@dataclass(frozen=True)
class Description:
    """All that is known about a model; the content of model.json.

    `run` is the training, without the paths of data and initial weights. `merged` says how the
    weights were merged from others, if they were. `adaptation` is the test-time adaptation that the
    model is meant for, and that the estimate is about; empty for most models. `base` is set if the
    folder has an adapter instead of the weights. `held_out` are the domains whose outputs are kept,
    `statistics` has means of properties of the inputs of every training domain (see
    `input_statistics`), and `files` has the SHA-256 of the safetensors files.
    """

    name: str
    classes: tuple[str, ...]
    sources: tuple[str, ...]
    inputs: Inputs
    architecture: Architecture
    versions: Mapping[str, str]
    command: str
    run: Run | None = None
    merged: Mapping[str, Any] = field(default_factory=dict)
    adaptation: str = ""
    adaptation_params: Mapping[str, Any] = field(default_factory=dict)
    license: Annotated[str, Field(alias="licence")] = ""
    estimate: Estimate | None = None
    calibration: Calibration | None = None
    base: Base | None = None
    held_out: tuple[str, ...] = ()
    statistics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise SpecError("classes must be at least two different names")


FAMILY = "hf:"
CONFIG, TOKENIZER = ENCODER_FILES
# Values of a configuration that name code, or the place where it was read.
DROPPED_VALUES = ("auto_map", "_name_or_path")


def without_paths(about: Description) -> Description:
    """The description as it is written to the disk, and shown on the card."""
    run = about.run
    if run is not None:
        given = {
            name: name_without_path(value) if name == "backbone" else value
            for name, value in run.given.items()
        }
        run = replace(run, backbone=name_without_path(run.backbone), given=given)
    inputs = about.inputs
    if _encoder_name(about):
        inputs = replace(inputs, tokenizer=TOKENIZER)
    return replace(about, run=run, inputs=inputs, architecture=_renamed(about, name_without_path))


def locate_encoder(about: Description, folder: Path) -> Description:
    """The description with the paths of the encoder's files in a model folder; checks the files."""
    if not _encoder_name(about):
        if about.inputs.tokenizer not in ("", NGRAMS):
            raise DataError(f"{folder}: has a tokenizer without its encoder; get the folder again")
        return about
    for name in ENCODER_FILES:
        _check_file(about, folder, name)
    home = file_inside(folder, CONFIG).absolute().parent

    def located(backbone: str) -> str:
        options = backbone.partition("?")[2]
        here = f"{FAMILY}{home}{f'?{options}' if options else ''}"
        return here if backbone.startswith(FAMILY) else backbone

    inputs = replace(about.inputs, tokenizer=str(home / Path(TOKENIZER).name))
    return replace(about, inputs=inputs, architecture=_renamed(about, located))


def copy_encoder(about: Description, folder: Path) -> tuple[str, ...]:
    """Copy configuration and tokenizer of a model's encoder to its folder; return their names."""
    name = _encoder_name(about)
    if not name:
        return ()
    tokenizer = Path(find_backbone(name).tokenizer)
    content = read_json_object(tokenizer.with_name(Path(CONFIG).name))
    (folder / CONFIG).parent.mkdir()
    kept = {key: value for key, value in content.items() if key not in DROPPED_VALUES}
    (folder / CONFIG).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    (folder / TOKENIZER).write_bytes(tokenizer.read_bytes())
    return ENCODER_FILES


def _encoder_name(about: Description) -> str:
    """The encoder of texts in a model: its backbone, or the frozen network in front; or empty."""
    spec = about.architecture
    names = (spec.backbone, spec.encoder.backbone if spec.encoder else "")
    return next((name for name in names if name.startswith(FAMILY)), "")


def _renamed(about: Description, rename: Any) -> Architecture:
    spec = about.architecture
    front = spec.encoder and replace(spec.encoder, backbone=rename(spec.encoder.backbone))
    return replace(spec, backbone=rename(spec.backbone), encoder=front)


def _check_file(about: Description, folder: Path, name: str) -> None:
    """Raise unless a file of the encoder is in the folder, unchanged, and names no code."""
    path = file_inside(folder, name)
    try:
        changed = sha256(path) != about.files.get(name)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if changed:
        raise DataError(f"{path}: its SHA-256 is not the one in model.json; get the folder again")
    if name == CONFIG and "auto_map" in read_json_object(path):
        raise DataError(f"{path}: names code (auto_map), which is never run; get another model")


# Far more than any valid description.
MAX_DESCRIPTION_BYTES = 64 * 2**20

_DESCRIPTION = TypeAdapter(Description)


def check_output_folder(out: Path, *, overwrite: bool = False) -> None:
    """Raise before any work if a model cannot be written there, or something would be lost."""
    if out.name in ("", ".."):
        raise SpecError(f"{out}: not the name of a folder; give a new folder")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise SpecError(f"{out}: is a file or a link; give a folder to write the model to")
    if out.exists() and any(out.iterdir()):
        if not is_model_folder(out):
            raise SpecError(f"{out}: exists and is not a model folder; give a new folder")
        if not overwrite:
            raise SpecError(f"{out}: exists already; give a new folder, or --force to replace it")
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        reason = unwritable_reason(existing)
        raise SpecError(f"{out}: cannot be written ({reason}); give another folder")


def write_model(
    out: Path,
    description: Description,
    weights: Mapping[str, Tensor],
    strangeness: Strangeness | None,
    card: str,
    *,
    held_out: Sequence[DomainOutputs] = (),
    overwrite: bool = False,
    config: Mapping[str, Any] | None = None,
) -> Description:
    """Write a complete model folder or nothing; return the description with its hashes.

    If the description has a base, `weights` are an adapter, and `config` is its configuration.
    """
    check_output_folder(out, overwrite=overwrite)
    description = replace(description, held_out=tuple(domain.name for domain in held_out))
    kept = ADAPTER_FILES[1] if description.base else WEIGHTS_FILE
    tensors = {kept: {name: value.cpu().contiguous() for name, value in weights.items()}}
    if strangeness is not None:
        tensors[DISTANCES_FILE] = strangeness.tensors()
    if held_out:
        tensors[HELD_OUT_FILE] = to_tensors(held_out)
    try:
        with atomic_write(out, durable=True, folder=True) as folder:
            for name, content in tensors.items():
                (folder / name).write_bytes(save(content, metadata={"format": "pt"}))
            if config is not None:
                text = json.dumps(config, indent=1, sort_keys=True) + "\n"
                (folder / ADAPTER_FILES[0]).write_text(text, encoding="utf-8")
            configured = ADAPTER_FILES[:1] if config is not None else ()
            files = (*tensors, *configured, *copy_encoder(description, folder))
            hashed = replace(description, files={name: sha256(folder / name) for name in files})
            fields = _DESCRIPTION.dump_python(without_paths(hashed), mode="json", by_alias=True)
            # What is None in a run was added later; other folders do not have it.
            if fields["run"] is not None:
                fields["run"] = {k: v for k, v in fields["run"].items() if v is not None}
            fields = {k: v for k, v in fields.items() if k != "base" or v is not None}
            text = json.dumps(fields, indent=1) + "\n"
            (folder / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
            (folder / CARD_FILE).write_text(card, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"{out}: cannot be written ({error.strerror}); give another folder"
        ) from None
    return hashed


def read_model(folder: Path) -> tuple[Description, dict[str, Tensor], Strangeness | None]:
    """Read and check the description, weights and strangeness of a model; no code is run.

    If the description has a base, the weights are those of an adapter.
    """
    check_model_folder(folder)
    description = read_description(folder)
    kept = ADAPTER_FILES[1] if description.base else WEIGHTS_FILE
    if kept not in description.files:
        raise DataError(f"{folder / DESCRIPTION_FILE}: has no hash of {kept}; get the folder again")
    weights = _read_tensors(folder, kept, description.files[kept])
    if name := _encoder_name(description):
        find_backbone(name).check_size(weights)
    if DISTANCES_FILE not in description.files:
        return description, weights, None
    tensors = _read_tensors(folder, DISTANCES_FILE, description.files[DISTANCES_FILE])
    kind = description.calibration.score if description.calibration else MAHALANOBIS
    return description, weights, _to_strangeness(folder / DISTANCES_FILE, tensors, kind)


def read_held_out(folder: Path, about: Description) -> list[DomainOutputs]:
    """The outputs for held-out domains in a model folder; empty if they are not kept."""
    if not about.held_out or not (folder / HELD_OUT_FILE).exists():
        return []
    tensors = _read_tensors(folder, HELD_OUT_FILE, about.files.get(HELD_OUT_FILE, ""))
    where = str(folder / HELD_OUT_FILE)
    return from_tensors(tensors, about.held_out, len(about.classes), where)


def read_description(folder: Path) -> Description:
    """Read and check the description in a model folder."""
    path = file_inside(folder, DESCRIPTION_FILE)
    if path.stat().st_size > MAX_DESCRIPTION_BYTES:
        raise DataError(f"{path}: too large to describe a model; get the folder again")
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable JSON ({error}); get the folder again") from None
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        later = isinstance(version, int) and version > FORMAT_VERSION
        problem = f"has format {version}, from a later afield" if later else "not from afield"
        raise DataError(f"{path}: {problem}; this version reads format {FORMAT_VERSION}")
    try:
        about: Description = _DESCRIPTION.validate_python(content)
    except (ValidationError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            field_name = ".".join(map(str, first["loc"]))
            message = first["msg"].removeprefix("Value error, ")
            reason = f"{field_name}: {message}" if field_name else message
        raise DataError(f"{path}: not a valid description of a model ({reason})") from None
    return locate_encoder(about, folder)


def _read_tensors(folder: Path, name: str, expected_hash: str) -> dict[str, Tensor]:
    path = file_inside(folder, name)
    try:
        unchanged = sha256(path) == expected_hash
        tensors = load_file(path) if unchanged else {}
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path}: not readable safetensors ({error}), and no other format is read"
        ) from None
    if not unchanged:
        raise DataError(
            f"{path}: its SHA-256 is not the one in {DESCRIPTION_FILE}, so it was changed or cut "
            "short; get the folder again"
        )
    bad = next((key for key, value in tensors.items() if not value.isfinite().all()), None)
    if bad is not None:
        raise DataError(f"{path}: NaN or infinity in {bad}; fit the model again")
    return tensors


def _to_strangeness(path: Path, tensors: Mapping[str, Tensor], kind: str) -> Strangeness:
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    needed = {"relative": (f"{BACKGROUND}centres", f"{BACKGROUND}whitening"), NEIGHBORS: (BANK,)}
    names = {"centres", "whitening", *needed.get(kind, ()), *({BANK} & set(shapes))}
    wide = shapes.get("centres", (0, 0))
    width = wide[-1] if wide else 0
    # Centers and samples are rows of features; whitening turns features into others.
    valid = all(len(shape) == 2 and shape[0] and shape[1] == width for shape in shapes.values())
    square = all(
        shapes[name] == (width, width)
        for name in names
        if name.endswith("whitening") and name in shapes
    )
    if set(shapes) != names or not valid or not square:
        raise DataError(f"{path}: not the distances of a model; get the folder again")
    return Strangeness.from_tensors(tensors, kind)
