"""Ensembles of runs: their members, their rows, and that they repeat bit for bit."""

from dataclasses import replace

import pytest
import torch

from afield.errors import SpecError
from afield.networks.inference import BatchPredictor
from afield.reporting.results import group_records
from afield.reporting.sections import method_costs
from afield.runs.finished import reopen
from afield.runs.record import Record
from afield.runs.row import Row
from afield.runs.run_files import read_run_weights
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.studies.benchmark import make_benchmark
from afield.studies.commands import row_command
from afield.studies.planning import check_run
from tests.runs.interruption import do_sweep, kill_while, outcome

SHORT = {"targets": "turn0", "trials": 1, "steps": 20, "every": 10}


def planned(methods="erm", **words):
    return make_benchmark("spirals", methods, **{**SHORT, "ensemble": 3, **words}).runs()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A method, two more members and their ensemble, done."""
    runs = planned()
    store = Store(tmp_path_factory.mktemp("ensembles"))
    assert all(isinstance(each, Record) for each in complete(runs, store))
    return runs, store


def test_the_first_member_is_the_ordinary_run_and_the_others_have_other_seeds():
    (plain,) = planned(ensemble=None)
    first, second, third, ensemble = planned()
    assert first == plain
    assert [run.member for run in (first, second, third)] == [0, 1, 2]
    assert [run.role for run in (first, second, third)] == ["", "member", "member"]
    assert len({run.seed for run in (first, second, third)}) == 3
    assert first.seed == ensemble.seed
    assert second.trial == first.trial
    assert ensemble.members == (first.key, second.key, third.key)
    assert ensemble.is_derived
    assert ensemble.order > second.order
    assert replace(second, member=0, role="") == first


def test_a_larger_ensemble_has_the_members_of_a_smaller_one():
    *three, _ = planned()
    *five, ensemble = planned(ensemble=5)
    assert [run.key for run in five[:3]] == [run.key for run in three]
    assert len(ensemble.members) == 5


def test_members_differ_in_their_weights_and_share_their_splits(done):
    (first, second, _, _), store = done
    weights = [read_run_weights(store.folder(run)) for run in (first, second)]
    assert all(not torch.equal(weights[0][name], weights[1][name]) for name in ("head.weight",))
    probes = [reopen(store.folder(run)).probes["turn10"].y for run in (first, second)]
    assert torch.equal(*probes)


def test_the_scores_are_those_of_the_mean_of_the_members_probabilities(done):
    runs, store = done
    subjects = [reopen(store.folder(run)) for run in runs]
    samples = [subject.domains["turn0"] for subject in subjects]
    logits = [subject.logits(each) for subject, each in zip(subjects, samples, strict=True)]
    mean = sum(each.softmax(1) for each in logits[:3]) / 3
    torch.testing.assert_close(logits[3].softmax(1), mean)
    (checkpoint,) = store.get(runs[3]).checkpoints
    hits = (mean.argmax(1) == samples[0].y).double().mean()
    assert checkpoint.scores["turn0"].main.accuracy == pytest.approx(float(hits))
    assert not read_run_weights(store.folder(runs[3]))


def test_an_ensemble_has_a_row_of_its_own_and_its_members_have_none(done):
    runs, store = done
    (results,) = group_records(store)
    assert sorted(results.methods) == ["erm", "erm × 3"]
    assert [row.family for _, row in sorted(results.rows.items())] == ["training", "ensembles"]
    assert not results.rows["erm × 3"].is_reference
    command = row_command(results.methods["erm × 3"], store="again")
    assert "--ensemble 3" in command
    assert Row.of(runs[3]).label.startswith("erm × 3")


def test_the_cost_of_an_ensemble_is_the_sum_over_its_members(done):
    runs, store = done
    (results,) = group_records(store)
    costs = {cost.method: cost for cost in method_costs(results, store)}
    seconds = [store.get(run).seconds for run in runs]
    assert costs["erm × 3"].seconds == pytest.approx(sum(seconds))
    assert costs["erm × 3"].time_ratio == pytest.approx(sum(seconds) / seconds[0])


def test_a_kill_at_any_file_changes_no_byte(done, tmp_path):
    runs, reference = done
    for write in (1, 4, 8):
        store = Store(tmp_path / str(write))
        kill_while(do_sweep, runs, store, write=write)
        assert any(store.get(run) is None for run in runs)
        list(complete(runs, store))
        assert all(outcome(store, run) == outcome(reference, run) for run in runs)


def test_rules_that_need_twins_are_not_for_ensembles():
    runs = planned(rules="sources,left-out-source", targets=())
    ensembles = [run for run in runs if run.members]
    assert len(ensembles) == 4
    assert {run.rules for run in ensembles} == {("sources",)}
    assert sum(len(run.sources) == 2 for run in runs) == 6


@pytest.mark.parametrize(
    ("method", "words", "label"),
    [
        ("vrex", {"start": "linear_probe", "average": "ema"}, "vrex + ema × 2"),
        ("mtl", {}, "mtl × 2"),
    ],
)
def test_ensembles_start_from_heads_average_weights_and_predict_from_batches(
    tmp_path, method, words, label
):
    runs, store = planned(method, ensemble=2, **words), Store(tmp_path)
    assert all(isinstance(each, Record) for each in complete(runs, store))
    (ensemble,) = [run for run in runs if run.members]
    assert Row.of(ensemble).label.startswith(label)
    by_batch = isinstance(reopen(store.folder(ensemble)).model, BatchPredictor)
    assert by_batch == (method == "mtl")


def test_ensembles_are_not_adapted_and_say_so(caplog):
    runs = planned(adapt="t3a")
    assert [run.role for run in runs] == ["", "member", "member", "ensemble", "adapted"]
    assert "not adapted" in caplog.text


def test_a_missing_member_is_named(done, tmp_path):
    runs, _ = done
    with pytest.raises(Exception, match=runs[0].key):
        execute(runs[3], Store(tmp_path))


@pytest.mark.parametrize(("count", "reason"), [(0, "2 or more"), (1, "2 or more"), (101, "100")])
def test_a_number_of_members_that_makes_no_ensemble_is_refused(count, reason):
    with pytest.raises(SpecError, match=reason):
        make_benchmark("spirals", "erm", ensemble=count)


def test_merges_alone_have_no_ensembles():
    with pytest.raises(SpecError, match="--ensemble is for --methods"):
        make_benchmark("spirals", merges="score", ensemble=2)


def test_the_run_of_an_ensemble_is_not_trained_by_itself():
    with pytest.raises(SpecError, match="bench with --ensemble"):
        check_run(planned()[-1])


def test_what_cannot_start_from_a_head_is_left_out_with_its_ensemble():
    runs = make_benchmark(
        "spirals", "all", start="linear_probe", ensemble=2, **{**SHORT, "steps": 2}
    ).runs()
    keys = {run.key for run in runs}
    assert all(set(run.members) <= keys for run in runs)
    assert {run.method for run in runs if run.members} == {r.method for r in runs if not r.role}
