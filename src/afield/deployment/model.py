"""A model in use: loaded from its folder, it predicts the classes of files and arrays.

Each prediction has

    confidence   the largest of softmax(logits / T), with the temperature T for unseen domains
    distance     how far the sample is from the training data, in the features (`distances`)
    percentile   the rank of that distance among samples of held-out domains, 0 to 100
    strangeness  the same rank by the score that warns best of wrong predictions (`strangeness`)
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afield import own_code, registry
from afield.compute import preserve_torch_state
from afield.data.file_batches import FileBatch
from afield.data.listing import HUB_PREFIX
from afield.data.samples import Prepare
from afield.deployment.adapter_folder import complete_weights
from afield.deployment.held_out import DomainOutputs
from afield.deployment.hub import fetch_model
from afield.deployment.model_files import DESCRIPTION_FILE, WEIGHTS_FILE
from afield.deployment.model_folder import Description, read_held_out, read_model
from afield.deployment.prediction_sets import PredictionSets, select_classes
from afield.deployment.predictions import Prediction
from afield.deployment.strangeness import Strangeness
from afield.errors import AfieldError, DataError, SpecError
from afield.hyperparameters import build, with_neutral
from afield.networks.backbone import network
from afield.networks.ensemble import make_ensemble
from afield.networks.features import capture_features
from afield.networks.fitted_heads import adopt_arrays
from afield.networks.inference import BatchPredictor
from afield.registry import hint
from afield.tensors import check_values
from afield.training.adaptation import Adaptation
from afield.training.calibration import percentile_ranks
from afield.training.learner import Task
from afield.training.method import Method
from afield.training.optimizers import optimizer_factory

if TYPE_CHECKING:
    from afield.deployment.evaluation import Evaluation
    from afield.deployment.new_domain import NewDomain


class EncodedNetwork(nn.Module):
    """A network on the scaled features of a frozen one; it takes the frozen one's inputs."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, features: int, network: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = network
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))

    @property
    def domains(self) -> tuple[str, ...]:
        """The domain labels that the network can use."""
        return tuple(getattr(self.network, "domains", ()))

    def forward(self, x: Tensor, *label: int) -> Tensor:
        """Logits of prepared images."""
        features = (self.encoder(x) - self.mean) / self.std
        return self.network(features, *label)


class _AdaptedEncoding(BatchPredictor):
    """An encoded network whose part behind the frozen encoder adapts to unlabelled samples."""

    def __init__(self, encoded: EncodedNetwork, adapted: BatchPredictor) -> None:
        super().__init__()
        self.encoded, self.adapted = encoded, adapted
        encoded.network = adapted

    def reset(self) -> None:
        """Forget all samples seen so far."""
        self.adapted.reset()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of prepared images."""
        return self.encoded(x)


def adapt_network(module: nn.Module, adaptation: Adaptation) -> BatchPredictor:
    """The network with a test-time adaptation of the part that was trained; it owns the network."""
    if not isinstance(module, EncodedNetwork):
        return adaptation.predictor(module)
    return _AdaptedEncoding(module, adaptation.predictor(module.network))


def build_network(about: Description) -> nn.Module:
    """Build the described network with random weights; nothing is downloaded."""
    own_code.check(_needed_code(about), about.name)
    encoder, shape = about.architecture.encoder, tuple(about.inputs.shape)
    if encoder is None:
        return _build_members(about, shape)
    net = _build_members(about, (encoder.features,))
    with preserve_torch_state(cuda=False):
        front = network(encoder.backbone, shape, 1).features
        return EncodedNetwork(front, encoder.features, net).eval()


def _build_members(about: Description, shape: tuple[int, ...]) -> nn.Module:
    """The network for inputs of this shape, or an ensemble of several."""
    members = [_build_on(about, shape) for _ in range(max(1, about.architecture.members))]
    return make_ensemble(members).eval() if about.architecture.members else members[0]


def _build_on(about: Description, shape: tuple[int, ...]) -> nn.Module:
    """The network for inputs of this shape."""
    spec = about.architecture
    # The caller's random state is restored.
    with preserve_torch_state(cuda=False):
        net: nn.Module = network(spec.backbone, shape, len(about.classes), freeze_bn=spec.freeze_bn)
        if spec.wrapper:
            kind = registry.find("methods", spec.wrapper)
            method: Method = build(kind, with_neutral(kind, spec.params))
            task = Task(
                sources=about.sources,
                classes=about.classes,
                steps=1,
                network=lambda outputs: network(spec.backbone, shape, outputs),
                optimizer=optimizer_factory("", lr=1e-3, weight_decay=0.0),
                shape=shape,
            )
            net = method.setup(net, task).model
    return net.eval()


def _needed_code(about: Description) -> dict[str, str]:
    """Digests of the user's own code without which the network cannot be built."""
    kinds = ("backbones", "methods") if about.architecture.wrapper else ("backbones",)
    code = about.run.code if about.run else {}
    return {name: digest for name, digest in code.items() if name.partition("/")[0] in kinds}


def load_weights(module: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load weights into a network; raise unless names and shapes are exactly the network's."""
    try:
        adopt_arrays(module, weights)
    except SpecError as error:
        raise DataError(f"{path}: {error}; get the folder again") from None
    state = module.state_dict()
    missing = [name for name in state if name not in weights]
    extra = [name for name in weights if name not in state]
    other = [n for n in state if n in weights and state[n].shape != weights[n].shape]
    problems = ((missing, "lacks"), (extra, "has in addition"), (other, "has in another shape"))
    for names, problem in problems:
        if names:
            raise DataError(
                f"{path}: not the weights of the network in {DESCRIPTION_FILE}; it "
                f"{problem} {names[0]}" + f" and {len(names) - 1} more" * (len(names) > 1)
            )
    check_values(str(path), state, weights)
    module.load_state_dict(weights)


# The number of samples that go through the network at once.
BATCH_SIZE = 64
# How many names of classes are shown.
MAX_NAMES = 5
# The percentile of a sample that is farther from the sources than any held-out sample.
OUT_OF_RANGE_PERCENTILE = 100
# Values may be finite, and yet too large for the scaling or the network.
OVERFLOW_MESSAGE = "the network's outputs are not finite; the values of this sample are too large"

ModelInput = str | Path | NDArray[Any] | Tensor | pd.DataFrame | Sequence[str | Path]


class Model:
    """A trained classifier.

    `predict` returns names of classes, `predict_proba` calibrated probabilities, and `predictions`
    yields both and more, sample by sample. `about` describes the model. `module` is the network in
    evaluation mode; it takes prepared samples.
    """

    def __init__(
        self,
        about: Description,
        module: nn.Module,
        strangeness: Strangeness | None = None,
        *,
        device: str | torch.device = "cpu",
        folder: Path | None = None,
    ) -> None:
        self.about = about
        self.device = torch.device(device)
        self.module = module.to(self.device).eval()
        self.strangeness = strangeness
        self.folder = folder
        self._prepare: Prepare = about.inputs.prepare

    def __repr__(self) -> str:
        names = ", ".join(self.classes[:MAX_NAMES]) + ", …" * (len(self.classes) > MAX_NAMES)
        return f"<Model {self.about.name}: {len(self.classes)} classes ({names}) on {self.device}>"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the probabilities."""
        return self.about.classes

    @cached_property
    def held_out(self) -> list[DomainOutputs]:
        """The outputs for held-out domains; empty if the folder does not have them."""
        return read_held_out(self.folder, self.about) if self.folder else []

    @property
    def temperature(self) -> float:
        """The number that divides the logits; 1 if the model is not calibrated."""
        return self.about.calibration.temperature if self.about.calibration else 1.0

    @property
    def domains(self) -> tuple[str, ...]:
        """The source domains that can be given to `predict`; for most models none."""
        return tuple(getattr(self.module, "domains", ()))

    def adapted(self, adaptation: str = "", settings: Mapping[str, Any] | None = None) -> "Model":
        """A copy of the model that uses the other samples of a prediction, without their labels.

        Every call of `predict`, `predict_proba` or `predictions` starts afresh. Give it samples of
        one domain, in mixed order. Its confidences are not calibrated.

        Parameters
        ----------
        adaptation
            Name of a test-time adaptation, such as ``t3a``; by default the one that the model was
            fitted for (`about.adaptation`).
        settings
            Its settings, such as ``{"t3a.keep": 20}``.
        """
        if not adaptation and self.about.adaptation:
            adaptation, params = self.about.adaptation, self.about.adaptation_params
            settings = {f"{adaptation}.{k}": v for k, v in params.items()} | dict(settings or {})
        kind = registry.find("adaptations", adaptation)
        other = [name for name in settings or {} if not name.startswith(f"{adaptation}.")]
        if other:
            raise SpecError(f"{other[0]}: no setting of {adaptation}; write {adaptation}.NAME")
        values = {name.partition(".")[2]: value for name, value in (settings or {}).items()}
        module = adapt_network(copy.deepcopy(self.module), build(kind, values, adaptation))
        about = replace(self.about, calibration=None)
        return Model(about, module, self.strangeness, device=self.device, folder=self.folder)

    def predict(
        self, inputs: ModelInput, *, domain: str | None = None, batch: int = BATCH_SIZE
    ) -> NDArray[np.str_]:
        """Predict the class of every sample; the parameters are those of `predictions`."""
        best = self.predict_proba(inputs, domain=domain, batch=batch).argmax(axis=1)
        return np.array(self.classes)[best]

    def predict_proba(
        self, inputs: ModelInput, *, domain: str | None = None, batch: int = BATCH_SIZE
    ) -> NDArray[np.float64]:
        """Predict the probability of every class, calibrated for unseen domains.

        The parameters are those of `predictions`. A sample that cannot be read is an error.
        """
        rows = []
        for prediction in self.predictions(inputs, domain=domain, batch=batch):
            if prediction.error:
                raise DataError(f"{prediction.file}: {prediction.error}")
            rows.append(prediction.probabilities)
        return np.array(rows).reshape(-1, len(self.classes))

    def predictions(
        self,
        inputs: ModelInput,
        *,
        domain: str | None = None,
        batch: int = BATCH_SIZE,
        text: str = "",
    ) -> Iterator[Prediction]:
        """Yield a `Prediction` for every sample, batch by batch.

        Parameters
        ----------
        inputs
            Paths of files, or of folders with files at any depth; or an array, tensor or data
            frame of samples. For a model of texts, strings are texts and `Path` objects are files.
        domain
            The source domain of all samples, for models that can use the domain label.
        batch
            The number of samples that go through the network at once.
        text
            The column of a table with the texts, by default that of the training data.
        """
        index = self.domain_index(domain)
        if batch < 1:
            raise SpecError(f"batch={batch}: must be at least 1")
        if isinstance(self.module, BatchPredictor):
            self.module.reset()
        modality = self.about.inputs.modality
        if text and not modality.has_tokens:
            raise SpecError(f"{self.about.name} takes no texts; leave --text out")
        for samples in modality.batches(self.about.inputs, inputs, batch, text):
            yield from self._predict_batch(samples, index)

    def evaluate(self, data: Any, *, label: str = "", domain: str = "") -> "Evaluation":
        """Evaluate the model on labelled samples; the parameters are those of `evaluate`."""
        from afield.deployment.evaluation import evaluate

        return evaluate(self, data, label=label, domain=domain)

    def estimate(self, inputs: ModelInput, *, text: str = "") -> "NewDomain":
        """Estimate the accuracy on samples without labels; the parameters are `predictions`'."""
        from afield.deployment.new_domain import estimate

        return estimate(self, inputs, text=text)

    def domain_index(self, domain: str | None) -> int | None:
        """The index of a source domain; None for None."""
        if domain is None:
            return None
        if not self.domains:
            raise SpecError(f"{self.about.name} cannot use a domain label; leave --domain out")
        if domain not in self.domains:
            raise SpecError(
                f"{self.about.name} has no source domain {domain!r}; {hint(domain, self.domains)}"
            )
        return self.domains.index(domain)

    def threshold(self, share: float) -> float:
        """The confidence below which this share of the samples of held-out domains lies."""
        if not 0 <= share <= 1:
            raise SpecError(f"abstain={share:g}: must be a share of the predictions, from 0 to 1")
        if self.about.calibration is None:
            raise SpecError(
                f"{self.about.name}: was never tested on held-out domains, so it cannot abstain; "
                "fit it without --no-estimate"
            )
        quantiles = self.about.calibration.confidences
        return float(np.interp(share, np.linspace(0, 1, len(quantiles)), quantiles))

    @property
    def sets(self) -> PredictionSets:
        """What prediction sets are made with."""
        conformity = self.about.calibration.conformity if self.about.calibration else {}
        if not conformity:
            raise SpecError(
                f"{self.about.name}: its folder has no quantiles for prediction sets; fit it with "
                "this version of afield, without --no-estimate"
            )
        return PredictionSets(conformity)

    def predict_sets(self, inputs: ModelInput, *, coverage: float = 0.9) -> list[tuple[str, ...]]:
        """The classes among which the true one of each sample probably is.

        `coverage` is the share of the samples of held-out domains whose set has the true class,
        averaged over the domains. The most probable class comes first.
        """
        threshold, _ = self.sets.thresholds(coverage)
        chosen = [select_classes(row, threshold) for row in self.predict_proba(inputs).tolist()]
        return [tuple(self.classes[index] for index in indices) for indices in chosen]

    def logits_and_features(self, x: Tensor, domain: int | None = None) -> tuple[Tensor, Tensor]:
        """The network's outputs for samples as stored, and the features that its head takes."""
        label = () if domain is None else (domain,)
        # A batch predictor may learn from the batch, in several passes: the last one counts.
        by_batch = isinstance(self.module, BatchPredictor)
        with (
            capture_features(self.module) as captured,
            torch.no_grad() if by_batch else torch.inference_mode(),
        ):
            logits = self.module(self._prepare(x).to(self.device), *label).float().cpu()
        return logits, captured.features[-1].float()

    def scores_of(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """The distance of samples, and their rank of strangeness, where the folder has them."""
        if self.strangeness is None:
            return {}
        scores = {"distance": self.strangeness.classes(features)}
        if self.about.calibration and self.about.calibration.strangeness:
            values = self.strangeness(features, logits).double().numpy()
            ranks = percentile_ranks(values, self.about.calibration.strangeness)
            scores["strangeness"] = torch.from_numpy(ranks)
        return scores

    def _predict_batch(self, batch: FileBatch, domain: int | None) -> Iterator[Prediction]:
        rows: Iterator[tuple[Any, ...]] = iter(())
        if batch.x is not None:
            logits, features = self.logits_and_features(batch.x, domain)
            probabilities = (logits.double() / self.temperature).softmax(dim=1)
            best = probabilities.max(dim=1)
            ranks = self._distances(features, logits)
            columns = (best.indices.tolist(), best.values.tolist(), *ranks)
            rows = zip(*columns, probabilities.tolist(), strict=True)
        ids: Sequence[str | None] = batch.ids or [None] * len(batch.names)
        for name, error, row_id in zip(batch.names, batch.errors, ids, strict=True):
            if error:
                yield Prediction(name, error=error)
                continue
            index, confidence, distance, percentile, strangeness, too_far, row = next(rows)
            if not math.isfinite(confidence):
                # NaN is below no threshold, so it would pass for a confident prediction.
                yield Prediction(name, error=OVERFLOW_MESSAGE, row_id=row_id)
                continue
            label = self.classes[index]
            yield Prediction(
                name, label, confidence, distance, percentile, tuple(row),
                strangeness=strangeness, too_far=too_far, row_id=row_id,
            )  # fmt: skip

    def _distances(self, features: Tensor, logits: Tensor) -> tuple[list[Any], ...]:
        """Distances, their percentiles, those of the chosen score, and whether each is too far.

        None stands for what is not known.
        """
        unknown, calibration = [None] * len(features), self.about.calibration
        if self.strangeness is None:
            return unknown, unknown, unknown, [False] * len(features)
        distances = self.strangeness.classes(features).double().numpy()
        if calibration is None:
            return distances.tolist(), unknown, unknown, [False] * len(features)
        ranks = percentile_ranks(distances, calibration.distances)
        too_far = ranks >= OUT_OF_RANGE_PERCENTILE
        strange: list[Any] = unknown
        if calibration.strangeness:
            scores = self.strangeness(features, logits).double().numpy()
            strange = percentile_ranks(scores, calibration.strangeness).tolist()
        return distances.tolist(), ranks.tolist(), strange, too_far.tolist()


def load(folder: str | Path, *, device: str | None = None, base: str | Path | None = None) -> Model:
    """Load the model in a folder that `fit` has written; no code from the folder is run.

    ``hf:user/name`` is a model on the Hugging Face hub, which is downloaded once. `device` is
    where the model computes, by default the CPU. If the folder has an adapter, `base` is the path
    of the weights of its base, which are otherwise looked for.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = {"store": f"{folder}/runs", "settings": {"steps": 20}, "estimate": False}
    ...     fitted = afield.fit("spirals", "erm", f"{folder}/model", **options)
    ...     model = afield.load(f"{folder}/model")
    >>> model.classes
    ('first', 'second')
    """
    is_hub = str(folder).startswith(HUB_PREFIX)
    path = fetch_model(str(folder)) if is_hub else Path(folder).expanduser()
    about, weights, strangeness = read_model(path)
    try:
        module = build_network(about)
    except AfieldError as error:
        raise DataError(f"{path / DESCRIPTION_FILE}: {error}") from None
    if about.base is not None:
        weights = complete_weights(about, module, weights, path, base)
    load_weights(module, weights, path / WEIGHTS_FILE)
    try:
        return Model(about, module, strangeness, device=device or "cpu", folder=path)
    # torch raises these for a device that is unknown, not built in, or not there.
    except (RuntimeError, AssertionError) as error:
        raise SpecError(
            f"device {device!r} cannot be used ({str(error).splitlines()[0]}); give another, e.g. "
            "cpu"
        ) from None
