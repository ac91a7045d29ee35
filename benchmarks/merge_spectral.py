"""CPU time of Algorithm 1 of SCORE, written with thin SVDs, over that of afield's.

    python benchmarks/merge_spectral.py [--blocks 1] [--domains 3 5]
    python benchmarks/merge_spectral.py --stability

One thread, float32, the matrices of a ViT-B/32 encoder. Experts are made like fine-tuned ones:
spectra that fall by a power law (σ₁/σ_k is printed) and directions that experts partly share. The
two take turns at every matrix. Beside every ratio stand the errors against Algorithm 1 in float64
with fixed signs: relative, in the Frobenius norm, for SCORE and for TSV, and the share of trim
decisions that differ. The ratio of all is printed last (goal: at least 2.5).

With --stability: a table of how much float32 changes a result of the same numbers in float64, ours
and Algorithm 1's, where deltas are of low rank, alike or zero, and where they are not.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from afield.merging.merges.score import keep_entries, score
from afield.merging.merges.tsv import tsv
from afield.merging.spectral import shared_basis

SHAPES = ((2304, 768), (768, 768), (3072, 768), (768, 3072))
TAU = 1.96


def experts(domains: int, m: int, n: int, *, seed: int) -> Tensor:
    """Deltas that look fine-tuned: steep spectra, and directions in common."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(m, n)
    weights = torch.arange(1, rank + 1).float() ** -1.0

    def directions(size: int) -> Tensor:
        return torch.randn(size, rank, generator=generator) / size**0.5

    left, right = directions(m), directions(n)
    made = [((left + directions(m)) * weights) @ (right + directions(n)).mT for _ in range(domains)]
    return 1e-2 * torch.stack(made)


def algorithm_1(deltas: Tensor, *, signs: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """SCORE as the paper writes it, the basis of TSV in it, and what the trim keeps."""
    domains, share = len(deltas), min(deltas.shape[1:]) // len(deltas)
    left, values, right = [], [], []
    for delta in deltas:
        u, s, vh = torch.linalg.svd(delta, full_matrices=False)
        u, v = u[:, :share], vh[:share].mT
        if signs:
            sign = u.gather(0, u.abs().argmax(dim=0, keepdim=True)).sign()
            u, v = u * sign, v * sign
        left, values, right = [*left, u], [*values, s[:share]], [*right, v]
    u, v = _polar(torch.cat(left, dim=1)), _polar(torch.cat(right, dim=1))
    squares = torch.stack([u.mT @ delta @ v for delta in deltas])
    trimmed = torch.stack([_trim(square, domains) for square in squares])
    return u @ trimmed.sum(dim=0) @ v.mT, (u * torch.cat(values)) @ v.mT, trimmed != 0


def _polar(columns: Tensor) -> Tensor:
    p, _, qh = torch.linalg.svd(columns, full_matrices=False)
    return p @ qh


def _trim(square: Tensor, domains: int) -> Tensor:
    diagonal = square.diagonal().diag()
    off = square - diagonal
    std, mean = torch.std_mean(off)
    return diagonal + off * ((off - mean).abs() <= TAU * std / domains)


def decisions(deltas: Tensor, *, exact: bool) -> Tensor:
    """What our trim keeps."""
    left, _, right = shared_basis(deltas, exact=exact)
    squares = [left.mT @ delta @ right for delta in deltas]
    width = TAU / len(deltas)
    return torch.stack([keep_entries(s, keep="trimmed", width=width) for s in squares]) != 0


def relative(found: Tensor, expected: Tensor) -> float:
    """Relative difference in the Frobenius norm; 0 where both are zero."""
    gap = (found.double() - expected.double()).norm().item()
    return gap / expected.double().norm().item() if gap else 0.0


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time of a job, and what it gives."""
    start = time.process_time()
    found = job()
    return time.process_time() - start, found


def measured(deltas: Tensor) -> Iterator[tuple[str, float, float, float, float]]:
    """Mode, CPU time, errors of SCORE and TSV and share of other decisions, of each way."""
    merged, tsv_merged, mask = algorithm_1(deltas.double(), signs=True)
    rounded, rounded_tsv, rounded_mask = algorithm_1(deltas, signs=True)

    def errors(a: Tensor, b: Tensor, c: Tensor) -> tuple[float, float, float]:
        return relative(a, merged), relative(b, tsv_merged), (c != mask).double().mean().item()

    spent, _ = timed(lambda: algorithm_1(deltas))
    yield "thin", spent, *errors(rounded, rounded_tsv, rounded_mask)
    for mode, exact in (("fast", False), ("exact", True)):
        spent, found = timed(lambda exact=exact: score(deltas, exact=exact))
        others = tsv(deltas, exact=exact), decisions(deltas, exact=exact)
        yield mode, spent, *errors(found, *others)


def speed(blocks: int, domains: Sequence[int]) -> None:
    """Print ratios and errors by number of domains and shape, and the ratio of all last."""
    total = {"thin": 0.0, "fast": 0.0, "exact": 0.0}
    for count in domains:
        for shape in SHAPES:
            _warm_up(shape)
            spent = dict.fromkeys(total, 0.0)
            worst = {mode: [0.0, 0.0, 0.0] for mode in total}
            steep = []
            for block in range(blocks):
                deltas = experts(count, *shape, seed=block)
                values = torch.linalg.svdvals(deltas[0].double())
                steep.append((values[0] / values[min(shape) // count - 1]).item())
                for mode, cost, *errors in measured(deltas):
                    spent[mode] += cost
                    worst[mode] = [max(pair) for pair in zip(worst[mode], errors, strict=True)]
            _say(count, shape, sum(steep) / blocks, spent, worst)
            total = {mode: total[mode] + spent[mode] for mode in total}
    print(f"exact: {total['thin'] / total['exact']:.2f} times less CPU time")
    print(f"{total['thin'] / total['fast']:.2f} times less CPU time than Algorithm 1")


def unstable(m: int, n: int) -> Iterator[tuple[str, Tensor]]:
    """Deltas on which the authors' results depend on the accidents of LAPACK, and others."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    one, steep = normal(m, n), experts(2, m, n, seed=0)
    yield "full rank", normal(2, m, n)
    yield "full rank, wide", normal(2, n, m)
    yield "full rank, 3 experts (indivisible)", normal(3, m, n)
    values = torch.linalg.svdvals(steep[0])
    yield f"steep, σ₁/σ_k = {values[0] / values[n // 2 - 1]:.0f}", steep
    yield "steep, 3 experts (indivisible)", experts(3, m, n, seed=0)
    yield "rank 16", normal(2, m, 16) @ normal(2, 16, n)
    yield "rank 16, 3 experts", normal(3, m, 16) @ normal(3, 16, n)
    yield "nearly identical (1e-6)", one + 1e-6 * normal(2, m, n)
    yield "nearly identical (1e-6), steep", steep[0] + 1e-6 * steep.std() * normal(3, m, n)
    yield "identical", one.expand(2, m, n)
    yield "identical, 3 experts", one.expand(3, m, n)
    yield "one of two is zero", torch.stack([one, 0 * one])
    yield "zero", torch.zeros(3, m, n)


def stability(m: int = 768, n: int = 512) -> None:
    """Print, in Markdown, by how much float32 changes each result."""
    print(f"| deltas, {m} × {n} | TSV | SCORE | TSV, Algorithm 1 | SCORE, Algorithm 1 |")
    print("| --- | --- | --- | --- | --- |")
    for name, deltas in unstable(m, n):
        theirs = zip(algorithm_1(deltas)[:2], algorithm_1(deltas.double())[:2], strict=True)
        of_score, of_tsv = (relative(*pair) for pair in theirs)
        ours = [relative(merge(deltas), merge(deltas.double())) for merge in (tsv, score)]
        cells = [name, *(f"{change:.0e}" for change in (*ours, of_tsv, of_score))]
        print(f"| {' | '.join(cells)} |", flush=True)


def _warm_up(shape: tuple[int, int]) -> None:
    deltas = torch.randn(2, *(size // 4 for size in shape))
    algorithm_1(deltas)
    score(deltas)


def _say(
    count: int,
    shape: tuple[int, int],
    steep: float,
    spent: dict[str, float],
    worst: dict[str, list[float]],
) -> None:
    print(f"{count} experts, {shape[0]} × {shape[1]}, σ₁/σ_k {steep:.0f}")
    for mode, (of_score, of_tsv, of_trim) in worst.items():
        print(
            f"  {mode:5s} {spent['thin'] / spent[mode]:5.2f} x   {spent[mode]:6.2f} s   "
            f"score {of_score:.1e}   tsv {of_tsv:.1e}   trim {of_trim:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=1, help="of twelve, all of the same shapes")
    parser.add_argument("--domains", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--stability", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stability() if asked.stability else speed(asked.blocks, asked.domains)
