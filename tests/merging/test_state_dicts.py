"""The contract of all merges, what happens to which tensor, and what is refused or doubted."""

import logging
from itertools import permutations

import pytest
import torch

import afield
from afield import registry
from afield.errors import MergeError, SpecError, UnknownNameError
from afield.hyperparameters import extremes, ranges
from afield.merging.checks import TensorSpec
from afield.merging.job import StateDictSource, _stacked, required_keywords, scope_of
from afield.merging.state_dicts import merge, merged_pieces, plan_merge, scope, tensor_action

NAMES = registry.names("merges")
# Small matrices are computed exactly anyway; tests of spectral.py have large ones.
SETTINGS = [
    (name, each)
    for name in NAMES
    for each in ranges(registry.find("merges", name))
    if each != "exact"
]
# Why the order of the experts matters.
ORDERED = {
    "dare": "what is dropped depends on the place",
    "slerp": "it goes from the first to the second",
}
RUNNING = "averaged: running statistics, scale within 0 and 1"
SHAPES = {
    "a.weight": (12, 8),
    "b.weight": (8, 12),
    "square.weight": (9, 9),
    "conv.weight": (4, 3, 2, 2),
    "a.bias": (12,),
    "logit_scale": (),
    "text_projection": (6, 6),
}


def state(seed, *, spread=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    found = {n: spread * torch.randn(shape, generator=generator) for n, shape in SHAPES.items()}
    return {name: tensor.to(dtype) for name, tensor in found.items()}


def family(count, *, dtype=torch.float32, spread=0.05):
    """A base, and experts not far from it that have something in common."""
    base, common = state(0), state(99, spread=spread)
    experts = []
    for seed in range(1, count + 1):
        own = state(seed, spread=spread)
        experts.append({n: (base[n] + own[n] + common[n]).to(dtype) for n in base})
    return {name: tensor.to(dtype) for name, tensor in base.items()}, experts


def count_for(name):
    return 2 if name == "slerp" else 3


def statistics_for(name, experts):
    """What fisher and regmean need, made up."""
    if "statistics" not in required_keywords(registry.find("merges", name)):
        return None
    found = []
    for expert in experts:
        wide = {key: tensor.double() for key, tensor in expert.items()}
        if scope_of(registry.find("merges", name)) == "entry":
            found.append({key: tensor.square() for key, tensor in wide.items()})
        else:
            found.append({k: t.mT @ t for k, t in wide.items() if t.ndim == 2})
    return found


def merged(name, base, experts, **settings):
    return merge(name, base, experts, statistics=statistics_for(name, experts), **settings)


def assert_close(found, expected, **tolerance):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **tolerance, msg=lambda m, n=name: n + m)


def distance(first, second):
    return sum(float((first[name].double() - second[name].double()).norm()) for name in first)


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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_experts_that_have_changed_nothing_give_the_base(name, dtype):
    base, _ = family(1, dtype=dtype)
    found = merged(name, base, [dict(base)] * count_for(name))
    assert_close(found, base, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "slerp"])
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
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


@pytest.mark.parametrize("name", ["average", "task_arithmetic", "ties", "magmax", "pcb"])
def test_pieces_give_what_the_whole_gives(name, monkeypatch):
    base, experts = family(3)
    whole = merged(name, base, experts)
    monkeypatch.setattr("afield.merging.job.ENTRIES_PER_PIECE", 7)
    assert_close(merged(name, base, experts), whole)


def test_it_is_the_function_of_the_package():
    assert afield.merge is merge


@pytest.mark.parametrize(
    ("kind", "name", "spec", "rule"),
    [
        ("matrix", "w", TensorSpec(torch.float32, (3, 4)), "merged"),
        ("matrix", "w", TensorSpec(torch.bfloat16, (3,)), "averaged: not a matrix"),
        ("matrix", "w", TensorSpec(torch.float32, ()), "averaged: not a matrix"),
        ("matrix", "w", TensorSpec(torch.float16, (3, 4, 2, 2)), "averaged: not a matrix"),
        (
            "matrix",
            "text_projection",
            TensorSpec(torch.float32, (3, 4)),
            "averaged: text_projection",
        ),
        ("tensor", "text_projection", TensorSpec(torch.float32, (3, 4)), "merged"),
        ("entry", "w", TensorSpec(torch.float32, ()), "merged"),
        ("model", "w", TensorSpec(torch.float32, (3,)), "merged"),
        ("model", "bn.running_var", TensorSpec(torch.float32, (3,)), RUNNING),
        ("matrix", "bn.running_mean", TensorSpec(torch.float32, (3,)), RUNNING),
        ("entry", "ids", TensorSpec(torch.int64, (3, 4)), "kept: not floating point"),
        ("matrix", "mask", TensorSpec(torch.bool, (3, 4)), "kept: not floating point"),
        ("matrix", "w", TensorSpec(torch.float32, (0, 4)), "kept: empty"),
    ],
)
def test_what_happens_to_a_tensor(kind, name, spec, rule):
    assert tensor_action(kind, name, spec) == rule


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


def test_a_model_in_which_nothing_is_for_the_merge_is_doubted(caplog):
    base, expert = {"w": torch.ones(3)}, {"w": torch.full((3,), 1.1)}
    grams = [{"w": torch.ones(3)}]
    merge("regmean", base, [expert], statistics=grams)
    assert "regmean: nothing in base is for it to merge" in caplog.text


@pytest.mark.parametrize("name", ["average", "score", "ties"])
@pytest.mark.parametrize("base", [{"ids": torch.arange(3)}, {"w": torch.ones(0, 4)}])
def test_a_model_without_floating_point_numbers_is_refused(name, base):
    with pytest.raises(MergeError, match="base: nothing to merge, for no floating-point numbers"):
        merge(name, base, [base])


def doubts(caplog, base, experts):
    with caplog.at_level(logging.WARNING):
        merge("average", base, experts)
    found = [record.message for record in caplog.records]
    caplog.clear()
    return found


def test_an_ordinary_family_is_not_doubted(caplog):
    assert doubts(caplog, *family(3)) == []


def test_an_expert_identical_to_the_base_is_doubted(caplog):
    base, experts = family(1)
    (told,) = doubts(caplog, base, [experts[0], base])
    assert told.startswith("expert 2: all its weights are those of base")


def test_the_same_expert_twice_is_doubted(caplog):
    base, experts = family(2)
    (told,) = doubts(caplog, base, [*experts, experts[0]])
    assert told == "expert 3: the same weights as expert 1; they count twice"


def test_opposite_experts_and_equally_large_ones_are_not_the_same(caplog):
    base = {"a": 9 * torch.eye(3), "b": 9 * torch.eye(3)}
    forth, back = ({name: w + sign for name, w in base.items()} for sign in (1, -1))
    assert doubts(caplog, base, [forth, back]) == []
    # Alike in one tensor, opposite in the other.
    assert doubts(caplog, base, [forth, {"a": forth["a"], "b": back["b"]}]) == []


def test_of_three_experts_the_pair_that_is_the_same_throughout_is_named(caplog):
    base = {"a": 9 * torch.eye(3), "b": 9 * torch.eye(3)}
    first = {"a": base["a"] + 1, "b": base["b"] + 1}
    second = {"a": base["a"] + 1, "b": base["b"] - 1}
    (told,) = doubts(caplog, base, [first, second, second])
    assert told == "expert 3: the same weights as expert 2; they count twice"


def test_experts_that_differ_in_one_piece_only_are_not_the_same(caplog, monkeypatch):
    monkeypatch.setattr("afield.merging.job.ENTRIES_PER_PIECE", 4)
    base = {"w": torch.full((12,), 9.0)}
    first, second = torch.full((12,), 9.5), torch.full((12,), 9.5)
    second[5] = 8.5
    assert doubts(caplog, base, [{"w": first}, {"w": second}]) == []


def test_sizes_are_summed_in_float64():
    # Its square is no float32.
    base = {"w": torch.tensor([4097.0], dtype=torch.float64)}
    job, movements = (
        plan_merge("average", StateDictSource(base, "b"), [StateDictSource(base, "e")]),
        [],
    )
    list(merged_pieces(job, "w", movements.append))
    assert movements[0].base == 4097


def test_a_base_of_zeros_is_doubted_in_plain_words(caplog):
    base, experts = family(2)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in base.items()}
    assert doubts(caplog, zeros, experts) == [
        "base: all its weights are 0; is that the experts' base?"
    ]


def test_where_only_zeros_have_moved_they_are_named(caplog):
    base = {"a": torch.ones(4), "b": torch.zeros(4)}
    (told,) = doubts(caplog, base, [{"a": torch.ones(4), "b": torch.ones(4)}])
    assert told == (
        "expert 1: differs from base by 1.00 times its size, most in b (0 in the base); "
        "is that its base?"
    )


def test_a_base_that_is_not_the_experts_base_is_doubted_with_the_tensor(caplog):
    base, _ = family(0)
    far = dict(base) | {name: state(5)[name] for name in ("a.weight", "b.weight", "square.weight")}
    far["b.weight"] = 3 * far["b.weight"]
    (told,) = doubts(caplog, base, [far])
    assert told.startswith("expert 1: differs from base by ")
    assert "most in b.weight" in told
    assert told.endswith("is that its base?")


def test_integers_that_an_expert_has_changed_are_doubted_but_counters_are_not(caplog):
    base, experts = family(1)
    base["ids"] = torch.arange(3)
    base["bn.num_batches_tracked"] = torch.tensor(1)
    experts[0] |= {"ids": torch.ones(3).long(), "bn.num_batches_tracked": torch.tensor(7)}
    (told,) = doubts(caplog, base, experts)
    assert told.startswith("ids changed by the experts")


def test_extra_tensors_and_other_types_are_doubted_with_the_tensor(caplog):
    base, experts = family(1)
    experts[0]["head.weight"] = torch.ones(2, 2)
    experts[0]["a.bias"] = experts[0]["a.bias"].half()
    first, second = doubts(caplog, base, experts)
    assert first == "expert 1: head.weight not in base, and so not in the result"
    assert second == "expert 1: a.bias float16 instead of float32, as the result will be"


def test_a_missing_tensor_is_an_error_but_a_missing_integer_is_not():
    base, experts = family(1)
    base["position_ids"] = torch.arange(4)
    assert torch.equal(merge("average", base, experts)["position_ids"], torch.arange(4))
    del experts[0]["a.weight"]
    with pytest.raises(MergeError, match=r"expert 1: a.weight of base not in it"):
        merge("average", base, experts)
    del experts[0]["a.bias"]
    with pytest.raises(MergeError, match=r"2 tensors \(e.g. a.weight\)"):
        merge("average", base, experts)


def test_other_names_altogether_are_an_error_that_shows_both():
    base, experts = family(1)
    renamed = {f"module.{name}": tensor for name, tensor in experts[0].items()}
    with pytest.raises(MergeError, match=r"none .*base has a.weight, this has module.a.weight"):
        merge("average", base, [renamed])


def test_another_shape_is_an_error_with_the_tensor():
    base, experts = family(2)
    experts[1]["b.weight"] = torch.ones(8, 11)
    with pytest.raises(MergeError, match=r"expert 2: b.weight has the shape \[8, 11\].*\[8, 12\]"):
        merge("average", base, experts)


def test_quantised_weights_are_an_error():
    base, experts = family(1)
    experts[0]["a.weight"] = torch.zeros(12, 8, dtype=torch.int8)
    with pytest.raises(MergeError, match=r"expert 1: a.weight is int8, but float32"):
        merge("average", base, experts)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "slerp"])
@pytest.mark.parametrize(("bad", "told"), [(torch.nan, "NaN"), (torch.inf, "an infinite number")])
def test_numbers_that_are_not_finite_are_an_error_with_source_and_tensor(name, bad, told):
    base, experts = family(2)
    broken = dict(experts[1])
    broken["a.weight"] = broken["a.weight"].clone()
    broken["a.weight"][3, 2] = bad
    made = statistics_for(name, experts)
    with pytest.raises(MergeError, match=f"expert 2: {told} in a.weight"):
        merge(name, base, [experts[0], broken], statistics=made)
    with pytest.raises(MergeError, match=f"base: {told} in a.weight"):
        merge(name, broken, experts, statistics=made)


def test_nan_in_base_and_experts_alike_is_an_error_too():
    base, experts = family(1)
    base["a.bias"] = experts[0]["a.bias"] = torch.full((12,), torch.nan)
    with pytest.raises(MergeError, match=r"base: NaN in a.bias"):
        merge("average", base, experts)


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


def test_names_that_are_no_strings_are_an_error():
    base, experts = family(1)
    with pytest.raises(MergeError, match="base: the name 0 is not a string; give a state dict"):
        merge("average", {0: torch.ones(2)}, [{0: torch.ones(2)}])
    with pytest.raises(MergeError, match="expert 1: the name None is not a string"):
        merge("average", base, [experts[0] | {None: torch.ones(2)}])


def test_a_tensor_whose_entries_lie_in_another_order_is_copied_once_for_all_its_pieces():
    strided = torch.arange(12.0).view(3, 4).T
    source = StateDictSource({"w": strided, "v": torch.ones(2)}, "base")
    pieces = [source.read("w", i, i + 4) for i in (0, 4, 8)]
    assert torch.equal(torch.cat(pieces), strided.flatten())
    assert len({piece.untyped_storage().data_ptr() for piece in pieces}) == 1
    assert torch.equal(source.read("v"), torch.ones(2))


def test_statistics_are_needed_by_some_and_used_by_no_other():
    base, experts = family(2)
    for name in ("fisher", "regmean"):
        with pytest.raises(MergeError, match=f"{name} needs statistics, one .* 2 experts .0 given"):
            merge(name, base, experts)
    with pytest.raises(MergeError, match="ties uses no statistics"):
        merge("ties", base, experts, statistics=[{}, {}])
    made = statistics_for("fisher", experts)
    del made[1]["a.bias"]
    with pytest.raises(MergeError, match=r"a.bias: not in statistics 2"):
        merge("fisher", base, experts, statistics=made)
    made[1]["a.bias"] = torch.ones(3)
    with pytest.raises(MergeError, match=r"a.bias: in statistics 2 it has another shape, \[3\]"):
        merge("fisher", base, experts, statistics=made)


def test_missing_statistics_are_told_before_anything_is_read():
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
        found = _stacked(job, "a.weight", 0, 96, torch.device("meta"))
        assert found.device.type == "meta"


def test_a_matrix_without_statistics_is_averaged():
    base, experts = family(2)
    made = statistics_for("regmean", experts)
    del made[0]["b.weight"]
    found, means = merge("regmean", base, experts, statistics=made), merge("average", base, experts)
    assert torch.equal(found["b.weight"], means["b.weight"])
    assert not torch.equal(found["a.weight"], means["a.weight"])


def test_a_merge_may_not_ask_for_what_nobody_has(monkeypatch):
    @scope("entry")
    def greedy(deltas, *, labels):
        return deltas[0]

    monkeypatch.setattr(registry, "find", lambda kind, name: greedy)
    base, experts = family(1)
    with pytest.raises(SpecError, match="greedy: a setting needs a default"):
        merge("greedy", base, experts)


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
