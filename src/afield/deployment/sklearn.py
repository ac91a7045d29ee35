"""Domain generalization as a classifier of scikit-learn, for arrays in memory.

    clf = DomainClassifier("vrex", random_state=0).fit(X, y, domains=hospital)
    cross_val_score(clf, X, y, cv=LeaveOneGroupOut(), params={"groups": h, "domains": h})

Training is that of `afield train` on all domains, with the same loop and the same choice: a fifth
of every domain validates, and the weights at the checkpoint that is best there are kept. Nothing is
written to disk.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

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
from afield.data.domains import Domain, DomainSet, Training
from afield.data.samples import Rows
from afield.data.sources.arrays import to_channels_first
from afield.errors import IncompatibleMethodError, SpecError
from afield.experiments.record import Run
from afield.experiments.run_setup import Machine, set_up_on
from afield.experiments.runner import remaining_checkpoints
from afield.experiments.settings import resolve_run
from afield.networks.inference import compute_outputs

__all__ = ["DomainClassifier"]

# What the only domain is called where none are given.
SINGLE_DOMAIN = "all"


class DomainClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn is untyped
    """A classifier for domains that it has not seen, trained on several that it has.

    Parameters
    ----------
    method
        A method of afield by name: arith, erm, vrex, … (``afield list``).
    backbone
        A network by name; None is ``small:mlp`` for rows of features, ``small:cnn`` for pictures.
    steps, batch
        So many training steps, each on so many samples of every domain.
    lr
        The learning rate; None is 1e-3, and 5e-5 for a backbone that starts from the hub's weights.
    average
        What is deployed of the training: last, ema, swa or swad.
    settings
        Further settings as elsewhere in afield: ``{"vrex.penalty": 3.0, "weight_decay": 1e-4}``.
    random_state
        The seed of the cut into parts, of the first weights and of the batches.
    device, threads
        Where to compute; None is the fastest device. The last digits of a result on the CPU depend
        on the number of threads.

    Attributes
    ----------
    classes_, domains_ : arrays
        The labels, and the names of the domains that it was trained on.
    model_ : torch.nn.Module
        The network, on the CPU; its inputs are what `prepare_` makes of samples.
    checkpoints_ : tuple
        The scores on the domains' validating fifth, and the logs, in the course of the training.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn; of pictures the former is the size of their first axis.

    Notes
    -----
    Without `domains`, all samples are of one domain: methods that compare domains are then as good
    as `erm`, and those that cannot do without a second one (`mldg`, `metareg`) are refused.

    Examples
    --------
    >>> import numpy as np
    >>> place, side = np.repeat([0, 1, 2], 40), np.tile([-1.0, 1.0], 60)
    >>> X = np.c_[side, 0.1 * place]
    >>> clf = DomainClassifier("vrex", steps=50, random_state=0).fit(X, side > 0, domains=place)
    >>> clf.score(X, side > 0)
    1.0
    """

    # Domains are for nothing else than this: no need to ask for them with set_fit_request.
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
        """Train on samples, their labels, and the domain of each.

        X: samples × features, or pictures as samples × (channels ×) height × width.
        """
        values, labels = validate_data(self, X, y, dtype=_kept(X), allow_nd=True)
        check_classification_targets(labels)
        self.classes_, label = np.unique(labels, return_inverse=True)
        self.domains_, place = _numbered(domains, values)
        x, y_ = _samples(values), torch.from_numpy(label)
        known = {
            name: Domain(x[place == i], y_[place == i])
            for i, name in enumerate(self.domains_.tolist())
        }
        dataset = DomainSet(
            name="X",
            domains=tuple(known),
            classes=tuple(map(str, self.classes_.tolist())),
            reader=lambda _: known,
            training=Training(backbone="small:mlp" if x.ndim == 2 else "small:cnn"),
        )
        run, device = self._run(dataset), torch.device(self.device or default_device())
        with deterministic(self.threads):
            work = set_up_on(dataset, known, run, Machine(device, self.threads, Path()))
            self.checkpoints_ = tuple(remaining_checkpoints(work))
        self.model_ = work.average.model
        self.model_.load_state_dict(work.best)
        self.model_.eval().cpu()
        self.prepare_ = _on_cpu(work.stream.samples.prepare)
        self._shape = tuple(x.shape[1:])
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """The probability of every class, samples × classes."""
        check_is_fitted(self)
        x = _samples(validate_data(self, X, reset=False, dtype=_kept(X), allow_nd=True))
        if tuple(x.shape[1:]) != self._shape:
            raise SpecError(
                f"X has samples of shape {tuple(x.shape[1:])}, but this DomainClassifier was fitted"
                f" to {self._shape}"
            )
        device = torch.device(self.device or default_device())
        # So exact that a row of features has the same result whatever rows stand beside it.
        exact = torch.float64 if x.ndim == 2 else torch.float32
        model = copy.deepcopy(self.model_).to(device, exact)
        with deterministic(self.threads):
            logits = compute_outputs(
                model, Rows([x]), lambda part: self.prepare_(part).to(device, exact)
            )
        probabilities: NDArray[np.float64] = logits.double().softmax(dim=1).cpu().numpy()
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The most probable class of every sample."""
        most: NDArray[Any] = self.predict_proba(X).argmax(axis=1)
        return self.classes_[most]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _run(self, dataset: DomainSet) -> Run:
        """What is asked, in full."""
        own = {name: getattr(self, name) for name in ("backbone", "steps", "batch", "lr")}
        given = dict(self.settings or {})
        twice = [name for name in given if name in own]
        if twice:
            raise SpecError(f"settings: {twice[0]} is a parameter of its own; give {twice[0]}=…")
        settings = {name: _plain(v) for name, v in (own | given).items() if v is not None}
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


def _kept(x: Any) -> Any:
    """The type in which samples are kept: pictures of bytes as they are, all else as float32."""
    bytes_ = getattr(x, "dtype", None) == np.uint8 and x.ndim > 2
    return np.uint8 if bytes_ else np.float32


def _samples(values: NDArray[Any]) -> Tensor:
    # Torch shares the memory, and says so where it may not be written to.
    return to_channels_first(np.require(values, requirements="W"))


def _numbered(domains: ArrayLike | None, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The names of the domains, and for each sample the number of its own."""
    if domains is None:
        return np.array([SINGLE_DOMAIN]), np.zeros(len(x), dtype=int)
    check_consistent_length(x, domains)
    found = column_or_1d(domains)
    missing = np.flatnonzero(pd.isna(found))
    if len(missing):
        raise SpecError(f"domains: sample {missing[0]} has none; name it, or leave the sample out")
    return np.unique(found.astype(str), return_inverse=True)


def _on_cpu(prepare: Any) -> Any:
    """How inputs are scaled, to be used and unpickled on any machine."""
    if isinstance(prepare, Resize):
        return replace(prepare, scaling=_on_cpu(prepare.scaling))
    return replace(prepare, mean=prepare.mean.cpu(), std=prepare.std.cpu())


def _plain(value: Any) -> Any:
    """A number of Python, where numpy's comes from a grid."""
    return value.item() if isinstance(value, np.generic) else value
