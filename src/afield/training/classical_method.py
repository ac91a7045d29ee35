"""What a classical method is: a classifier of scikit-learn, or of a package like it, as a row.

    samples of the sources → `TrainingMatrix` → classifier → arrays of a head

A classical method is named and has hyperparameters as any other. It is fitted once, to the inputs
as a linear network would see them: scaled by the sources, tables with indicators and categories,
texts as TF-IDF. So there is one checkpoint, and no learning rate, batch, optimizer or network to
choose. What is kept is not the classifier, which could only be pickled, but its numbers, as the
arrays of a head (`afield.networks.fitted_heads`), which predicts from then on.
"""

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.networks.fitted_heads import FittedHead, FittedNetwork
from afield.training.learner import Learner, Task
from afield.training.method import Method

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from afield.data.modality import Modality

Arrays = dict[str, NDArray[Any]]
# Numbers in a matrix that is not sparse: 1 GiB of float32.
MAX_MATRIX_NUMBERS = 2**28
# How far the score of a class without samples lies below those of the other classes.
ABSENT_CLASS_MARGIN = 20.0
# N-grams that methods which need a matrix without zeros take of texts, by their chi² statistic.
MAX_TEXT_COLUMNS = 500


@dataclass(frozen=True)
class TrainingMatrix:
    """The training samples of the sources, as the inputs of a linear network, and their classes.

    `kind` tells what the columns are: ``table`` has standardized numbers, categories and
    indicators, ``texts`` is a sparse matrix of TF-IDF, and ``numbers`` is anything else. `columns`
    are those inputs that the matrix has; empty means all.
    """

    x: "NDArray[np.float32] | csr_matrix"
    y: NDArray[np.int64]
    classes: int
    kind: Literal["table", "texts", "numbers"]
    seed: int = 0
    threads: int = 1
    columns: tuple[int, ...] = ()

    @property
    def is_sparse(self) -> bool:
        """Whether most of its numbers are zeros that are not stored."""
        return not isinstance(self.x, np.ndarray)

    def dense(self) -> "TrainingMatrix":
        """The matrix as an array, of texts with the n-grams that tell classes apart best."""
        if not self.is_sparse:
            return self
        from sklearn.feature_selection import chi2

        statistic = np.nan_to_num(chi2(self.x, self.y)[0])
        kept = np.sort(np.argsort(-statistic, kind="stable")[:MAX_TEXT_COLUMNS])
        x = np.asarray(self.x[:, kept].todense(), np.float32)  # type: ignore[union-attr]
        return replace(self, x=x, columns=tuple(kept.tolist()))

    def moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation of every column; those of a sparse matrix are 0 and 1."""
        width = self.x.shape[1]
        if self.is_sparse:
            return np.zeros(width), np.ones(width)
        mean, std = self.x.mean(axis=0, dtype=np.float64), self.x.std(axis=0, dtype=np.float64)
        return mean, np.where(std > 0, std, 1.0)


@dataclass(frozen=True)
class ClassicalMethod(Method):
    """A classifier that is fitted once; it overrides `classifier` and `arrays`.

    `head` is the class of the head that predicts; without one, it is a linear layer, with the
    arrays weight and bias. `package` is the distribution of the classifier. `is_stored` is false if
    there are no arrays, and hence no model.
    """

    is_classical: ClassVar[bool] = True
    is_stored: ClassVar[bool] = True
    head: ClassVar[type[FittedHead] | None] = None
    package: ClassVar[str] = "scikit-learn"

    def check_modality(self, modality: "Modality") -> None:
        """Raise `SpecError` if the package is not installed; every kind of samples will do."""
        super().check_modality(modality)
        self.package_version()

    def package_version(self) -> str:
        """The version of the package."""
        module = "sklearn" if self.package == "scikit-learn" else self.package
        return str(installed(module, self.name).__version__)

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """The inputs of the network, and a head that is not fitted yet."""
        if not isinstance(model, Classifier):
            raise SpecError(f"{self.name} needs a Classifier, not {type(model).__name__}")
        learner = Learner(model, task)
        if self.head is not None:
            # The optimizer keeps the linear layer, because it takes no network without parameters.
            device, classes = model.head.weight.device, len(task.classes)
            head = self.head(model.width, classes)
            network = FittedNetwork(model.features, model.width, classes, head)
            learner.model = network.to(device)
        return learner

    @abstractmethod
    def classifier(self, matrix: TrainingMatrix) -> Any:
        """The classifier, before it is fitted, with what suits this matrix."""

    @abstractmethod
    def arrays(self, matrix: TrainingMatrix) -> Arrays:
        """Fit the classifier, and return the arrays of the head."""

    def check_classes(self, matrix: TrainingMatrix) -> None:
        """Refuse a matrix with one class."""
        if len(np.unique(matrix.y)) < 2:
            raise SpecError(
                f"{self.name}: the sources have samples of one class only; give sources with two "
                "classes or more"
            )

    def fit_head(self, model: nn.Module, matrix: TrainingMatrix) -> None:
        """Give a network the head that is fitted to a matrix."""
        model.get_submodule("head").load_state_dict(self.fit(matrix))

    def fit(self, matrix: TrainingMatrix) -> dict[str, Tensor]:
        """The arrays of the head, fitted to a matrix."""
        self.check_classes(matrix)
        with fitting(matrix.threads):
            arrays = self.arrays(matrix)
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


@contextmanager
def fitting(threads: int) -> Iterator[None]:
    """Fit with this number of threads, on which last digits depend, and without warnings."""
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def installed(package: str, method: str) -> Any:
    """A package that afield does not require; raise `SpecError` if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise SpecError(
            f"{method}: needs the package {package}, which cannot be imported ({error}); try: pip "
            f"install {package}"
        ) from None


def check_matrix_size(method: str, samples: int, width: int) -> None:
    """Refuse samples that do not fit into memory as a matrix."""
    if samples * width > MAX_MATRIX_NUMBERS:
        raise SpecError(
            f"{method}: {samples} samples of {width} numbers are more than {MAX_MATRIX_NUMBERS:,} "
            "numbers; train on features of a frozen network, or with --set limit=N"
        )


def all_classes(values: NDArray[Any], known: NDArray[Any], classes: int) -> NDArray[Any]:
    """Columns for all classes from those of the known ones; the others are 0."""
    whole = np.zeros((len(values), classes), values.dtype)
    whole[:, known] = values
    return whole


def rounded_down(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest float32 that is not above each value: x ≤ value stays the same for float32 x.

    >>> rounded_down(np.array([0.1, 0.5])) <= np.array([0.1, 0.5])
    array([ True,  True])
    """
    limit = np.finfo(np.float32).max / 2
    clipped = np.clip(values, -limit, limit)
    nearest: NDArray[np.float32] = clipped.astype(np.float32)
    below = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest > clipped, below, nearest).astype(np.float32)


@dataclass(frozen=True)
class Tree:
    """A binary tree: for each node its feature, threshold and children, which are -1 at a leaf.

    A value of at most the threshold goes left. Children come after their parents. `row` is the row
    of a table that a leaf has.
    """

    feature: NDArray[Any]
    threshold: NDArray[Any]
    left: NDArray[Any]
    right: NDArray[Any]
    row: NDArray[Any]


def tree_arrays(trees: Sequence[Tree]) -> Arrays:
    """The arrays of a head of trees, without its table: in it, right children follow left ones."""
    pieces: dict[str, list[NDArray[Any]]] = {
        name: [] for name in ("feature", "threshold", "child", "row")
    }
    roots, start = [], 0
    for tree in trees:
        count, inner = len(tree.left), np.flatnonzero(tree.left >= 0)
        first = 1 + 2 * np.arange(len(inner))
        place = np.zeros(count, np.int64)
        place[tree.left[inner]], place[tree.right[inner]] = first, first + 1
        child = np.arange(count)
        child[place[inner]] = first
        values = {"child": child + start}
        for name in ("feature", "threshold"):
            values[name] = np.zeros(count, np.float64)
            values[name][place[inner]] = getattr(tree, name)[inner]
        values["row"] = np.zeros(count, np.int64)
        leaves = np.flatnonzero(tree.left < 0)
        values["row"][place[leaves]] = tree.row[leaves]
        for name, array in values.items():
            pieces[name].append(array)
        roots.append(start)
        start += count
    joined = {name: np.concatenate(arrays) for name, arrays in pieces.items()}
    return {
        "roots": np.array(roots, np.int32),
        "feature": joined["feature"].astype(np.int32),
        "threshold": rounded_down(joined["threshold"]),
        "child": joined["child"].astype(np.int32),
        "row": joined["row"].astype(np.int32),
    }


def boosted_arrays(
    trees: Sequence[tuple[Tree, NDArray[np.float64], int]], start: NDArray[Any], classes: int
) -> Arrays:
    """The arrays of boosted trees: each with the values of its nodes and its class.

    `start` has a number for every class.
    """
    rows, offset = [], 0
    for tree, values, _ in trees:
        rows.append(Tree(tree.feature, tree.threshold, tree.left, tree.right, tree.row + offset))
        offset += len(values)
    table = np.concatenate([values for _, values, _ in trees]).astype(np.float32)[:, None]
    of_class = np.array([label for _, _, label in trees], np.int32)
    return {
        **tree_arrays(rows),
        "table": table,
        "of_class": of_class,
        "start": np.broadcast_to(start, (classes,)).astype(np.float32),
    }


def known_start(start: NDArray[Any], known: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Start scores for all classes; one that the sources do not have starts far below."""
    whole = np.full(classes, float(np.min(start)) - ABSENT_CLASS_MARGIN)
    whole[known] = start
    return whole
