"""Domain generalization as a scikit-learn classifier, for arrays or texts in memory.

    clf = DomainClassifier("vrex", random_state=0).fit(X, y, domains=hospital)
    cross_val_score(clf, X, y, cv=LeaveOneGroupOut(), params={"groups": h, "domains": h})

Training is that of `afield train` on all domains, with the same loop and the same selection: a
fifth of every domain is its validation split, and the weights of the checkpoint with the best
validation accuracy are kept. Nothing is written to disk.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from afield.compute import default_device, deterministic
from afield.data.augmentation import Resize
from afield.data.bag_of_words import BagScaling
from afield.data.domains import Domain, DomainSet
from afield.data.modalities.array import Array
from afield.data.modalities.text import Text
from afield.data.samples import Rows
from afield.data.sources.arrays import to_channels_first
from afield.data.training_settings import Training
from afield.errors import DataError, IncompatibleMethodError, SpecError
from afield.networks.backbone import find_backbone
from afield.networks.inference import compute_outputs
from afield.runs.run import Run
from afield.runs.run_setup import Machine, set_up_on
from afield.runs.runner import remaining_checkpoints
from afield.studies.settings import resolve_run

# The name of the only domain if no domains are given.
SINGLE_DOMAIN = "all"


class DomainClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn is untyped
    """A classifier for unseen domains, trained on several source domains.

    Parameters
    ----------
    method
        The name of a method: arith, erm, vrex, … (see ``afield list methods``).
    backbone
        The name of a network; None means ``small:mlp`` for feature vectors, ``small:cnn`` for
        images and ``bag:`` for texts. An encoder of texts is ``hf:FOLDER``.
    steps
        The number of training steps.
    batch
        The number of samples of each domain in a step.
    lr
        The learning rate; None means 1e-3, or 5e-5 for a backbone with pretrained weights.
    average
        The weight averaging: last, ema, swa or swad.
    settings
        Further settings as elsewhere in afield: ``{"vrex.penalty": 3.0, "weight_decay": 1e-4}``.
    random_state
        The seed of the validation split, the initial weights and the batches.
    device
        Where to compute; None means the fastest device.
    threads
        The number of CPU threads. The last digits of a result on the CPU depend on it.

    Attributes
    ----------
    classes_ : array
        The labels.
    domains_ : array
        The names of the source domains.
    model_ : torch.nn.Module
        The network, on the CPU. It takes samples that were prepared by `prepare_`.
    checkpoints_ : tuple
        The scores on the validation splits, and the logs, during training.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn; for images, the former is the size of their first axis.

    Notes
    -----
    Without `domains`, all samples belong to one domain. Methods that compare domains then act like
    `erm`, and methods that need at least two domains (`mldg`, `metareg`) raise an error.

    Examples
    --------
    >>> import numpy as np
    >>> domain, side = np.repeat([0, 1, 2], 40), np.tile([-1.0, 1.0], 60)
    >>> X = np.c_[side, 0.1 * domain]
    >>> clf = DomainClassifier("vrex", steps=50, random_state=0).fit(X, side > 0, domains=domain)
    >>> clf.score(X, side > 0)
    1.0
    """

    # `domains` has only this meaning, so users need not request it with set_fit_request.
    __metadata_request__fit: ClassVar = {"domains": True}

    def __init__(
        self,
        method: str = "arith",
        *,
        backbone: str | None = None,
        steps: int = 300,
        batch: int = 32,
        lr: float | None = None,
        average: str = "last",
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
        threads: int = 1,
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.steps = steps
        self.batch = batch
        self.lr = lr
        self.average = average
        self.settings = settings
        self.random_state = random_state
        self.device = device
        self.threads = threads

    def fit(
        self,
        X: ArrayLike,  # noqa: N803  scikit-learn's name
        y: ArrayLike,
        domains: ArrayLike | None = None,
    ) -> "DomainClassifier":
        """Train on samples, their labels, and the domain of each sample.

        X is samples × features, images as samples × (channels ×) height × width, or strings.
        """
        values: Any
        if is_texts := _is_texts(X):
            values, labels = list(cast("Sequence[str]", X)), column_or_1d(y, warn=True)
            check_consistent_length(values, labels)
        else:
            values, labels = validate_data(self, X, y, dtype=_storage_dtype(X), allow_nd=True)
        check_classification_targets(labels)
        self.classes_, label = np.unique(labels, return_inverse=True)
        self.domains_, index = _index_domains(domains, values)
        by_name: dict[str, Domain] = {}
        backbone = "bag:" if is_texts else "small:mlp" if values.ndim == 2 else "small:cnn"
        dataset = DomainSet(
            name="X",
            domains=tuple(self.domains_.tolist()),
            classes=tuple(map(str, self.classes_.tolist())),
            reader=lambda _: by_name,
            training=Training(backbone=backbone),
            modality=Text() if is_texts else Array(),
        )
        run, device = self._run(dataset), torch.device(self.device or default_device())
        self._text = _text_modality(run) if is_texts else None
        x, y_ = self._to_samples(values), torch.from_numpy(label)
        by_name |= {
            name: Domain(x[index == i], y_[index == i])
            for i, name in enumerate(self.domains_.tolist())
        }
        with deterministic(self.threads):
            state = set_up_on(dataset, by_name, run, Machine(device, self.threads, Path()))
            self.checkpoints_ = tuple(remaining_checkpoints(state))
        self.model_ = state.average.model
        self.model_.load_state_dict(state.best)
        self.model_.eval().cpu()
        self.prepare_ = _to_cpu(state.stream.samples.prepare)
        self._shape = tuple(x.shape[1:])
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Predict the probability of every class, samples × classes."""
        check_is_fitted(self)
        if self._text is not None:
            if not _is_texts(X):
                raise SpecError("X: this DomainClassifier was fitted to texts; give strings")
            values = list(cast("Sequence[str]", X))
        else:
            values = validate_data(self, X, reset=False, dtype=_storage_dtype(X), allow_nd=True)
        x = self._to_samples(values)
        if tuple(x.shape[1:]) != self._shape:
            raise SpecError(
                f"X has samples of shape {tuple(x.shape[1:])}, but this DomainClassifier was fitted"
                f" to {self._shape}"
            )
        device = torch.device(self.device or default_device())
        # In float64, the result of a feature vector does not depend on the others in its batch.
        exact = torch.float64 if x.ndim == 2 and self._text is None else torch.float32
        model = copy.deepcopy(self.model_).to(device, exact)
        with deterministic(self.threads):
            logits = compute_outputs(
                model,
                Rows([x]),
                lambda rows: self.prepare_(rows).to(device, None if self._text else exact),
            )
        probabilities: NDArray[np.float64] = logits.double().softmax(dim=1).cpu().numpy()
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Predict the most probable class of every sample."""
        best: NDArray[Any] = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _to_samples(self, values: Any) -> Tensor:
        """Samples as they are stored: numbers with channels first, or token ids."""
        if self._text is not None:
            return _tokenize(values, self._text)
        # torch shares the memory, and warns if that is not writable.
        return to_channels_first(np.require(values, requirements="W"))

    def _run(self, dataset: DomainSet) -> Run:
        """The run with all its settings."""
        parameters = {name: getattr(self, name) for name in ("backbone", "steps", "batch", "lr")}
        further = dict(self.settings or {})
        twice = [name for name in further if name in parameters]
        if twice:
            raise SpecError(f"settings: {twice[0]} is a parameter of its own; give {twice[0]}=…")
        given = {name: value for name, value in (parameters | further).items() if value is not None}
        settings = {name: _to_python(value) for name, value in given.items()}
        trial = int(check_random_state(self.random_state).randint(2**31 - 1))
        try:
            return resolve_run(
                dataset,
                self.method,
                dataset.domains,
                trial=trial,
                average=self.average,
                settings=settings,
            )
        except IncompatibleMethodError as error:
            raise IncompatibleMethodError(
                f"{error}; give fit the domain of each sample", error.method
            ) from None


def _storage_dtype(x: Any) -> Any:
    """The type in which samples are stored: uint8 images as they are, all else as float32."""
    byte_images = getattr(x, "dtype", None) == np.uint8 and x.ndim > 2
    return np.uint8 if byte_images else np.float32


def _is_texts(x: Any) -> bool:
    """Whether samples are strings: a list, a series or an array of them."""
    if isinstance(x, str):
        raise SpecError("X: one string; give a list of strings")
    if isinstance(x, np.ndarray) and x.ndim != 1:
        return False
    strings = isinstance(x, list | tuple | pd.Series | np.ndarray)
    return strings and len(x) > 0 and isinstance(next(iter(x)), str)


def _text_modality(run: Run) -> Text:
    return Text().with_tokens(find_backbone(run.backbone).tokenizer, run.tokens)


def _tokenize(texts: Sequence[Any], modality: Text) -> Tensor:
    rows = []
    for number, text in enumerate(texts):
        try:
            rows.append(modality.tokenize(text))
        except ValueError as error:
            raise DataError(f"X: sample {number}: {error}; leave it out") from None
    return modality.stack(rows)


def _index_domains(domains: ArrayLike | None, x: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The names of the domains, and for each sample the index of its domain."""
    if domains is None:
        return np.array([SINGLE_DOMAIN]), np.zeros(len(x), dtype=int)
    check_consistent_length(x, domains)
    values = column_or_1d(domains)
    missing = np.flatnonzero(pd.isna(values))
    if len(missing):
        raise SpecError(
            f"domains: sample {missing[0]} has no domain; name one, or leave the sample out"
        )
    return np.unique(values.astype(str), return_inverse=True)


def _to_cpu(prepare: Any) -> Any:
    """Move the preparation of inputs to the CPU, so that it can be unpickled on any machine."""
    if isinstance(prepare, Resize):
        return replace(prepare, scaling=_to_cpu(prepare.scaling))
    if isinstance(prepare, BagScaling):
        return BagScaling(prepare.vocabulary)
    return replace(prepare, mean=prepare.mean.cpu(), std=prepare.std.cpu())


def _to_python(value: Any) -> Any:
    """Convert a numpy number, as from a parameter grid, to a Python number."""
    return value.item() if isinstance(value, np.generic) else value
