"""The leading directions of matrices: singular triplets, and orthonormal ones nearest to several.

As they are in exact arithmetic, whatever LAPACK would have chosen where nothing determines the
choice. Through Gram matrices and their eigenvectors, which take less time than an SVD; in float64,
for the condition of a Gram matrix is the square of the matrix's: in float32, directions at 1/100 of
the largest would be wrong by tens of percent. The polar factor of unit vectors is found in float32
where that is as right as an SVD in float32.

On a CPU, LAPACK's steps are called one by one through scipy: for a third of the eigenvectors they
take two thirds of the time that torch takes for all.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import NamedTuple

import torch
from scipy.linalg import LinAlgError, blas, lapack
from threadpoolctl import ThreadpoolController
from torch import Tensor

__all__ = [
    "Triplets",
    "concatenate_triplets",
    "full_precision",
    "leading_triplets",
    "polar_factor",
    "shared_basis",
]

# Below this share of the largest, a singular value is rounding: weights are float32 at best, and
# what a LoRA of rank 16 leaves beside its 16 directions, stored so, is about 1e-6 of the largest.
# In float64 the same, so that the same numbers have the same directions in either.
SIGNAL = 128 * torch.finfo(torch.float32).eps
# Below this share of the largest, a direction that unit vectors span together is what nearly equal
# vectors happen to differ in. A few fall below by chance, too: of n random ones in n dimensions
# about n in 10,000. While they are no more than one in 256, they count, unless they are so small
# that they would be rounding in float64: it squares them in the Gram matrix.
DIRECTION, CHANCE, COINCIDENCE = 1e-4, 256, 1e-6

# Products in float32 leave a direction, at this share of the largest, as right as an SVD would.
FLOAT32_RANGE = 1e-3
# Eigenvalues of a Gram matrix of unit vectors above this share of the largest are right to 1e-4 in
# float32; those below are found again by themselves, while they are fewer than one in four.
# More than one in 64 at 1e-6 are no chance: experts are alike, and float64 has to tell them apart.
BULK, FEW, ALIKE = 1e-3, 4, 64

# Below this size nothing takes long enough to be done in a quicker way.
QUICK_MIN_SIZE = 128


class Triplets(NamedTuple):
    """Singular triplets of a matrix: vectors in columns, the largest value first."""

    left: Tensor
    values: Tensor
    right: Tensor


def shared_basis(matrices: Tensor, *, exact: bool) -> Triplets:
    """Each matrix's leading triplets, an equal share of the rank, with vectors made orthonormal.

    In the matrices' own type; `exact`, or of float64, found in float64. Where no matrix has a
    signal, there is no column.
    """
    share = max(1, min(matrices.shape[1:]) // len(matrices))
    quick = (
        not exact and matrices.dtype == torch.float32 and min(matrices.shape[1:]) >= QUICK_MIN_SIZE
    )
    left, values, right = concatenate_triplets(
        [leading_triplets(each, share, quick=quick) for each in matrices]
    )
    if left.dtype == torch.float32:
        factors = _quick_polar(left), _quick_polar(right)
        if factors[0] is None or factors[1] is None:
            return shared_basis(matrices, exact=True)
        return Triplets(factors[0], values, factors[1])
    if len(values):
        left, right = polar_factor(left), polar_factor(right)
    return Triplets(*(part.to(matrices.dtype) for part in (left, values, right)))


def concatenate_triplets(triplets: Sequence[Triplets]) -> Triplets:
    """The triplets of several matrices, one after the other."""
    left, values, right = zip(*triplets, strict=True)
    return Triplets(torch.cat(left, dim=1), torch.cat(values), torch.cat(right, dim=1))


def leading_triplets(
    matrix: Tensor, count: int, *, scale: Tensor | None = None, quick: bool = False
) -> Triplets:
    """The first so many singular triplets that carry a signal, in float64.

    The largest entry of each left vector is positive.

    Parameters
    ----------
    matrix
        Any shape; float32 is enough.
    count
        How many at most: there are fewer where the rest is rounding.
    scale
        What else the values have to stand out against than the largest of them.
    quick
        In float32 where that is as right as an SVD in float32.
    """
    tall = _tall(matrix)
    if count < 1:
        empty = [tall.new_zeros(size, 0, dtype=torch.float64) for size in matrix.shape]
        return Triplets(empty[0], empty[0].new_zeros(0), empty[1])
    precise = tall.double()
    squares, inner = _eigh(_gram(precise), count)
    inner = inner.flip(1)
    if not (quick and squares[0] > FLOAT32_RANGE**2 * squares[-1]):
        tall = precise
    image = tall @ inner.to(tall.dtype)
    values = image.norm(dim=0)
    largest = values.max() if scale is None else torch.maximum(values.max(), scale)
    signal = values > SIGNAL * largest
    if not signal.all():
        image, values, inner = image[:, signal], values[signal], inner[:, signal]
    return _signed(matrix, image, values, inner.to(tall.dtype))


def polar_factor(columns: Tensor) -> Tensor:
    """The nearest orthonormal columns: P Qᵀ where P Σ Qᵀ is the thin SVD of the columns.

    Where they are dependent, or so nearly that it is rounding (Σ below 1e-4 of the largest),
    nothing is made up to fill the space: P and Q are those of the other directions. In float64.
    """
    columns = columns.double()
    squares, vectors = _eigh(_gram(columns))
    roots = _inverse_roots(squares, squares[-1], len(squares))
    return _turned(columns, vectors, roots)


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 in float32: not in TF32, though it may be switched on for training."""
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = "ieee"
    try:
        yield
    finally:
        products.fp32_precision = before


def _quick_polar(columns: Tensor) -> Tensor | None:
    """The polar factor from float32, its small part found again; None where that is not enough."""
    squares, vectors = _eigh(_gram(columns))
    n, small = len(squares), int((squares <= BULK * squares[-1]).sum())
    if small * FEW > n:
        return None
    bulk, squares = vectors[:, small:], squares[small:]
    factor = _turned(columns, bulk, squares.rsqrt())
    if not small:
        return factor
    precise, rest = columns.double(), vectors[:, :small].double()
    # What float32 left of the bulk in the rest, to first order: it weighs the more, the smaller.
    mixed = (bulk.mT @ (precise.mT @ (precise @ rest)).float()) / squares[:, None]
    rest -= bulk @ mixed
    image = precise @ rest
    own, turn = torch.linalg.eigh(image.mT @ image)
    if (own <= COINCIDENCE * squares[-1]).sum() * ALIKE > n:
        return None
    turned = turn * _inverse_roots(own, squares[-1], n)
    return factor.addmm_((image @ turned).float(), (rest @ turn).mT.float())


def _turned(columns: Tensor, vectors: Tensor, weights: Tensor) -> Tensor:
    """C V diag(w) Vᵀ, for weights of at least 0."""
    half = _gram((vectors * weights.sqrt()).mT)
    # A product with an odd number of rows is quicker than one with an odd number of columns.
    return ((half.tril() + half.tril(-1).mT) @ columns.mT).mT


def _inverse_roots(squares: Tensor, largest: Tensor, n: int) -> Tensor:
    """One over the roots of eigenvalues; 0 for those that stand for no direction."""
    weak = (squares <= DIRECTION**2 * largest).sum()
    floor = torch.where(weak <= n // CHANCE, COINCIDENCE**2, DIRECTION**2) * largest
    return torch.where(squares > floor, squares, torch.inf).rsqrt()


def _eigh(gram: Tensor, count: int | None = None) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of a symmetric matrix and their vectors, rising; all, if not told."""
    n = len(gram)
    first = 0 if count is None else n - count
    if gram.device.type != "cpu" or n < QUICK_MIN_SIZE:
        values, vectors = torch.linalg.eigh(gram)
        return values[first:], vectors[:, first:]
    array = gram.numpy()
    reduce, solve, turn = lapack.get_lapack_funcs(("sytrd", "stevd", "ormqr"), (array,))
    with _blas_threads():
        reflectors, diagonal, beside, factors, _ = reduce(array, lower=1, lwork=64 * n)
        values, vectors, failed = solve(diagonal, beside)
        if failed:
            raise LinAlgError(f"the eigenvalues of {n} × {n} numbers do not converge")
        vectors = vectors[:, first:]
        vectors[1:], *_ = turn("L", "N", reflectors[1:, :-1], factors, vectors[1:], lwork=64 * n)
    return torch.from_numpy(values[first:]), torch.from_numpy(vectors)


def _gram(matrix: Tensor) -> Tensor:
    """The lower triangle of MᵀM, which is all that `eigh` reads; of the other half, anything."""
    if matrix.device.type != "cpu":
        return matrix.mT @ matrix
    array = matrix.numpy()
    rows = array.flags.f_contiguous
    product = blas.get_blas_funcs("syrk", (array,))
    with _blas_threads():
        return torch.from_numpy(product(1.0, array if rows else array.T, trans=int(rows), lower=1))


@cache
def _controller() -> ThreadpoolController:
    """Of the threads of scipy's own library."""
    return ThreadpoolController()


def _blas_threads() -> AbstractContextManager[object]:
    """As many threads in scipy as in torch."""
    return _controller().limit(limits=torch.get_num_threads(), user_api="blas")


def _tall(matrix: Tensor) -> Tensor:
    """The matrix or its transpose: a Gram matrix of the short side is the small one."""
    return matrix.mT if matrix.shape[0] < matrix.shape[1] else matrix


def _signed(matrix: Tensor, image: Tensor, values: Tensor, inner: Tensor) -> Triplets:
    """Triplets with the largest entry of every left vector positive."""
    outer = image / values
    left, right = (outer, inner) if matrix.shape[0] >= matrix.shape[1] else (inner, outer)
    sign = torch.where(left.amax(dim=0) < -left.amin(dim=0), -1.0, 1.0).to(left.dtype)
    return Triplets(left * sign, values, right * sign)
