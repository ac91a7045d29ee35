"""A model in use: loaded from its folder, it answers for files and arrays, and says how surely.

confidence   the greatest of softmax(logits / T), with the temperature that fits unseen domains
distance     how far the sample lies from what was trained on, in the features (`distances`)
percentile   where that distance lies among those of samples of held-out domains, 0 to 100
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afield import registry
from afield.data.samples import Prepare
from afield.deployment.distances import Distances
from afield.deployment.file_batches import FileBatch, find_files, read_file_batches
from afield.deployment.model_folder import DESCRIPTION_FILE, WEIGHTS_FILE, Description, read_model
from afield.errors import AfieldError, DataError, SpecError
from afield.hyperparameters import build, with_neutral
from afield.networks.backbone import network
from afield.networks.features import capture_features
from afield.progress import progress
from afield.registry import hint
from afield.training.calibration import percentile_ranks
from afield.training.method import Method, Task
from afield.training.optimizers import optimizer_factory

__all__ = ["Model", "Prediction", "build_network", "load", "load_weights"]

# Samples that go through the network at once.
BATCH_SIZE = 64
# Numbers may be finite, and yet too large to be scaled, or for the network.
OVERFLOW_MESSAGE = "the network gives no finite number for it; its values are too large"

ModelInput = str | Path | NDArray[Any] | Tensor | Sequence[str | Path]


@dataclass(frozen=True)
class Prediction:
    """The answer for one sample; or, where it could not be read, the `error`.

    `distance` and `percentile` are None where the folder of the model does not know them.
    """

    file: str
    label: str = ""
    confidence: float | None = None
    distance: float | None = None
    percentile: float | None = None
    probabilities: tuple[float, ...] = ()
    error: str = ""


class Model:
    """A trained classifier: `module` is a plain network in evaluation mode, for prepared samples.

    `about` is all that is known of it. `predict` gives names of classes, `predict_proba` calibrated
    probabilities, `predictions` both and more, one by one.
    """

    def __init__(
        self,
        about: Description,
        module: nn.Module,
        distances: Distances | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        self.about = about
        self.device = torch.device(device)
        self.module = module.to(self.device).eval()
        self.distances = distances
        self._prepare: Prepare = about.inputs.prepare

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the probabilities."""
        return self.about.classes

    @property
    def temperature(self) -> float:
        """What logits are divided by: 1 where nothing is known of unseen domains."""
        return self.about.calibration.temperature if self.about.calibration else 1.0

    @property
    def domains(self) -> tuple[str, ...]:
        """The source domains that it can be told; mostly none."""
        return tuple(getattr(self.module, "domains", ()))

    def predict(
        self, what: ModelInput, *, domain: str | None = None, batch: int = BATCH_SIZE
    ) -> NDArray[np.str_]:
        """The class of every sample; `what` are paths of files or folders, or an array."""
        best = self.predict_proba(what, domain=domain, batch=batch).argmax(axis=1)
        return np.array(self.classes)[best]

    def predict_proba(
        self, what: ModelInput, *, domain: str | None = None, batch: int = BATCH_SIZE
    ) -> NDArray[np.float64]:
        """The probability of every class for every sample, calibrated for unseen domains."""
        found = []
        for prediction in self.predictions(what, domain=domain, batch=batch):
            if prediction.error:
                raise DataError(f"{prediction.file}: {prediction.error}")
            found.append(prediction.probabilities)
        return np.array(found).reshape(-1, len(self.classes))

    def predictions(
        self, what: ModelInput, *, domain: str | None = None, batch: int = BATCH_SIZE
    ) -> Iterator[Prediction]:
        """One answer after the other, as batches are done.

        Parameters
        ----------
        what
            Paths of files, or of folders with files at any depth; or an array or tensor of samples.
        domain
            The source that all samples are from, where the model can use that.
        batch
            Samples that go through the network at once.
        """
        number = self.domain_index(domain)
        if batch < 1:
            raise SpecError(f"batch={batch}: at least one sample")
        if isinstance(what, np.ndarray | Tensor):
            x = self.about.inputs.samples(what)
            for start in range(0, len(x), batch):
                rows = x[start : start + batch]
                names = [f"[{start + i}]" for i in range(len(rows))]
                yield from self._answers(FileBatch(names, [""] * len(rows), rows), number)
            return
        files = find_files(_paths(what), self.about.inputs.suffixes)
        with progress("predicting", len(files)) as advance:
            for portion in read_file_batches(self.about.inputs, files, batch):
                yield from self._answers(portion, number)
                advance(portion.files)

    def domain_index(self, domain: str | None) -> int | None:
        """The number of a source domain that the model can be told."""
        if domain is None:
            return None
        if not self.domains:
            raise SpecError(f"{self.about.name} cannot use a known domain; leave --domain out")
        if domain not in self.domains:
            raise SpecError(f"{self.about.name} knows no domain {domain!r}; "
                            f"{hint(domain, self.domains)}")  # fmt: skip
        return self.domains.index(domain)

    def threshold(self, share: float) -> float:
        """The confidence below which this share of the samples of held-out domains lies."""
        if not 0 <= share <= 1:
            raise SpecError(f"abstain={share:g}: a share of the predictions, from 0 to 1")
        if self.about.calibration is None:
            raise SpecError(
                f"{self.about.name}: nothing is known of unseen domains, so none can be marked; "
                "fit it without --no-estimate"
            )
        known = self.about.calibration.confidences
        return float(np.interp(share, np.linspace(0, 1, len(known)), known))

    def logits_and_features(self, x: Tensor, domain: int | None = None) -> tuple[Tensor, Tensor]:
        """What the network makes of stored samples: its outputs, and what its head takes."""
        told = () if domain is None else (domain,)
        with capture_features(self.module) as noted, torch.inference_mode():
            logits = self.module(self._prepare(x).to(self.device), *told).float().cpu()
        return logits, torch.cat(noted.features).float()

    def _answers(self, portion: FileBatch, domain: int | None) -> Iterator[Prediction]:
        rows: Iterator[tuple[Any, ...]] = iter(())
        if portion.x is not None:
            logits, features = self.logits_and_features(portion.x, domain)
            probabilities = (logits.double() / self.temperature).softmax(dim=1)
            best = probabilities.max(dim=1)
            distances, places = self._placed(features)
            columns = (best.indices.tolist(), best.values.tolist(), distances, places)
            rows = zip(*columns, probabilities.tolist(), strict=True)
        for name, error in zip(portion.names, portion.errors, strict=True):
            if error:
                yield Prediction(name, error=error)
                continue
            number, confidence, distance, place, every = next(rows)
            if not math.isfinite(confidence):
                # It would be an answer, and not even below a threshold.
                yield Prediction(name, error=OVERFLOW_MESSAGE)
                continue
            yield Prediction(name, self.classes[number], confidence, distance, place, tuple(every))

    def _placed(self, features: Tensor) -> tuple[list[Any], list[Any]]:
        """The distances of samples and their percentiles, as far as they are known."""
        nothing = [None] * len(features)
        if self.distances is None:
            return nothing, nothing
        found = self.distances(features).double().numpy()
        if self.about.calibration is None:
            return found.tolist(), nothing
        return found.tolist(), percentile_ranks(found, self.about.calibration.distances).tolist()


def load(folder: str | Path, *, device: str | None = None) -> Model:
    """The model in a folder that `fit` has written; nothing in the folder is run.

    `device` is where it computes, by default the CPU.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as place:
    ...     options = {"store": f"{place}/runs", "settings": {"steps": 20}, "estimate": False}
    ...     fitted = afield.fit("spirals", "erm", f"{place}/model", **options)
    ...     model = afield.load(f"{place}/model")
    >>> model.classes
    ('first', 'second')
    """
    path = Path(folder).expanduser()
    about, weights, distances = read_model(path)
    try:
        module = build_network(about)
    except AfieldError as error:
        raise DataError(f"{path / DESCRIPTION_FILE}: {error}") from None
    load_weights(module, weights, path / WEIGHTS_FILE)
    try:
        return Model(about, module, distances, device=device or "cpu")
    # What torch raises for a device that it does not know, was not built for, or does not find.
    except (RuntimeError, AssertionError) as error:
        raise SpecError(
            f"device {device!r} cannot be used ({str(error).splitlines()[0]}); give another, as cpu"
        ) from None


def build_network(about: Description) -> nn.Module:
    """The network that is described, with random weights; nothing is downloaded."""
    told, shape = about.architecture, tuple(about.inputs.shape)
    # The caller's random numbers stay as they are.
    with torch.random.fork_rng(devices=[]):
        net: nn.Module = network(told.backbone, shape, len(about.classes), freeze_bn=told.freeze_bn)
        if told.wrapper:
            kind = registry.find("methods", told.wrapper)
            method: Method = build(kind, with_neutral(kind, told.params))
            task = Task(
                sources=about.sources,
                classes=about.classes,
                steps=1,
                network=lambda outputs: network(told.backbone, shape, outputs),
                optimizer=optimizer_factory("", lr=1e-3, weight_decay=0.0),
                shape=shape,
            )
            net = method.setup(net, task).model
    return net.eval()


def load_weights(module: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Put the weights in, if they are those of this very network."""
    own = module.state_dict()
    missing = [name for name in own if name not in weights]
    more = [name for name in weights if name not in own]
    other = [name for name in own if name in weights and own[name].shape != weights[name].shape]
    for names, told in ((missing, "lacks"), (more, "has besides"), (other, "has in another shape")):
        if names:
            raise DataError(
                f"{path}: not the weights of the network in {DESCRIPTION_FILE}; it "
                f"{told} {names[0]}" + f" and {len(names) - 1} more" * (len(names) > 1)
            )
    module.load_state_dict(weights)


def _paths(what: Any) -> list[Path]:
    if isinstance(what, str | Path):
        return [Path(what)]
    if isinstance(what, Iterable):
        paths = list(what)
        if all(isinstance(path, str | Path) for path in paths):
            return [Path(path) for path in paths]
    raise SpecError("give paths of files or folders, or one array of samples")
