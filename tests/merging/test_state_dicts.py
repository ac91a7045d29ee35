"""The contract of all merges of state dicts."""

from itertools import permutations

import pytest
import torch

import afield
from afield import registry
from afield.errors import MergeError
from afield.hyperparameters import extremes, ranges
from afield.merging.job import StateDictSource, merge
from afield.merging.scopes import expert_count, scope_of
from tests.merging.families import (
    NAMES,
    assert_close,
    count_for,
    distance,
    family,
    merged,
    statistics_for,
)

# Merges that take any number of experts.
ANY_COUNT = [name for name in NAMES if expert_count(registry.find("merges", name)) is None]
# Small matrices are computed exactly anyway; the tests of spectral.py have large ones.
SETTINGS = [
    (name, setting)
    for name in NAMES
    for setting in ranges(registry.find("merges", name))
    if setting != "exact"
]
# Why the order of the experts matters.
ORDERED = {
    "dare": "what is dropped depends on the index of the expert",
    "slerp": "it goes from the first to the second",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_shapes_and_types_are_the_bases_and_the_inputs_are_untouched(name):
    base, experts = family(count_for(name))
    copies = [{k: v.clone() for k, v in each.items()} for each in (base, *experts)]
    found = merged(name, base, experts)
    assert list(found) == list(base)
    for key in base:
        assert (found[key].dtype, found[key].shape) == (base[key].dtype, base[key].shape)
    for before, after in zip(copies, (base, *experts), strict=True):
        assert all(torch.equal(before[key], after[key]) for key in before)
    assert distance(found, base) > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_same_merge_again_is_the_same_to_the_bit(name):
    base, experts = family(count_for(name))
    first, second = merged(name, base, experts), merged(name, base, experts)
    assert all(torch.equal(first[key], second[key]) for key in base)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ORDERED])
def test_the_order_of_the_experts_does_not_matter(name):
    base, experts = family(3, dtype=torch.float64)
    expected = merged(name, base, experts)
    for order in permutations(experts):
        assert_close(merged(name, base, list(order)), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in NAMES if name in ORDERED])
def test_where_the_order_matters_the_docstring_says_so(name):
    base, experts = family(2)
    settings = {"t": 0.2} if name == "slerp" else {}
    first = merged(name, base, experts, **settings)
    assert distance(first, merged(name, base, experts[::-1], **settings)) > 0
    assert "order" in __import__(f"afield.merging.merges.{name}", fromlist=["_"]).__doc__


# The driver converts types; a merge for each scope shows that it does so for all.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in NAMES),
        *((name, torch.float64) for name in ("average", "ties", "score")),
        *((name, torch.bfloat16) for name in ("average", "ties", "score")),
    ],
)
def test_experts_that_have_changed_nothing_give_the_base(name, dtype):
    base, _ = family(1, dtype=dtype)
    found = merged(name, base, [dict(base)] * count_for(name))
    assert_close(found, base, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ANY_COUNT)
def test_one_expert_alone_gives_finite_numbers_near_it(name):
    base, experts = family(1)
    found = merged(name, base, experts)
    assert all(tensor.isfinite().all() for tensor in found.values())
    scale = distance(experts[0], base)
    assert 0 < distance(found, base) < 4 * scale


@pytest.mark.parametrize("name", ["average", "magmax", "model_stock", "fisher", "regmean"])
def test_of_one_expert_means_give_that_expert(name):
    base, experts = family(1, dtype=torch.float64)
    assert_close(merged(name, base, experts), experts[0])


@pytest.mark.parametrize("name", ["average", "magmax", "model_stock", "fisher", "regmean", "slerp"])
def test_identical_experts_give_that_expert(name):
    base, experts = family(1, dtype=torch.float64)
    assert_close(merged(name, base, experts * 2), experts[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_identical_experts_give_finite_numbers(name):
    base, experts = family(1)
    found = merged(name, base, experts * count_for(name))
    assert all(tensor.isfinite().all() for tensor in found.values())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.bfloat16) for name in NAMES),
        *((name, torch.float16) for name in ("average", "ties", "score")),
    ],
)
def test_short_types_are_computed_in_float32_and_kept(name, dtype):
    base, experts = family(count_for(name), dtype=dtype)
    found = merged(name, base, experts)
    wide = [{key: tensor.float() for key, tensor in each.items()} for each in (base, *experts)]
    expected = merged(name, wide[0], wide[1:])
    for key in base:
        assert found[key].dtype == dtype
        assert torch.equal(found[key], expected[key].to(dtype))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dare"])
def test_float32_is_near_float64(name):
    base, experts = family(count_for(name), dtype=torch.float64)
    narrow = [{key: tensor.float() for key, tensor in each.items()} for each in (base, *experts)]
    wide = [{key: tensor.double() for key, tensor in each.items()} for each in narrow]
    exact, found = merged(name, wide[0], wide[1:]), merged(name, narrow[0], narrow[1:])
    assert distance(found, exact) < 1e-2 * distance(exact, wide[0])


@pytest.mark.parametrize(("name", "setting"), SETTINGS)
def test_every_hyperparameter_changes_the_result(name, setting):
    base, experts = family(count_for(name))
    least, most = extremes(registry.find("merges", name), setting)
    results = [merged(name, base, experts, **{setting: value}) for value in (least, most)]
    assert distance(*results) > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_scale_is_how_far_one_goes_from_the_base(name):
    base, experts = family(count_for(name), dtype=torch.float64)
    whole = merged(name, base, experts)
    assert_close(merged(name, base, experts, scale=0.0), base)
    half = merged(name, base, experts, scale=0.5)
    assert_close(half, {key: (base[key] + whole[key]) / 2 for key in base})


@pytest.mark.parametrize(
    "name", [n for n in NAMES if scope_of(registry.find("merges", n)) == "matrix"]
)
def test_merges_of_matrices_average_all_else(name):
    base, experts = family(3)
    found, means = merged(name, base, experts), merge("average", base, experts)
    for key in ("conv.weight", "a.bias", "logit_scale", "text_projection"):
        assert torch.equal(found[key], means[key])
    assert not torch.equal(found["a.weight"], means["a.weight"])


def test_it_is_the_function_of_the_package():
    assert afield.merge is merge


@pytest.mark.parametrize("name", NAMES)
def test_integers_and_masks_are_kept_and_running_variances_stay_positive(name):
    base, experts = family(count_for(name))
    extra = {"n.running_var": torch.ones(4), "n.num_batches_tracked": torch.tensor(5)}
    infinite = {"mask": torch.full((3, 3), -torch.inf).triu(1)}
    base = base | extra | infinite
    experts = [e | extra | infinite | {"n.running_var": torch.full((4,), 0.01)} for e in experts]
    experts[0]["n.num_batches_tracked"] = torch.tensor(9)
    made = statistics_for(name, experts)
    found = merge(name, base, experts, statistics=made, scale=2.0)
    assert torch.equal(found["n.num_batches_tracked"], torch.tensor(5))
    assert torch.equal(found["mask"], infinite["mask"])
    torch.testing.assert_close(found["n.running_var"], torch.full((4,), 0.01))


def test_names_that_are_no_strings_are_an_error():
    with pytest.raises(MergeError, match="base: the name 0 is not a string; give a state dict"):
        merge("average", {0: torch.ones(2)}, [{0: torch.ones(2)}])


def test_a_tensor_whose_entries_lie_in_another_order_is_copied_once_for_all_its_pieces():
    strided = torch.arange(12.0).view(3, 4).T
    source = StateDictSource({"w": strided, "v": torch.ones(2)}, "base")
    pieces = [source.read("w", i, i + 4) for i in (0, 4, 8)]
    assert torch.equal(torch.cat(pieces), strided.flatten())
    assert len({piece.untyped_storage().data_ptr() for piece in pieces}) == 1
    assert torch.equal(source.read("v"), torch.ones(2))
