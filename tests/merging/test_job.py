"""Planning a merge and carrying it out."""

import pytest
import torch

from afield import registry
from afield.errors import MergeError, SpecError, UnknownNameError
from afield.merging.job import StateDictSource, _stack_statistics, merge, merge_pieces, plan_merge
from afield.merging.scopes import scope
from tests.merging.families import SHAPES, assert_close, family, merged, statistics_for


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
    grams = [{"w": torch.ones(3)}]
    merge("regmean", base, [expert], statistics=grams)
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
        found = _stack_statistics(job, "a.weight", 0, 96, torch.device("meta"))
        assert found.device.type == "meta"


def test_a_matrix_without_statistics_is_averaged():
    base, experts = family(2)
    made = statistics_for("regmean", experts)
    del made[0]["b.weight"]
    found, means = merge("regmean", base, experts, statistics=made), merge("average", base, experts)
    assert torch.equal(found["b.weight"], means["b.weight"])
    assert not torch.equal(found["a.weight"], means["a.weight"])


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
