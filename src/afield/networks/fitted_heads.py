"""Heads that classical methods fit: trees, kernels and neighbors, as arrays of numbers.

    forest       score of a class = log(1 / classes + sum over trees of the share at the leaf)
    boosted      score of a class = start + sum over its trees of the value at the leaf
    kernel       decision of a pair = intercept + sum over vectors v of weight · exp(-γ |x - v|²)
    neighbors    score of a class = log(1 / classes + votes of the nearest points)

A head is a module without parameters. Its arrays are buffers, so they are stored with the weights
of a network, in safetensors. Their sizes depend on the samples: a new head has none, and whatever
is loaded is checked first. Types and shapes must fit, indices must be within bounds, and the
children of a node must come after it, so that every path through a tree ends.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier

# No tree that is fitted to samples is deeper.
MAX_DEPTH = 4096
# Numbers in the largest array of a batch of nearest neighbors or kernels.
MAX_PAIR_NUMBERS = 2**24


# Type and number of dimensions of arrays, by name.
Declared = Mapping[str, tuple[torch.dtype, int]]


class FittedHead(nn.Module):
    """Scores of the classes from the inputs of a network.

    `arrays` has the type and the number of dimensions of every array. `columns` are the inputs
    that the head uses; all if it is empty.
    """

    arrays: ClassVar[Declared] = {}
    columns: Tensor

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.width, self.classes = width, classes
        for name, (dtype, dims) in self._declared().items():
            self.register_buffer(name, torch.zeros([0] * dims, dtype=dtype))

    @classmethod
    def _declared(cls) -> dict[str, tuple[torch.dtype, int]]:
        return {"columns": (torch.int32, 1), **cls.arrays}

    @property
    def used(self) -> int:
        """The number of inputs that the head uses."""
        return len(self.columns) or self.width

    def adopt(self, arrays: Mapping[str, Tensor]) -> None:
        """Take these arrays; raise `SpecError` if they are not those of such a head."""
        declared = self._declared()
        for name, (dtype, dims) in declared.items():
            if name not in arrays:
                _refuse(f"{name} is missing")
            array = arrays[name]
            if array.dtype != dtype or array.ndim != dims:
                _refuse(f"{name} is {array.dtype} of shape {[*array.shape]}, not {dtype}, {dims}-d")
            if not array.isfinite().all():
                _refuse(f"{name} has values that are not finite")
        if extra := set(arrays) - set(declared):
            _refuse(f"it has no array {min(extra)}")
        _require_indices("columns", arrays["columns"], self.width)
        used = len(arrays["columns"]) or self.width
        self.check(arrays, used)
        device = self.columns.device
        for name in declared:
            setattr(self, name, arrays[name].to(device))
        self.prepare()

    def check(self, arrays: Mapping[str, Tensor], used: int) -> None:
        """Raise `SpecError` unless shapes, indices and values fit `used` inputs and each other."""
        raise NotImplementedError(f"{type(self).__name__} does not override check")

    def prepare(self) -> None:
        """Compute what follows from the arrays, after they have changed."""

    def scores(self, x: Tensor) -> Tensor:
        """Samples × classes, from the inputs that are used."""
        raise NotImplementedError(f"{type(self).__name__} does not override scores")

    def forward(self, x: Tensor) -> Tensor:
        """Samples × classes."""
        return self.scores(x.index_select(1, self.columns) if len(self.columns) else x)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *rest: Any, **options: Any
    ) -> None:
        own = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        self.adopt(own)
        super()._load_from_state_dict(state_dict, prefix, *rest, **options)


class FittedNetwork(Classifier):
    """The inputs, flattened, and a head that is fitted to them."""

    def __init__(self, features: nn.Module, width: int, classes: int, head: FittedHead) -> None:
        super().__init__(features, width, classes)
        self.head = head  # type: ignore[assignment]  # every head has inputs and outputs alike


def adopt_arrays(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give the fitted heads within a network the arrays of these weights, which are checked."""
    for name, head in module.named_modules():
        if isinstance(head, FittedHead):
            prefix = f"{name}." if name else ""
            own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
            head.adopt(own)


def _refuse(problem: str) -> None:
    raise SpecError(f"not the arrays of this head: {problem}")


def _require_indices(name: str, values: Tensor, size: int) -> None:
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < size:
        _refuse(f"{name} must be from 0 to {size - 1}")


def _require_shapes(arrays: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if tuple(arrays[name].shape) != shape:
            _refuse(f"{name} has the shape {[*arrays[name].shape]}, not {[*shape]}")


class TreesHead(FittedHead):
    """Binary trees, all of whose nodes are in one list.

    A node goes on to `child` if the value of its `feature` is at most its `threshold`, and to the
    node after `child` otherwise. A leaf is its own child, and `row` is its row of `table`.
    """

    arrays: ClassVar[Declared] = {
        "roots": (torch.int32, 1),
        "feature": (torch.int32, 1),
        "threshold": (torch.float32, 1),
        "child": (torch.int32, 1),
        "row": (torch.int32, 1),
        "table": (torch.float32, 2),
    }
    roots: Tensor
    feature: Tensor
    threshold: Tensor
    child: Tensor
    row: Tensor
    table: Tensor

    def check(self, arrays: Mapping[str, Tensor], used: int) -> None:
        """Every path ends at a leaf with a row of the table."""
        count = len(arrays["child"])
        _require_shapes(arrays, dict.fromkeys(("feature", "threshold", "row"), (count,)))
        if not count or not len(arrays["roots"]) or not len(arrays["table"]):
            _refuse("there is no tree")
        _require_indices("roots", arrays["roots"], count)
        _require_indices("feature", arrays["feature"], used)
        _require_indices("row", arrays["row"], len(arrays["table"]))
        numbers, child = torch.arange(count), arrays["child"].cpu().long()
        inner = child != numbers
        if bool((inner & (child <= numbers)).any()) or bool((child + inner.long() >= count).any()):
            _refuse("a node must come before its children")
        tree_depth(arrays["roots"].cpu().long(), child)

    def prepare(self) -> None:
        """Indices as torch's indexing is fastest with, and the greatest depth."""
        self.depth = tree_depth(self.roots.cpu().long(), self.child.cpu().long())

    def leaves(self, x: Tensor) -> Tensor:
        """The row of the table that every sample reaches in every tree: samples × trees."""
        if torch.compiler.is_compiling():
            node = self.roots.long().repeat(x.shape[0], 1)
            for _ in range(self.depth):
                node = self._next(x.gather(1, self.feature[node].long()), node)
            return self.row[node]
        trees = len(self.roots)
        node = self.roots.long().repeat(x.shape[0])
        reached = torch.empty_like(node)
        place = torch.arange(len(node), device=x.device)
        first = torch.arange(0, x.numel(), x.shape[1], device=x.device).repeat_interleave(trees)
        values = x.flatten()
        # Only the paths that have not come to their leaves go on.
        while len(node):
            following = self._next(values[first + self.feature[node]], node)
            reached[place] = following
            on = (following != node).nonzero().flatten()
            node, place, first = following[on], place[on], first[on]
        return self.row[reached.view(x.shape[0], trees)]

    def _next(self, values: Tensor, node: Tensor) -> Tensor:
        child = self.child[node].long()
        return child + ((values > self.threshold[node]) & (child != node)).long()


def tree_depth(roots: Tensor, child: Tensor) -> int:
    """The number of steps from a root to the deepest leaf; children must come after their node."""
    level, depth = roots.unique(), 0
    while True:
        inner = level[child[level] != level]
        if not len(inner):
            return depth
        level = torch.cat([child[inner], child[inner] + 1]).unique()
        depth += 1
        if depth > MAX_DEPTH:
            _refuse(f"a tree is deeper than {MAX_DEPTH}")


class ForestHead(TreesHead):
    """The mean of the shares of the classes at the leaves."""

    def check(self, arrays: Mapping[str, Tensor], used: int) -> None:
        """A row of the table has the share of every class."""
        super().check(arrays, used)
        _require_shapes(arrays, {"table": (len(arrays["table"]), self.classes)})
        if arrays["table"].min() < 0:
            _refuse("shares must not be below 0")

    def scores(self, x: Tensor) -> Tensor:
        """Logarithms of shares, with a weight of one more tree that knows nothing."""
        return (self.table[self.leaves(x).long()].sum(dim=1) + 1 / self.classes).log()


class BoostedHead(TreesHead):
    """Sums of the values at the leaves of the trees of each class."""

    arrays: ClassVar[Declared] = {
        **TreesHead.arrays,
        "of_class": (torch.int32, 1),
        "start": (torch.float32, 1),
    }
    of_class: Tensor
    start: Tensor

    def check(self, arrays: Mapping[str, Tensor], used: int) -> None:
        """Every tree has a class, and every leaf one value."""
        super().check(arrays, used)
        _require_shapes(
            arrays,
            {
                "table": (len(arrays["table"]), 1),
                "of_class": (len(arrays["roots"]),),
                "start": (self.classes,),
            },
        )
        _require_indices("of_class", arrays["of_class"], self.classes)

    def scores(self, x: Tensor) -> Tensor:
        """The sums."""
        values = self.table[:, 0][self.leaves(x).long()]
        member = F.one_hot(self.of_class.long(), self.classes).to(values.dtype)
        return self.start + values @ member


def squared_distances(x: Tensor, points: Tensor) -> Tensor:
    """|x - p|² of samples × points."""
    squares = x.square().sum(dim=1, keepdim=True) + points.square().sum(dim=1)
    return (squares - 2 * x @ points.T).clamp(min=0)


class KernelHead(FittedHead):
    """One-against-one decisions of a support vector machine, joined to a score for each class.

    score of a class = votes + confidence / (3 (|confidence| + 1)), as in scikit-learn, where the
    confidence is the sum of the decisions for the class.
    """

    arrays: ClassVar[Declared] = {
        "vectors": (torch.float32, 2),
        "weights": (torch.float32, 2),
        "intercepts": (torch.float32, 1),
        "gamma": (torch.float32, 1),
        "known": (torch.int32, 1),
    }
    vectors: Tensor
    weights: Tensor
    intercepts: Tensor
    gamma: Tensor
    known: Tensor

    def check(self, arrays: Mapping[str, Tensor], used: int) -> None:
        """Every pair of known classes has a weight for every vector, and an intercept."""
        known, count = arrays["known"], len(arrays["vectors"])
        if len(known) < 2 or len(known.unique()) != len(known):
            _refuse("known must list at least two different classes")
        _require_indices("known", known, self.classes)
        pairs = len(known) * (len(known) - 1) // 2
        shapes = {"vectors": (count, used), "weights": (pairs, count)}
        _require_shapes(arrays, {**shapes, "intercepts": (pairs,), "gamma": (1,)})
        if arrays["gamma"][0] <= 0:
            _refuse("gamma must be above 0")

    def scores(self, x: Tensor) -> Tensor:
        """Votes and confidences; a class that the sources do not have gets less than any other."""
        kernel = (-self.gamma * squared_distances(x, self.vectors)).exp()
        decisions = kernel @ self.weights.T + self.intercepts
        pairs = list(combinations(range(len(self.known)), 2))
        first, second = (
            F.one_hot(torch.tensor(side, device=x.device), len(self.known)).to(x.dtype)
            for side in zip(*pairs, strict=True)
        )
        wins = (decisions > 0).to(x.dtype)
        votes = wins @ first + (1 - wins) @ second
        confidence = decisions @ (first - second)
        known = votes + confidence / (3 * (confidence.abs() + 1))
        empty = x.new_full((x.shape[0], self.classes), -float(len(self.known)))
        return empty.index_copy(1, self.known.long(), known)


class NeighborsHead(FittedHead):
    """Votes of the nearest points, which are the training samples themselves."""

    arrays: ClassVar[Declared] = {
        "points": (torch.float32, 2),
        "of_class": (torch.int32, 1),
        "neighbors": (torch.int32, 1),
    }
    points: Tensor
    of_class: Tensor
    neighbors: Tensor

    def check(self, arrays: Mapping[str, Tensor], used: int) -> None:
        """Every point has a class, and there are as many points as neighbors."""
        count = len(arrays["points"])
        shapes = {"points": (count, used), "of_class": (count,), "neighbors": (1,)}
        _require_shapes(arrays, shapes)
        _require_indices("of_class", arrays["of_class"], self.classes)
        if not 1 <= int(arrays["neighbors"][0]) <= count:
            _refuse("neighbors must be from 1 to the number of points")

    def prepare(self) -> None:
        """The number of neighbors."""
        self.count = int(self.neighbors[0])

    def scores(self, x: Tensor) -> Tensor:
        """Logarithms of the votes, with one vote more that all classes share."""
        size = max(1, MAX_PAIR_NUMBERS // max(1, len(self.points)))
        chunks = [x] if torch.compiler.is_compiling() else x.split(size)
        near = torch.cat(
            [
                squared_distances(chunk, self.points).topk(self.count, largest=False).indices
                for chunk in chunks
            ]
        )
        votes = F.one_hot(self.of_class[near].long(), self.classes).sum(dim=1)
        return (votes.to(x.dtype) + 1 / self.classes).log()
