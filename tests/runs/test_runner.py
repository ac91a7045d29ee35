"""Honest runs: nothing of the target in training, and what is read, kept and deployed."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from afield import registry
from afield.data.lookup import find_dataset
from afield.data.stream import Stream
from afield.errors import DataError
from afield.networks.backbone import network
from afield.reporting.table import tabulate
from afield.runs import runner
from afield.runs.run_data import RunData
from afield.runs.run_files import read_run_weights
from afield.runs.run_setup import load_domains
from afield.runs.runner import execute
from afield.runs.selection import RULES, selection_value, source_accuracy
from afield.runs.store import Store
from afield.studies.planning import plan_run
from afield.studies.protocol import ALL_DOMAINS, DomainChoice
from afield.studies.settings import resolve_run
from afield.training.averages.swad import SWAD
from afield.training.learner import Learner, Task
from afield.training.loop import checkpoints
from afield.training.method import pool
from afield.training.methods.erm import ERM
from afield.training.optimizers import make_schedule
from afield.training.scores import Checkpoint
from tests.protocols import hold_out, leave_one_out
from tests.runs.interruption import interrupt, outcome
from tests.runs.small_runs import (
    LAST_STEP,
    VALLEY,
    averaged,
    probed_base,
    run_from_a_file,
    swad_run,
    varied_run,
)

by_sources, by_left_out_source, by_validation, by_target = (rule.pick for rule in RULES.values())


def test_a_finished_run_is_not_done_again(store):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 10})
    first = execute(run, store)
    seen = []
    assert execute(run, store, watch=lambda *arguments: seen.append(arguments)) == first
    assert seen == []


def test_the_callers_generators_and_threads_are_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    execute(plan_run("spirals", "erm", settings={"steps": 5}), Store(tmp_path))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_methods_start_from_the_same_weights_and_batches(store):
    """One step of vrex without a penalty is one step of erm."""
    settings = {"steps": 1}
    erm = plan_run("spirals", "erm", target="turn0", settings=settings)
    vrex = plan_run(
        "spirals", "vrex", target="turn0", settings=settings | {"vrex.penalty": 0, "vrex.warmup": 0}
    )
    for run in (erm, vrex):
        execute(run, store)
    first, second = store.weights(erm), store.weights(vrex)
    for name in first:
        torch.testing.assert_close(first[name], second[name])


def test_the_deployed_weights_are_those_of_the_best_checkpoint_on_the_sources(tmp_path):
    settings = {"steps": 40, "every": 1, "lr": 0.05}
    run = plan_run("spirals", "erm", target="turn0", settings=settings)
    store, seen = Store(tmp_path / "whole"), []
    record = execute(run, store)
    values = [source_accuracy(checkpoint, run.sources) for checkpoint in record.checkpoints]
    best = values.index(max(values))
    assert best < len(values) - 1, "the best is the last: the test has lost its point"
    short = replace(run, steps=record.checkpoints[best].step)
    execute(short, Store(tmp_path / "short"), watch=lambda *arguments: seen.append(arguments))
    weights, expected = store.weights(run), Store(tmp_path / "short").weights(short)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_only_what_the_rules_read_is_read(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 20, "every": 2})
    record = execute(run, Store(tmp_path))
    values = [source_accuracy(checkpoint, run.sources) for checkpoint in record.checkpoints]
    for i, checkpoint in enumerate(record.checkpoints):
        picked = i == values.index(max(values))
        last = i == len(values) - 1
        target = checkpoint.scores["turn0"]
        assert (target.main is not None) == (picked or last)
        assert (target.probe is not None) == last
        assert target.sample is not None
        for source in run.sources:
            scores = checkpoint.scores[source]
            assert (scores.main, scores.sample) == (None, None)
            assert scores.probe is not None


def test_details_are_kept_only_where_a_rule_can_pick(tmp_path):
    settings = {"steps": 60, "every": 6}
    every = plan_run("spirals", "erm", target="turn0", settings=settings)
    (record,) = [execute(every, Store(tmp_path / "two rules"))]
    values = [source_accuracy(each, every.sources) for each in record.checkpoints]
    picked = {values.index(max(values)), len(values) - 1}
    for i, checkpoint in enumerate(record.checkpoints):
        for source in every.sources:
            assert (checkpoint.score(source, "probe").confusion is not None) == (i in picked)
    best = record.checkpoints[min(picked)].score("turn0", "main")
    assert best.confusion.matrix.sum() == best.size
    assert best.confusion.matrix.trace() == round(best.accuracy * best.size)
    assert set(best.metrics) == {"macro_f1", "worst_class", "auroc"}
    any_rule = replace(every, rules=("left-out-source",))
    record = execute(any_rule, Store(tmp_path / "any"))
    for checkpoint in record.checkpoints:
        assert checkpoint.score("turn0", "main").confusion is not None
        assert checkpoint.score(every.sources[0], "probe").metrics is not None


def test_a_run_is_read_again_for_a_rule_that_needs_more_and_keeps_what_it_has(store):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 20, "every": 2})
    before = execute(run, store)
    weights = (store.folder(run) / "model.safetensors").read_bytes()
    more = execute(replace(run, rules=("left-out-source",)), store)
    assert all(checkpoint.score("turn0", "main") for checkpoint in more.checkpoints)
    assert more.checkpoints[-1].score("turn0", "probe") == before.checkpoints[-1].score(
        "turn0", "probe"
    )
    assert (store.folder(run) / "model.safetensors").read_bytes() == weights
    assert store.get(run) is not None


def arrays(path, *, noise):
    """Three domains of two blobs; with noise, the labels of the third are random."""
    generator = np.random.default_rng(0)
    y = np.tile([0, 1], 60)
    domain = np.repeat(["a", "b", "c"], 40)
    x = y[:, None] * 1.5 + generator.normal(size=(120, 4)) + np.repeat([0, 1, 2], 40)[:, None]
    if noise:
        y = np.where(domain == "c", generator.permutation(y), y)
        assert len(np.unique(y[domain == "c"])) == 2
    np.savez(path, X=x, y=y, domain=domain)
    return find_dataset(path)


def blind_runs(tmp_path, noise, plans):
    """The records of runs that did not train on the last domain, and their weights.

    A plan is a function from the dataset, with or without noise for that domain's labels, to runs.
    """
    dataset, store = arrays(tmp_path / f"{noise}.npz", noise=noise), Store(tmp_path / f"{noise}")
    blind = [[run for run in plan(dataset) if "c" not in run.sources] for plan in plans]
    assert all(blind)
    records = [execute(run, store) for runs in blind for run in runs]
    weights = [
        {name: value.tolist() for name, value in store.weights(record.run).items()}
        for record in records
    ]
    return records, weights


@pytest.mark.slow
def test_noise_for_labels_of_the_target_changes_neither_weights_nor_picks(tmp_path):
    options = {"trials": 1, "draws": 2, "rules": ["all"], "settings": {"steps": 30, "every": 3}}
    plans = [lambda dataset: leave_one_out(dataset, ["erm", "groupdro"], **options)]
    (records, weights), (noisy, noisy_weights) = (
        blind_runs(tmp_path, noise, plans) for noise in (False, True)
    )
    assert weights == noisy_weights
    for method in ("erm", "groupdro"):
        for rule in (by_sources, by_left_out_source):
            pick, other = (
                rule([record for record in each if record.run.method == method], "c")
                for each in (records, noisy)
            )
            assert (pick.step, pick.value, pick.run.draw) == (
                *(other.step, other.value, other.run.draw),
            )
    assert [record.checkpoints[-1].score("c", "main") for record in records] != [
        record.checkpoints[-1].score("c", "main") for record in noisy
    ]


@pytest.mark.slow
def test_noise_for_labels_of_the_target_changes_no_weight_however_a_benchmark_is_asked(tmp_path):
    steps = {"steps": 12, "every": 3}
    asked = [
        (DomainChoice(targets=("c",)), steps),
        (DomainChoice(targets=("b+c",)), steps),
        (DomainChoice(targets=("c",), validate_on=("b",)), steps),
        (DomainChoice(sources=("a",), targets=("c",)), steps),
        (DomainChoice(single_source=True), steps),
        (ALL_DOMAINS, {**steps, "report": "whole"}),
        (ALL_DOMAINS, {**steps, "split": "random"}),
        (ALL_DOMAINS, {"epochs": 2, "batch_total": 16, "lr_schedule": "exponential:rate=0.5"}),
        (ALL_DOMAINS, {**steps, "lr_schedule": "inverse:every=epoch,gamma=1,warmup=0.1"}),
    ]
    plans = [
        partial(leave_one_out, methods=["erm"], choice=choice, trials=1, settings=settings)
        for choice, settings in asked
    ]
    (records, weights), (noisy, noisy_weights) = (
        blind_runs(tmp_path, noise, plans) for noise in (False, True)
    )
    assert weights == noisy_weights
    for one, other in zip(records, noisy, strict=True):
        scores, others = (
            [point.score("c", "main") for point in each.checkpoints] for each in (one, other)
        )
        assert scores != others


def test_a_whole_domain_is_its_test_split_and_its_validation_split_together(tmp_path):
    dataset = arrays(tmp_path / "arrays.npz", noise=False)
    records = {}
    for report in ("test", "whole"):
        settings = {"steps": 6, "every": 3, "report": report}
        run = resolve_run(dataset, "erm", ("a", "b"), settings=settings)
        records[report] = execute(run, Store(tmp_path / report))
    whole = records["whole"].checkpoints[-1].scores["c"]
    split = records["test"].checkpoints[-1].scores["c"]
    assert (split.main.size, split.probe.size, whole.main.size) == (32, 8, 40)
    hits = split.main.accuracy * 32 + split.probe.accuracy * 8
    assert whole.main.accuracy == pytest.approx(hits / 40)
    assert whole.probe is None
    assert records["whole"].run.rules == ("sources",)


def test_inputs_of_the_target_do_not_reach_the_scaling(tmp_path):
    result = []
    for factor in (1.0, 1e6):
        path = tmp_path / f"{factor}.npz"
        arrays(path, noise=False)
        with np.load(path) as plain:
            x = np.where((plain["domain"] == "c")[:, None], plain["X"] * factor, plain["X"])
            content = {"X": x, "y": plain["y"], "domain": plain["domain"]}
        np.savez(path, **content)
        run = plan_run(path, "erm", target="c", settings={"steps": 10})
        store = Store(tmp_path / f"runs-{factor}")
        execute(run, store)
        result.append({name: value.tolist() for name, value in store.weights(run).items()})
    assert result[0] == result[1]


def test_data_that_changed_after_a_run_was_planned_are_refused(tmp_path):
    path = tmp_path / "own.npz"
    arrays(path, noise=False)
    run = plan_run(path, "erm", target="c", settings={"steps": 5})
    arrays(path, noise=True)
    with pytest.raises(DataError, match="the data changed after this run was planned"):
        execute(run, Store(tmp_path / "runs"))


def test_a_record_says_where_and_with_what_it_was_made(tmp_path):
    record = execute(plan_run("spirals", "erm", settings={"steps": 5}), Store(tmp_path), threads=1)
    assert record.device == "cpu, 1 thread(s)" or record.device.startswith("cuda")
    assert {"afield", "torch", "numpy", "python", "code"} == set(record.versions)
    assert record.seconds > 0


def test_a_run_does_not_continue_from_a_snapshot_for_fewer_rules(store):
    settings = {"steps": 30, "every": 3}
    run = plan_run("spirals", "erm", target=("turn0", "turn10"), settings=settings)
    interrupt(run, store, after=15)
    record = execute(replace(run, rules=("left-out-source",)), store)
    assert all(checkpoint.score("turn0", "main") for checkpoint in record.checkpoints)


def test_slow_snapshots_are_written_less_often(tmp_path, monkeypatch):
    """After one that took two seconds, 40 seconds pass; every checkpoint takes two seconds."""
    clock = SimpleNamespace(now=0.0)
    times = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 0.0)
    monkeypatch.setattr(runner, "time", times)

    class Slow(Store):
        def put_snapshot(self, run, state, done):
            clock.now += 2
            saved.append(done[-1].step)

    def watch(run, checkpoint):
        clock.now += 2

    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 30, "every": 1})
    for seconds, expected in ((5.0, [4, 24]), (41.0, [22])):
        saved = []
        execute(run, Slow(tmp_path / str(seconds)), snapshot_seconds=seconds, watch=watch)
        assert saved == expected


def test_a_snapshot_that_cannot_be_written_is_reported_once_and_ends_no_run(tmp_path, caplog):
    class Full(Store):
        def put_snapshot(self, run, state, done):
            raise RuntimeError("[enforce fail] write failed: no space left\nC++ trace")

    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 12, "every": 3})
    straight, full = Store(tmp_path / "straight"), Full(tmp_path / "full")
    execute(run, straight)
    execute(run, full, snapshot_seconds=0)
    assert outcome(full, run) == outcome(straight, run)
    (warning,) = [record.message for record in caplog.records]
    assert "snapshot cannot be written" in warning
    assert "C++" not in warning


@pytest.mark.parametrize(
    "other",
    [{"augment": "none"}, {"domains_per_step": 0}, {"balance": False}, {"limit": 2}],
    ids=str,
)
def test_each_way_to_vary_the_batches_changes_the_outcome(tmp_path, other):
    runs = [varied_run(tmp_path, steps=4, **settings) for settings in ({}, other)]
    assert runs[0].key != runs[1].key
    store = Store(tmp_path / "runs")
    for run in runs:
        execute(run, store)
    first, second = (store.weights(run)["head.weight"] for run in runs)
    assert not torch.equal(first, second)


def test_what_is_deployed_is_the_best_on_the_validation_domains(tmp_path):
    dataset, store = find_dataset("spirals"), Store(tmp_path)
    settings = {"steps": 60, "every": 3, "lr": 0.01}
    (run,) = hold_out(dataset, ["erm"], hold_out=0.25, validate=0.25, trials=1, settings=settings)
    record = execute(run, store)
    values = [selection_value(checkpoint, run) for checkpoint in record.checkpoints]
    best = values.index(max(values))
    others = [source_accuracy(checkpoint, run.sources) for checkpoint in record.checkpoints]
    assert best != others.index(max(others)), "both choose the same: the test tells nothing"
    material = RunData.of(run, dataset, load_domains(dataset, run), torch.device("cpu"))
    model = network(run.backbone, material.shape, len(dataset.classes))
    model.load_state_dict(store.weights(run))
    deployed = Checkpoint(0, material.evaluations.evaluate(model), {})
    assert selection_value(deployed, run) == values[best]
    pick = by_validation([record], run.tested[0])
    assert pick.step == record.checkpoints[best].step
    assert pick.accuracy == material.evaluations.best.evaluate(model)[run.tested[0]].main.accuracy


@pytest.mark.slow
def test_a_run_starts_from_a_file_and_keeps_the_statistics_in_it(tmp_path):
    run, first = run_from_a_file(tmp_path)
    store = Store(tmp_path / "runs")
    assert "timm" in execute(run, store).versions
    weights = store.weights(run)
    for name, value in first.items():
        assert torch.equal(weights[f"features.{name}"], value) == ("running" in name) or (
            "num_batches" in name
        )
    torch.save({name: value + 1 for name, value in first.items()}, tmp_path / "w.pth")
    with pytest.raises(DataError, match="changed after this run was planned"):
        execute(run, Store(tmp_path / "later"))


def begun_by_hand(run, optimizer):
    """Model, batches and task of a run on spirals, put together here."""
    torch.manual_seed(run.seed)
    dataset = find_dataset("spirals")
    material = RunData.of(run, dataset, load_domains(dataset, run), torch.device("cpu"))
    model = network(run.backbone, material.shape, len(dataset.classes))
    stream = Stream(material.samples, batch=run.batch, seed=run.seed)
    make = partial(optimizer, lr=run.lr, weight_decay=run.weight_decay)
    task = Task(run.sources, dataset.classes, run.steps, network=lambda _: model, optimizer=make)
    return model, stream, task, material


def test_what_swad_has_at_the_end_of_the_valley_is_deployed(tmp_path):
    run, store = swad_run(), Store(tmp_path)
    record = execute(run, store)
    assert [checkpoint.step for checkpoint in record.checkpoints] == [*range(2, LAST_STEP + 1, 2)]
    assert [checkpoint.deployed for checkpoint in record.checkpoints] == [False] * 5 + [True]
    model, stream, task, material = begun_by_hand(run, partial(torch.optim.Adam, fused=True))
    average, learner = SWAD(converge=2, patience=2, slack=0.2), ERM().setup(model, task)
    average.setup(learner.model, steps=run.steps)
    (*_, last) = checkpoints(
        ERM(), learner, average, stream, material.evaluations.evaluate, steps=60, every=2
    )
    weights, expected = store.weights(run), average.model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    assert not torch.equal(weights["head.weight"], learner.model.head.weight)
    for source in run.sources:
        assert record.checkpoints[-1].scores[source] == last.scores[source]
    on_target = material.evaluations.best.evaluate(average.model)["turn0"].main
    assert record.checkpoints[-1].score("turn0", "main") == on_target


def test_rules_and_tables_take_the_last_checkpoint_of_swad_though_others_look_better(tmp_path):
    record = execute(swad_run(), Store(tmp_path))
    values = [source_accuracy(checkpoint, record.run.sources) for checkpoint in record.checkpoints]
    assert max(values) > values[-1], "the last is the best: the test has lost its point"
    last = record.checkpoints[-1]
    for rule in (by_sources, by_target):
        pick = rule([record], "turn0")
        assert (pick.step, pick.accuracy) == (LAST_STEP, last.score("turn0", "main").accuracy)
    table = tabulate([record], rules=["sources", "target"])
    shown = table[table["domain"] == "turn0"]
    assert shown["accuracy"].tolist() == [last.score("turn0", "main").accuracy] * 2
    # Of the target no more is read than that.
    for checkpoint in record.checkpoints[:-1]:
        assert checkpoint.score("turn0", "main") is checkpoint.score("turn0", "probe") is None


def test_swad_is_another_run_than_the_last_weights_and_trains_the_same(tmp_path):
    run, store = swad_run(), Store(tmp_path)
    plain = {name: value for name, value in VALLEY.items() if not name.startswith("swad.")}
    last = plan_run("spirals", "erm", target="turn0", settings=plain | {"steps": LAST_STEP})
    record, other = execute(run, store), execute(last, store)
    assert run.key != last.key
    assert not torch.equal(store.weights(run)["head.weight"], store.weights(last)["head.weight"])
    # Until the end, checkpoints show the model that is trained.
    for mine, its in zip(record.checkpoints[:-1], other.checkpoints, strict=False):
        assert mine.logs == its.logs
        for source in run.sources:
            assert mine.scores[source].probe.loss == its.scores[source].probe.loss


def test_where_domains_validate_swads_last_checkpoint_is_still_the_one(tmp_path):
    dataset, store = find_dataset("spirals"), Store(tmp_path)
    (run,) = hold_out(
        dataset,
        ["erm"],
        hold_out=0.25,
        validate=0.25,
        trials=1,
        average="swad",
        settings={"steps": 12, "every": 2},
    )
    record = execute(run, store)
    assert record.candidates == record.checkpoints[-1:]
    pick = by_validation([record], run.tested[0])
    assert (pick.step, pick.value) == (12, selection_value(record.checkpoints[-1], run))


def test_a_run_trains_with_the_optimiser_that_it_names(tmp_path):
    settings = {"steps": 3, "every": 3, "lr": 0.2, "optimizer": "sgd:momentum=0.9"}
    run, store = plan_run("spirals", "erm", target="turn0", settings=settings), Store(tmp_path)
    execute(run, store)
    model, stream, _, _ = begun_by_hand(run, torch.optim.SGD)
    speed = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for _ in range(3):
        batch = pool(next(stream))
        loss = F.cross_entropy(model(batch.x), batch.y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        speed = [0.9 * v + g for v, g in zip(speed, gradients, strict=True)]
        with torch.no_grad():
            for parameter, v in zip(model.parameters(), speed, strict=True):
                parameter.sub_(0.2 * v)
    weights = store.weights(run)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value)
    adam = plan_run("spirals", "erm", target="turn0", settings=settings | {"optimizer": "adam"})
    execute(adam, store)
    assert not torch.allclose(store.weights(adam)["head.weight"], weights["head.weight"])


@pytest.mark.parametrize("average", registry.names("averages"))
def test_the_parts_that_are_kept_are_those_of_the_best_checkpoint(average, tmp_path):
    settings = {"steps": 60, "every": 2, "lr": 0.03}
    run = averaged(plan_run("spirals", "dann", target="turn0", settings=settings), average)
    store = Store(tmp_path / "whole")
    record = execute(run, store)
    best = max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, run))
    if average == "last":
        message = "the best is the last: the test has lost its point"
        assert best.step < record.checkpoints[-1].step, message
    kept = read_run_weights(store.folder(run), "parts")
    assert kept
    # What a snapshot of that moment has.
    broken = Store(tmp_path / "broken")
    interrupt(run, broken, after=best.step)
    state, _ = broken.snapshot(run)
    parts = state["learner"]["parts"]
    assert set(parts) == set(kept)
    assert all(torch.equal(parts[name], kept[name]) for name in kept)


@pytest.mark.parametrize(("method", "there"), [("dann", True), ("crossgrad", True), ("erm", False)])
def test_parts_are_kept_of_methods_that_have_them(method, there, tmp_path):
    run, store = plan_run("spirals", method, settings={"steps": 4}), Store(tmp_path)
    execute(run, store)
    assert (store.folder(run) / "parts.safetensors").exists() == there


def test_unused_domains_reach_neither_training_nor_the_record(tmp_path):
    y, origin = np.tile([0, 1], 40), np.repeat(np.array(list("abcd")), 20)
    known = {"X": np.random.default_rng(0).normal(size=(80, 4)), "y": y, "domain": origin}
    np.savez(tmp_path / "own.npz", **known)
    dataset = find_dataset(tmp_path / "own.npz")
    shares = {"hold_out": 0.25, "validate": 0.25, "trials": 1, "settings": {"steps": 10}}
    (run,) = hold_out(dataset, ["erm"], train_on=[1], **shares)
    (unused,) = run.unused
    store = Store(tmp_path / "runs")
    record = execute(run, store)
    for checkpoint in record.checkpoints:
        assert unused not in checkpoint.scores
    assert set(record.domains) == set(dataset.domains) - {unused}
    # The data without them give the same weights.
    kept = origin != unused
    np.savez(tmp_path / "fewer.npz", **{name: value[kept] for name, value in known.items()})
    fewer = find_dataset(tmp_path / "fewer.npz")
    alone = replace(run, dataset=fewer.spec, data=fewer.fingerprint, unused=())
    assert execute(alone, store).checkpoints == record.checkpoints


def test_a_schedule_and_clipping_reach_the_training(tmp_path):
    store, result = Store(tmp_path), {}
    for more in ({}, {"lr_schedule": "cosine:warmup=0.2"}, {"clip_norm": 0.01}):
        run = plan_run("spirals", "erm", target="turn0", settings={"steps": 10, **more})
        execute(run, store)
        result[run.key] = store.weights(run)["head.weight"]
    first, second, third = result.values()
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)


def test_a_methods_own_schedule_goes_on_top_of_the_runs(monkeypatch, tmp_path):
    """Rates of dmg's weights and masks at the first, a middle and the last step."""
    seen = []

    def noted(self, *shares):
        pace(self, *shares)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        seen.append((self.step, shares, rates))

    pace = Learner.scale_lr
    monkeypatch.setattr(Learner, "scale_lr", noted)
    settings = {"steps": 20, "lr_schedule": "cosine", "dmg.schedule": "exponential", "lr": 0.01}
    run = plan_run("spirals", "dmg", target="turn0", settings=settings)
    execute(run, Store(tmp_path))
    share = make_schedule("cosine", 20)
    rates = [0.01, 0.01 * run.params["mask_rate"]]
    assert len(seen) == 20
    for step, shares, result in (seen[0], seen[10], seen[19]):
        expected = [share(step) * own * rate for own, rate in zip(shares, rates, strict=True)]
        assert result == pytest.approx(expected)
    assert seen[0][1][0] > seen[19][1][0]


def test_a_constant_schedule_is_none():
    runs = [
        plan_run("spirals", "erm", target="turn0", settings={"steps": 10, **more})
        for more in ({}, {"lr_schedule": "constant", "clip_norm": 0})
    ]
    assert runs[0].key == runs[1].key


@pytest.mark.parametrize("average", registry.names("averages"))
def test_an_expert_starts_from_its_base_and_keeps_a_frozen_head_to_the_byte(average, store):
    base = probed_base(store)
    settings = {"steps": 6, "every": 2, "weight_decay": 0.1}
    run = averaged(plan_run("spirals", "erm", target="turn0", settings=settings), average)
    run = replace(run, role="expert", base=base.key, freeze_head=True)
    execute(run, store)
    before, after = store.weights(base), store.weights(run)
    for name, value in before.items():
        assert torch.equal(after[name], value) == name.startswith("head."), name


def test_a_base_that_is_not_there_is_named(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 2})
    with pytest.raises(DataError, match=r"erm-0/model\.safetensors: no readable weights"):
        execute(replace(run, base="erm-0"), Store(tmp_path))
