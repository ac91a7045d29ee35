"""The leading directions of matrices: singular triplets, and orthonormal ones nearest to several.

As they are in exact arithmetic, whatever LAPACK would have chosen where nothing determines the
choice. Through Gram matrices and their eigenvectors, which take less time than an SVD; in float64,
for the condition of a Gram matrix is the square of the matrix's: in float32, directions at 1/100 of
the largest would be wrong by tens of percent. The quick way does most in float32 after all, on what
is left without the steepest directions, and gives up (None) where that would not be as right as an
SVD in float32.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Triplets", "full_precision", "leading", "polar", "shared_basis", "side_by_side"]

# Below this share of the largest, a singular value is rounding: weights are float32 at best, and
# what a LoRA of rank 16 leaves beside its 16 directions, stored so, is about 1e-6 of the largest.
# In float64 the same, so that the same numbers have the same directions in either.
SIGNAL = 128 * torch.finfo(torch.float32).eps
# Below this share of the largest, a direction that unit vectors span together is what nearly equal
# vectors happen to differ in. A few fall below by chance, too: of n random ones in n dimensions
# about n in 10,000. While they are no more than one in 256, they count, unless they are so small
# that they would be rounding in float64: it squares them in the Gram matrix.
DIRECTION, CHANCE, COINCIDENCE = 1e-4, 256, 1e-6

# The quick way. So many of the steepest directions are taken out first, by so many steps of power
# iteration. Then float32 is right to about 1e-5, as after an SVD, provided that what is left falls
# by no more than this (squared), and all of it than this, to the last direction that is asked for;
STEEPEST, STEPS, FALL, RANGE = 32, 3, 400.0, 1e-3
# and that the steepest lack no more than this of directions outside of the subspace, about by whose
# square they are wrong in the end: in an even spectrum, power iteration does not find them.
LACK = 1e-2
# Eigenvalues of a Gram matrix of unit vectors above this share of the largest are right to 5e-5 in
# float32; those below are found again by themselves, while they are fewer than one in four.
# More than one in 64 at 1e-6 are no chance: experts are alike, and float64 has to tell them apart.
BULK, FEW, ALIKE = 3e-3, 4, 64


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
    quick = not exact and matrices.dtype == torch.float32
    if quick and (found := _quick_basis(matrices, share)) is not None:
        return found
    found = side_by_side([leading(matrix, share) for matrix in matrices])
    if len(found.values):
        found = Triplets(polar(found.left), found.values, polar(found.right))
    return Triplets(*(part.to(matrices.dtype) for part in found))


def side_by_side(triplets: Sequence[Triplets]) -> Triplets:
    """The triplets of several matrices, one after the other."""
    left, values, right = zip(*triplets, strict=True)
    return Triplets(torch.cat(left, dim=1), torch.cat(values), torch.cat(right, dim=1))


def leading(matrix: Tensor, count: int, *, scale: Tensor | None = None) -> Triplets:
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
    """
    tall = _tall(matrix).double()
    if count < 1:
        empty = [tall.new_zeros(size, 0) for size in matrix.shape]
        return Triplets(empty[0], tall.new_zeros(0), empty[1])
    _, vectors = torch.linalg.eigh(_gram(tall))
    inner = vectors[:, len(vectors) - count :].flip(1)
    image = tall @ inner
    values = image.norm(dim=0)
    largest = values.max() if scale is None else torch.maximum(values.max(), scale)
    signal = values > SIGNAL * largest
    return _signed(matrix, image[:, signal], values[signal], inner[:, signal])


def polar(columns: Tensor) -> Tensor:
    """The nearest orthonormal columns: P Qᵀ where P Σ Qᵀ is the thin SVD of the columns.

    Where they are dependent, or so nearly that it is rounding (Σ below 1e-4 of the largest),
    nothing is made up to fill the space: P and Q are those of the other directions.
    """
    squares, vectors = torch.linalg.eigh(_gram(columns))
    roots = _inverse_roots(squares, squares[-1], len(squares))
    return columns.double() @ ((vectors * roots) @ vectors.mT)


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


def _quick_basis(matrices: Tensor, share: int) -> Triplets | None:
    """The shared basis from float32, or None where float32 is not enough."""
    triplets = []
    for matrix in matrices:
        if (found := _quick_leading(matrix, share)) is None:
            return None
        triplets.append(found)
    left, values, right = side_by_side(triplets)
    if (left_factor := _quick_polar(left)) is None or (right_factor := _quick_polar(right)) is None:
        return None
    return Triplets(left_factor, values, right_factor)


def _quick_leading(matrix: Tensor, count: int) -> Triplets | None:
    """The first singular triplets, as right as an SVD in float32.

    A subspace that holds them and a few more: the steepest directions, roughly, the leading ones of
    what is left, and those that the steepest lack. In it, the triplets are found in float64.
    """
    tall = _tall(matrix)
    n, size = tall.shape[1], count + max(16, count // 8)
    if 2 * size > n or count < 2 * STEEPEST:
        return None  # A subspace that is no smaller than the whole is no help.
    basis = _steepest(tall)
    image = tall @ basis
    left_over = tall.addmm(image, basis.mT, alpha=-1.0)
    squares, vectors = torch.linalg.eigh(_gram(left_over, torch.float32))
    if not squares[-1] <= FALL * squares[STEEPEST - count]:
        return None
    within, outside = vectors[:, STEEPEST - size :], vectors[:, : STEEPEST - size]
    # The steepest are rough: what they lack from outside of the subspace, to first order.
    steep, turn = torch.linalg.eigh((image.mT @ image).double())
    gaps = steep.float() - squares[: STEEPEST - size, None]
    lack = outside @ (outside.mT @ (left_over.mT @ (image @ turn.float())) / gaps)
    if not lack.norm() <= LACK:
        return None
    more = torch.cat([within, torch.linalg.qr(lack).Q], dim=1)
    more = more - basis @ (basis.mT @ more)
    basis, image = torch.cat([basis, more], dim=1), torch.cat([image, tall @ more], dim=1)
    turn = _ritz(basis, image)[:, -count:].flip(1).float()
    inner, image = basis @ turn, image @ turn
    values = image.norm(dim=0)
    return _signed(matrix, image, values, inner) if values[-1] > RANGE * values[0] else None


def _steepest(tall: Tensor) -> Tensor:
    """An orthonormal basis of about the steepest directions, from columns spread over it."""
    found = tall[:, :: tall.shape[1] // STEEPEST][:, :STEEPEST]
    for _ in range(STEPS - 1):
        found = tall @ torch.linalg.qr(tall.mT @ found).Q
    return torch.linalg.qr(tall.mT @ found).Q


def _ritz(basis: Tensor, image: Tensor) -> Tensor:
    """How to turn a basis so that its image under a matrix has orthogonal columns, in float64.

    A basis from float32 is orthonormal but for rounding, which is taken off to first order.
    """
    excess = _whole(_gram(basis))
    excess.diagonal().sub_(1.0)
    gram = _whole(_gram(image))
    mixed = excess @ gram
    _, turn = torch.linalg.eigh(gram - (mixed + mixed.mT) / 2)
    return turn - excess @ turn / 2


def _quick_polar(columns: Tensor) -> Tensor | None:
    """The polar factor from a float32 decomposition, whose small part is found again."""
    squares, vectors = torch.linalg.eigh(_gram(columns, torch.float32))
    n, small = len(squares), int((squares <= BULK * squares[-1]).sum())
    if small * FEW > n:
        return None
    bulk, squares = vectors[:, small:], squares[small:]
    factor = columns @ ((bulk * squares.rsqrt()) @ bulk.mT)
    if not small:
        return factor
    precise, rest = columns.double(), vectors[:, :small].double()
    # What float32 left of the bulk in the rest, to first order: it weighs the more, the smaller.
    mixed = (bulk.mT @ (precise.mT @ (precise @ rest)).float()) / squares[:, None]
    rest = torch.linalg.qr(rest - (bulk @ mixed).double()).Q
    image = precise @ rest
    own, turn = torch.linalg.eigh(image.mT @ image)
    if (own <= COINCIDENCE * squares[-1]).sum() * ALIKE > n:
        return None
    turned = turn * _inverse_roots(own, squares[-1], n)
    return factor.addmm((image @ turned).float(), (rest @ turn).mT.float())


def _inverse_roots(squares: Tensor, largest: Tensor, n: int) -> Tensor:
    """One over the roots of eigenvalues; 0 for those that stand for no direction."""
    weak = (squares <= DIRECTION**2 * largest).sum()
    floor = torch.where(weak <= n // CHANCE, COINCIDENCE**2, DIRECTION**2) * largest
    return torch.where(squares > floor, squares, torch.inf).rsqrt()


def _gram(matrix: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """The lower triangle of MᵀM; the other half is the same, and `eigh` does not read it."""
    precise, n = matrix.to(dtype), matrix.shape[1]
    result, step = precise.new_zeros(n, n), max(64, -(-n // 4))
    for start in range(0, n, step):
        rows, until = slice(start, start + step), min(start + step, n)
        result[rows, :until] = precise[:, rows].mT @ precise[:, :until]
    return result


def _whole(gram: Tensor) -> Tensor:
    """Both triangles."""
    return gram.tril() + gram.tril(-1).mT


def _tall(matrix: Tensor) -> Tensor:
    """The matrix or its transpose: a Gram matrix of the short side is the small one."""
    return matrix.mT if matrix.shape[0] < matrix.shape[1] else matrix


def _signed(matrix: Tensor, image: Tensor, values: Tensor, inner: Tensor) -> Triplets:
    """Triplets with the largest entry of every left vector positive."""
    outer = image / values
    left, right = (outer, inner) if matrix.shape[0] >= matrix.shape[1] else (inner, outer)
    sign = torch.where(left.amax(dim=0) < -left.amin(dim=0), -1.0, 1.0).to(left.dtype)
    return Triplets(left * sign, values, right * sign)
