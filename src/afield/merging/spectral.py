"""Leading directions of matrices: singular triplets, and the nearest orthonormal vectors.

The results are those of exact arithmetic; they do not depend on what LAPACK chooses where the
mathematics leaves a choice. They come from eigenvectors of Gram matrices, which take less time than
an SVD. The Gram matrices are in float64, because their condition number is the square of the
matrix's: in float32, directions at 1/100 of the largest would be wrong by tens of percent. The
polar factor of unit vectors is computed in float32 if that is as accurate as an SVD in float32.

On a CPU, LAPACK's steps are called one by one through scipy: a third of the eigenvectors takes two
thirds of the time that torch takes for all.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import NamedTuple

import torch
from scipy.linalg import LinAlgError, blas, lapack
from threadpoolctl import ThreadpoolController
from torch import Tensor

from afield.compute import matrix_products

# A singular value below this share of the largest is rounding: weights are float32 at best, and a
# LoRA of rank 16 that is stored as float32 leaves about 1e-6 of the largest beside its 16
# directions. The share is the same in float64, so that equal numbers have equal directions in both.
SIGNAL_FLOOR = 128 * torch.finfo(torch.float32).eps

# A direction spanned by unit vectors, below this share of the largest, is the small difference
# between nearly equal vectors.
DIRECTION_FLOOR = 1e-4
# A few directions fall below that floor by chance: of n random ones in n dimensions about n in
# 10,000. So while they are at most one in this many, they count ...
CHANCE_ONE_IN = 256
# ... unless they are so small that they are rounding in float64, since a Gram matrix squares them.
ROUNDING_FLOOR = 1e-6

# Products in float32 are as accurate as an SVD for a direction at this share of the largest.
FLOAT32_RANGE = 1e-3
# In float32, eigenvalues of a Gram matrix of unit vectors are accurate to 1e-4 if they are above
# this share of the largest. The others are computed again separately ...
BULK_FLOOR = 1e-3
# ... while they are at most one in this many.
SMALL_ONE_IN = 4
# More than one in this many at `ROUNDING_FLOOR` are not chance: experts are alike, and only float64
# can tell them apart.
ALIKE_ONE_IN = 64

# Smaller matrices take so little time that the quick computation is not worthwhile.
QUICK_MIN_SIZE = 128


class Triplets(NamedTuple):
    """Singular triplets of a matrix: vectors as columns, the largest value first."""

    left: Tensor
    values: Tensor
    right: Tensor


def shared_basis(matrices: Tensor, *, exact: bool) -> Triplets:
    """Leading triplets of each matrix, an equal share of the rank, with vectors made orthonormal.

    The result has the type of the matrices. It is computed in float64 if `exact`, or if the
    matrices are float64. If no matrix has a signal, the result has no columns.
    """
    share = max(1, min(matrices.shape[1:]) // len(matrices))
    quick = (
        not exact and matrices.dtype == torch.float32 and min(matrices.shape[1:]) >= QUICK_MIN_SIZE
    )
    left, values, right = concatenate_triplets(
        [leading_triplets(matrix, share, quick=quick) for matrix in matrices]
    )
    if left.dtype == torch.float32:
        factors = _quick_polar(left), _quick_polar(right)
        if factors[0] is None or factors[1] is None:
            return shared_basis(matrices, exact=True)
        return Triplets(factors[0], values, factors[1])
    if len(values):
        left, right = polar_factor(left), polar_factor(right)
    return Triplets(*(tensor.to(matrices.dtype) for tensor in (left, values, right)))


def concatenate_triplets(triplets: Sequence[Triplets]) -> Triplets:
    """Join the triplets of several matrices, in their order."""
    left, values, right = zip(*triplets, strict=True)
    return Triplets(torch.cat(left, dim=1), torch.cat(values), torch.cat(right, dim=1))


def leading_triplets(
    matrix: Tensor, count: int, *, scale: Tensor | None = None, quick: bool = False
) -> Triplets:
    """The leading singular triplets of a matrix that carry a signal, in float64.

    The largest entry of each left vector is positive.

    Parameters
    ----------
    matrix
        A matrix of any shape, in float32 or float64.
    count
        The largest number of triplets; there are fewer if the rest is rounding.
    scale
        A value that replaces the largest singular value, if it is larger, as the reference for
        what counts as rounding.
    quick
        Compute in float32 where that is as accurate as an SVD in float32.
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
    signal = values > SIGNAL_FLOOR * largest
    if not signal.all():
        image, values, inner = image[:, signal], values[signal], inner[:, signal]
    return _fix_signs(matrix, image, values, inner.to(tall.dtype))


def polar_factor(columns: Tensor) -> Tensor:
    """The nearest orthonormal columns: P Qᵀ where P Σ Qᵀ is the thin SVD of the columns.

    If the columns are dependent, or so nearly that the difference is rounding (Σ below 1e-4 of the
    largest), no directions are invented to fill the space: P and Q are those of the other
    directions. In float64.
    """
    columns = columns.double()
    squares, vectors = _eigh(_gram(columns))
    roots = _inverse_roots(squares, squares[-1], len(squares))
    return _multiply_symmetric(columns, vectors, roots)


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices in float32 and not in TF32, which may be enabled for training."""
    with matrix_products(tf32=False):
        yield


def _quick_polar(columns: Tensor) -> Tensor | None:
    """The polar factor from float32, with its small part refined; None if that is not enough."""
    squares, vectors = _eigh(_gram(columns))
    n, small = len(squares), int((squares <= BULK_FLOOR * squares[-1]).sum())
    if small * SMALL_ONE_IN > n:
        return None
    bulk, squares = vectors[:, small:], squares[small:]
    factor = _multiply_symmetric(columns, bulk, squares.rsqrt())
    if not small:
        return factor
    precise, rest = columns.double(), vectors[:, :small].double()
    # To first order, what float32 left of the bulk in the rest. Its weight grows as the rest's
    # eigenvalues shrink, so it is subtracted.
    mixed = (bulk.mT @ (precise.mT @ (precise @ rest)).float()) / squares[:, None]
    rest -= bulk @ mixed
    image = precise @ rest
    rest_squares, rotation = torch.linalg.eigh(image.mT @ image)
    if (rest_squares <= ROUNDING_FLOOR * squares[-1]).sum() * ALIKE_ONE_IN > n:
        return None
    weighted = rotation * _inverse_roots(rest_squares, squares[-1], n)
    return factor.addmm_((image @ weighted).float(), (rest @ rotation).mT.float())


def _multiply_symmetric(columns: Tensor, vectors: Tensor, weights: Tensor) -> Tensor:
    """C V diag(w) Vᵀ, for nonnegative weights."""
    half = _gram((vectors * weights.sqrt()).mT)
    # A product with an odd number of rows is faster than one with an odd number of columns.
    return ((half.tril() + half.tril(-1).mT) @ columns.mT).mT


def _inverse_roots(squares: Tensor, largest: Tensor, n: int) -> Tensor:
    """One over the square roots of eigenvalues; 0 for eigenvalues that are no direction."""
    weak = (squares <= DIRECTION_FLOOR**2 * largest).sum()
    by_chance = weak <= n // CHANCE_ONE_IN
    floor = torch.where(by_chance, ROUNDING_FLOOR**2, DIRECTION_FLOOR**2) * largest
    return torch.where(squares > floor, squares, torch.inf).rsqrt()


def _eigh(gram: Tensor, count: int | None = None) -> tuple[Tensor, Tensor]:
    """The `count` largest eigenvalues of a symmetric matrix and their vectors, in rising order.

    None means all of them.
    """
    n = len(gram)
    first = 0 if count is None else n - count
    if gram.device.type != "cpu" or n < QUICK_MIN_SIZE:
        values, vectors = torch.linalg.eigh(gram)
        return values[first:], vectors[:, first:]
    array = gram.numpy()
    reduce, solve, rotate = lapack.get_lapack_funcs(("sytrd", "stevd", "ormqr"), (array,))
    with _blas_threads():
        reflectors, diagonal, off_diagonal, factors, _ = reduce(array, lower=1, lwork=64 * n)
        values, vectors, failed = solve(diagonal, off_diagonal)
        if failed:
            raise LinAlgError(f"the eigenvalues of a {n} × {n} matrix do not converge")
        vectors = vectors[:, first:]
        vectors[1:], *_ = rotate("L", "N", reflectors[1:, :-1], factors, vectors[1:], lwork=64 * n)
    return torch.from_numpy(values[first:]), torch.from_numpy(vectors)


def _gram(matrix: Tensor) -> Tensor:
    """MᵀM; only its lower triangle is valid, which is all that `_eigh` reads."""
    if matrix.device.type != "cpu":
        return matrix.mT @ matrix
    array = matrix.numpy()
    by_columns = array.flags.f_contiguous
    product = blas.get_blas_funcs("syrk", (array,))
    with _blas_threads():
        operand = array if by_columns else array.T
        return torch.from_numpy(product(1.0, operand, trans=int(by_columns), lower=1))


@cache
def _controller() -> ThreadpoolController:
    """The controller of the threads that scipy's BLAS uses."""
    return ThreadpoolController()


def _blas_threads() -> AbstractContextManager[object]:
    """Let scipy use as many threads as torch."""
    return _controller().limit(limits=torch.get_num_threads(), user_api="blas")


def _tall(matrix: Tensor) -> Tensor:
    """The matrix or its transpose, whichever has the smaller Gram matrix."""
    return matrix.mT if matrix.shape[0] < matrix.shape[1] else matrix


def _fix_signs(matrix: Tensor, image: Tensor, values: Tensor, inner: Tensor) -> Triplets:
    """Triplets with the largest entry of every left vector positive."""
    outer = image / values
    left, right = (outer, inner) if matrix.shape[0] >= matrix.shape[1] else (inner, outer)
    sign = torch.where(left.amax(dim=0) < -left.amin(dim=0), -1.0, 1.0).to(left.dtype)
    return Triplets(left * sign, values, right * sign)
