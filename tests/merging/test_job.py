"""Planning a merge and carrying it out."""

from itertools import permutations

import pytest
import torch

import afield
from afield import registry
from afield.errors import MergeError, SpecError, UnknownNameError
from afield.hyperparameters import extremes, ranges
from afield.merging.job import StateDictSource, _stack_statistics, merge, merge_pieces, plan_merge
from afield.merging.scopes import expert_count, scope, scope_of
from tests.merging.families import (
    NAMES,
    SHAPES,
    assert_close,
    count_for,
    distance,
    family,
    merged,
    statistics_for,
)


@pytest.mark.parametrize("name", ["average", "task_arithmetic", "ties", "magmax", "pcb"])
def test_pieces_give_what_the_whole_gives(name, monkeypatch):
    base, experts = family(3)
    whole = merged(name, base, experts)
    monkeypatch.setattr("afield.merging.job.ENTRIES_PER_PIECE", 7)
    assert_close(merged(name, base, experts), whole)


@pytest.mark.parametrize("name", ["dare", "breadcrumbs", "model_stock", "slerp"])
def test_a_merge_of_large_tensors_in_pieces_gives_what_the_whole_gives(name, monkeypatch):
    base, experts = family(2 if name == "slerp" else 3)
    whole = merged(name, base, experts)
    monkeypatch.setattr("afield.merging.job.MAX_WHOLE_ENTRIES", 10)
    for size in (7, 1 << 18):
        monkeypatch.setattr("afield.merging.job.ENTRIES_PER_PIECE", size)
        pieces = merged(name, base, experts)
        if name in ("dare", "breadcrumbs"):
            assert all(torch.equal(pieces[key], whole[key]) for key in whole)
        else:
            assert_close(pieces, whole)


def test_settings_of_a_merge_in_pieces_matter(monkeypatch):
    base, experts = family(3)
    monkeypatch.setattr("afield.merging.job.MAX_WHOLE_ENTRIES", 10)
    for name, settings in (
        ("dare", {"drop": 0.5}),
        ("dare", {"seed": 1}),
        ("breadcrumbs", {"low": 0.5}),
        ("breadcrumbs", {"high": 0.1}),
        ("breadcrumbs", {"low": 1.0}),
    ):
        default, changed = merge(name, base, experts), merge(name, base, experts, **settings)
        assert any(not torch.equal(default[key], changed[key]) for key in default), settings
    first, second = (merge("slerp", base, experts[:2], t=t) for t in (0.0, 1.0))
    assert_close(first, experts[0])
    assert_close(second, experts[1])
    (alone,) = [merge("model_stock", base, experts[:1])]
    assert_close(alone, experts[0])


def test_a_model_in_which_nothing_is_for_the_merge_is_doubted(caplog):
    base, expert = {"w": torch.ones(3)}, {"w": torch.full((3,), 1.1)}
    merge("regmean", base, [expert], statistics=[{"w": torch.ones(3)}])
    assert "regmean: no tensor of base fits this merge" in caplog.text


@pytest.mark.parametrize("name", ["average", "score", "ties"])
@pytest.mark.parametrize("base", [{"ids": torch.arange(3)}, {"w": torch.ones(0, 4)}])
def test_a_model_without_floating_point_numbers_is_refused(name, base):
    with pytest.raises(MergeError, match="base: nothing to merge, it has no floating-point"):
        merge(name, base, [base])


def test_sizes_are_summed_in_float64():
    # Its square is no float32.
    base = {"w": torch.tensor([4097.0], dtype=torch.float64)}
    job, movements = (
        plan_merge("average", StateDictSource(base, "b"), [StateDictSource(base, "e")]),
        [],
    )
    list(merge_pieces(job, "w", movements.append))
    assert movements[0].base == 4097


def test_a_result_too_large_for_its_type_is_an_error():
    base = {"w": torch.full((2, 2), 6e4, dtype=torch.float16)}
    expert = {"w": torch.full((2, 2), 6.2e4, dtype=torch.float16)}
    with pytest.raises(MergeError, match=r"w: the result is too large for torch.float16"):
        merge("task_arithmetic", base, [expert], scale=5.0)


def test_unknown_names_settings_and_scales_are_errors():
    base, experts = family(1)
    with pytest.raises(UnknownNameError, match="did you mean 'ties'"):
        merge("tie", base, experts)
    with pytest.raises(SpecError, match="ties has no setting 'densty'; did you mean 'density'"):
        merge("ties", base, experts, densty=0.1)
    with pytest.raises(SpecError, match="scale=nan"):
        merge("ties", base, experts, scale=float("nan"))
    with pytest.raises(MergeError, match="no experts"):
        merge("ties", base, [])
    with pytest.raises(MergeError, match="base: no tensors"):
        merge("ties", {}, experts)
    with pytest.raises(MergeError, match="expert 1: a is not a tensor"):
        merge("ties", base, [{"a": 3}])


def test_missing_statistics_are_reported_before_anything_is_read():
    base, experts = family(2)
    made = statistics_for("fisher", experts)
    del made[1]["text_projection"]
    sources = [StateDictSource(each, f"s{i}") for i, each in enumerate(made)]
    with pytest.raises(MergeError, match="text_projection: not in s1; statistics of every tensor"):
        plan_merge(
            "fisher",
            StateDictSource(base, "b"),
            [StateDictSource(e, "e") for e in experts],
            statistics=sources,
        )


def test_statistics_come_to_where_the_base_is():
    base, experts = family(2)
    for name in ("fisher", "regmean"):
        sources = [StateDictSource(each, "s") for each in statistics_for(name, experts)]
        experts_ = [StateDictSource(each, "e") for each in experts]
        job = plan_merge(name, StateDictSource(base, "b"), experts_, statistics=sources)
        result = _stack_statistics(job, "a.weight", 0, 96, torch.device("meta"))
        assert result.device.type == "meta"


def test_a_matrix_without_statistics_is_averaged():
    base, experts = family(2)
    made = statistics_for("regmean", experts)
    del made[0]["b.weight"]
    result, means = (
        merge("regmean", base, experts, statistics=made),
        merge("average", base, experts),
    )
    assert torch.equal(result["b.weight"], means["b.weight"])
    assert not torch.equal(result["a.weight"], means["a.weight"])


def test_a_merge_that_gives_nan_is_named_with_the_tensor(monkeypatch):
    @scope("tensor")
    def broken(deltas):
        return deltas[0] / 0

    monkeypatch.setattr(registry, "find", lambda kind, name: broken)
    base, experts = family(1)
    with pytest.raises(MergeError, match=r"a.weight: broken gives numbers that are not finite"):
        merge("broken", base, experts)


def test_the_plan_counts_what_happens(caplog):
    base, experts = family(1)
    base["ids"] = torch.arange(3)
    job = plan_merge("average", StateDictSource(base, "b"), [StateDictSource(experts[0], "e")])
    assert job.counts == {"kept: not floating point": 1, "merged": len(SHAPES)}
    assert caplog.text == ""


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
    result = merged(name, base, experts)
    assert list(result) == list(base)
    for key in base:
        assert (result[key].dtype, result[key].shape) == (base[key].dtype, base[key].shape)
    for before, after in zip(copies, (base, *experts), strict=True):
        assert all(torch.equal(before[key], after[key]) for key in before)
    assert distance(result, base) > 0


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
    assert_close(merged(name, base, [dict(base)] * count_for(name)), base, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ANY_COUNT)
def test_one_expert_alone_gives_finite_numbers_near_it(name):
    base, experts = family(1)
    result = merged(name, base, experts)
    assert all(tensor.isfinite().all() for tensor in result.values())
    scale = distance(experts[0], base)
    assert 0 < distance(result, base) < 4 * scale


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
    result = merged(name, base, experts * count_for(name))
    assert all(tensor.isfinite().all() for tensor in result.values())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.bfloat16) for name in NAMES),
        *((name, torch.float16) for name in ("average", "ties", "score")),
    ],
)
def test_short_types_are_computed_in_float32_and_kept(name, dtype):
    base, experts = family(count_for(name), dtype=dtype)
    result = merged(name, base, experts)
    wide = [{key: tensor.float() for key, tensor in each.items()} for each in (base, *experts)]
    expected = merged(name, wide[0], wide[1:])
    for key in base:
        assert result[key].dtype == dtype
        assert torch.equal(result[key], expected[key].to(dtype))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dare"])
def test_float32_is_near_float64(name):
    base, experts = family(count_for(name), dtype=torch.float64)
    narrow = [{key: tensor.float() for key, tensor in each.items()} for each in (base, *experts)]
    wide = [{key: tensor.double() for key, tensor in each.items()} for each in narrow]
    exact, result = merged(name, wide[0], wide[1:]), merged(name, narrow[0], narrow[1:])
    assert distance(result, exact) < 1e-2 * distance(exact, wide[0])


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
    result, means = merged(name, base, experts), merge("average", base, experts)
    for key in ("conv.weight", "a.bias", "logit_scale", "text_projection"):
        assert torch.equal(result[key], means[key])
    assert not torch.equal(result["a.weight"], means["a.weight"])


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
    result = merge(name, base, experts, statistics=made, scale=2.0)
    assert torch.equal(result["n.num_batches_tracked"], torch.tensor(5))
    assert torch.equal(result["mask"], infinite["mask"])
    torch.testing.assert_close(result["n.running_var"], torch.full((4,), 0.01))


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
