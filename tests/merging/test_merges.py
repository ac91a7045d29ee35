"""What several merges have in common: the authors' numbers, float32, and what is refused."""

from functools import partial

import pytest
import torch

from afield.errors import MergeError
from afield.merging.job import merge
from afield.merging.merges.breadcrumbs import breadcrumbs
from afield.merging.merges.dare import dare
from afield.merging.merges.fisher import fisher
from afield.merging.merges.iso_c import iso_c
from afield.merging.merges.iso_cts import iso_cts
from afield.merging.merges.regmean import regmean
from afield.merging.merges.score import score
from afield.merging.merges.task_arithmetic import task_arithmetic
from afield.merging.merges.ties import ties
from afield.merging.merges.tsv import tsv
from afield.merging.order_statistics import Deltas
from tests.merging.merges.matrices import (
    MATRICES,
    STABILITY,
    change,
    low_rank,
    normal,
    numbers,
    reference,
)
from tests.merging.merges.numbers import random
from tests.merging.merges.numbers import reference as reference_models

SPECTRAL = [score, tsv, iso_c, iso_cts]
EXPERTS = {"w": random(4)}


@pytest.mark.parametrize("experts", [2, 3])
@pytest.mark.parametrize("name", ["task_arithmetic", "ties", "magmax", "pcb"])
def test_models_are_merged_to_the_authors_numbers(name, experts):
    base, tuned, expected = reference_models(experts, name)
    torch.testing.assert_close(merge(name, base, tuned), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("domains", [2, 3])
@pytest.mark.parametrize(
    ("spectral", "name"), [(tsv, "tsv"), (iso_c, "isoc"), (iso_cts, "iso_cts")]
)
def test_matrices_are_merged_to_the_authors_numbers(spectral, name, domains, matrix):
    expected = numbers(f"merging_D{domains}")[f"out/{name}/{matrix}"]
    torch.testing.assert_close(spectral(reference(domains, matrix)), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", STABILITY)
@pytest.mark.parametrize("spectral", SPECTRAL)
def test_float32_is_float64(spectral, case):
    assert change(spectral, STABILITY[case]) < (5e-3 if spectral is score else 1e-4)


@pytest.mark.parametrize("deltas", [normal(3, 20, 12), normal(3, 12, 20), low_rank(3, 40, 40)])
@pytest.mark.parametrize("spectral", SPECTRAL)
def test_the_order_of_experts_does_not_matter(spectral, deltas):
    torch.testing.assert_close(spectral(deltas[[2, 0, 1]]), spectral(deltas))


@pytest.mark.parametrize("spectral", SPECTRAL)
def test_experts_that_learned_nothing_give_nothing(spectral):
    assert torch.equal(spectral(torch.zeros(3, 8, 6)), torch.zeros(8, 6))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("spectral", [score, tsv])
def test_deltas_are_left_alone_and_keep_their_type(spectral, exact):
    deltas = normal(3, 20, 12).float()
    before = deltas.clone()
    merged = spectral(deltas, exact=exact)
    assert (merged.dtype, merged.shape) == (torch.float32, (20, 12))
    assert torch.equal(deltas, before)


@pytest.mark.parametrize(
    "sparse", [partial(breadcrumbs, low=0.0, high=0.0), partial(dare, name="w", drop=0.0)]
)
def test_without_dropping_it_is_task_arithmetic(sparse):
    deltas = random(3, 5, 4)
    torch.testing.assert_close(sparse(deltas), task_arithmetic(deltas))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: breadcrumbs(random(2, 10), high=-0.1), r"high=-0.1: must be a share"),
        (lambda: dare(random(1, 3), name="w", drop=1.0), "leaves nothing"),
        (lambda: ties(Deltas(2, 10, list), density=1.5), r"density=1.5: must be a share"),
        (lambda: iso_cts(random(2, 4, 4), common=-5.0), "common="),
        (lambda: iso_cts(random(2, 4, 4), common=2.0), "common="),
        (lambda: fisher(random(2, 4), statistics=torch.full((2, 4), -1.0)), "mean of squares"),
        (lambda: fisher(random(2, 4), statistics=torch.full((2, 4), torch.nan)), "mean of squares"),
        (lambda: fisher(random(2, 4), statistics=torch.full((2, 4), torch.inf)), "mean of squares"),
        (lambda: fisher(random(2, 4), statistics=torch.ones(2, 4), floor=0.0), "floor=0"),
        (
            lambda: regmean(random(2, 4, 6), statistics=random(2, 4, 4)),
            r"shape \[4, 4\], not \[6, 6\]",
        ),
        (lambda: regmean(random(2, 4, 6), statistics=random(2, 6, 6) * torch.nan), "not finite"),
        (lambda: merge("slerp", EXPERTS, [EXPERTS]), "slerp takes exactly 2 experts, not 1"),
        (lambda: merge("slerp", EXPERTS, [EXPERTS] * 3), "slerp takes exactly 2 experts, not 3"),
    ],
)
def test_settings_and_statistics_that_make_no_sense_are_refused(call, message):
    with pytest.raises(MergeError, match=message):
        call()
