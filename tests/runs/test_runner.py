"""Exact and honest: the same bytes again, after a kill too; nothing of the target in training."""

import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from afield import registry
from afield.data.lookup import find_dataset
from afield.data.stream import Stream
from afield.errors import DataError
from afield.hyperparameters import defaults, without_neutral
from afield.networks.backbone import network
from afield.reporting.table import tabulate
from afield.runs import runner
from afield.runs.record import Run
from afield.runs.run_data import RunData
from afield.runs.run_files import read_run_weights
from afield.runs.run_setup import load_domains
from afield.runs.runner import execute
from afield.runs.selection import (
    RULES,
    selection_value,
    source_accuracy,
)
from afield.runs.store import Store
from afield.studies.planning import plan_run
from afield.studies.protocol import ALL_DOMAINS, DomainChoice, hold_out, leave_one_out
from afield.studies.settings import resolve_run
from afield.training.averages.swad import SWAD
from afield.training.evaluation import Checkpoint
from afield.training.loop import checkpoints
from afield.training.method import Learner, Task, pool
from afield.training.methods.erm import ERM
from afield.training.optimizers import make_schedule
from tests.pairs import small_problem
from tests.runs.interruption import interrupted, outcome

by_sources, by_left_out_source, by_validation, by_target = (rule.pick for rule in RULES.values())


def averaged(run: Run, average: str) -> Run:
    """The run with a weight average; one that needs a fitted head cannot be planned without."""
    kind = registry.find("averages", average)
    return replace(run, average=average, average_params=without_neutral(kind, defaults(kind)))


def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = plan_run("rotated_digits", "groupdro", target="30deg", settings={"steps": 20})
    stores = [Store(tmp_path / name) for name in ("first", "second")]
    for store in stores:
        execute(run, store)
    assert outcome(stores[0], run) == outcome(stores[1], run)


# Every method with the last weights; every average with a plain method, one that walks and goes
# back, and one with a further network.
PAIRS = [(method, "last") for method in registry.names("methods")] + [
    (method, average)
    for average in registry.names("averages")
    for method in ("erm", "mldg", "dann")
    if average != "last"
]


@pytest.mark.parametrize(("method", "average"), PAIRS)
def test_an_interrupted_run_ends_in_the_same_bytes(method, average, tmp_path):
    dataset, target, settings = small_problem(method)
    settings = {"steps": 84, "every": 14, **settings}
    run = averaged(plan_run(dataset, method, target=target, settings=settings), average)
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    execute(run, straight)
    # In a block of 64 steps of the stream, and after it.
    for after in (28, 70):
        interrupted(run, broken, after=after)
        assert broken.snapshot(run) is not None
    execute(run, broken)
    assert outcome(broken, run) == outcome(straight, run)


def test_the_hyperparameters_phase_survives_an_interruption_at_its_border(tmp_path):
    settings = {"steps": 60, "every": 10, "vrex.warmup": 0.5}
    run = plan_run("spirals", "vrex", target="turn0", settings=settings)
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    execute(run, straight)
    interrupted(run, broken, after=30)
    execute(run, broken)
    assert outcome(broken, run) == outcome(straight, run)


def assert_kills_change_nothing(run, tmp_path, *, kills, resumed_at_least):
    """Killed at so many random moments and started again, the run ends in the same bytes."""
    reference = Store(tmp_path / "reference")
    execute(run, reference)
    # The fork server has everything imported, so that a child starts at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["afield.runs.runner", "afield.data.datasets.rotated_digits", "torch._dynamo"]
    )

    def child(store):
        options = {"snapshot_seconds": 0.0}
        process = context.Process(target=execute, args=(run, store), kwargs=options)
        process.start()
        return process

    child(Store(tmp_path / "warm")).join()
    begun = time.monotonic()
    child(Store(tmp_path / "timed")).join()
    lasts = time.monotonic() - begun
    moments, resumed = random.Random(0), 0
    for i in range(kills):
        store = Store(tmp_path / str(i))
        process = child(store)
        time.sleep(moments.uniform(0.0, lasts))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        resumed += store.get(run) is None and store.snapshot(run) is not None
        execute(run, store)
        assert outcome(store, run) == outcome(reference, run)
        assert not list(store.folder(run).glob("*.part"))
    message = "hardly a kill fell between snapshots: the test has lost its point"
    assert resumed >= resumed_at_least, message


@pytest.mark.slow
def test_killed_at_twenty_random_moments_it_ends_in_the_same_bytes(tmp_path):
    run = plan_run("rotated_digits", "vrex", target="15deg", settings={"steps": 60, "every": 4})
    assert_kills_change_nothing(run, tmp_path, kills=20, resumed_at_least=3)


def test_a_finished_run_is_not_done_again(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 10})
    store = Store(tmp_path)
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


def test_methods_start_from_the_same_weights_and_batches(tmp_path):
    """One step of vrex without a penalty is one step of erm."""
    settings = {"steps": 1}
    erm = plan_run("spirals", "erm", target="turn0", settings=settings)
    vrex = plan_run(
        "spirals", "vrex", target="turn0", settings=settings | {"vrex.penalty": 0, "vrex.warmup": 0}
    )
    store = Store(tmp_path)
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


def test_a_run_is_read_again_for_a_rule_that_needs_more_and_keeps_what_it_has(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 20, "every": 2})
    store = Store(tmp_path)
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


@pytest.mark.slow
def test_noise_for_labels_of_the_target_changes_neither_weights_nor_picks(tmp_path):
    found = []
    for noise in (False, True):
        dataset = arrays(tmp_path / f"{noise}.npz", noise=noise)
        store = Store(tmp_path / f"runs-{noise}")
        runs = leave_one_out(
            dataset,
            ["erm", "groupdro"],
            trials=1,
            draws=2,
            rules=["all"],
            settings={"steps": 30, "every": 3},
        )
        blind = [run for run in runs if "c" not in run.sources]
        records = [execute(run, store) for run in blind]
        weights = [
            {name: value.tolist() for name, value in store.weights(run).items()} for run in blind
        ]
        picks = [
            (pick.step, pick.value, pick.run.draw)
            for method in ("erm", "groupdro")
            for rule in (by_sources, by_left_out_source)
            for pick in [rule([r for r in records if r.run.method == method], "c")]
        ]
        outcomes = [record.checkpoints[-1].score("c", "main") for record in records]
        found.append((weights, picks, outcomes))
    (weights, picks, outcomes), (noisy_weights, noisy_picks, noisy_outcomes) = found
    assert weights == noisy_weights
    assert picks == noisy_picks
    assert outcomes != noisy_outcomes


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
    found = []
    for noise in (False, True):
        dataset = arrays(tmp_path / f"{noise}.npz", noise=noise)
        store = Store(tmp_path / f"runs-{noise}")
        weights, outcomes = [], []
        for choice, settings in asked:
            runs = leave_one_out(dataset, ["erm"], choice=choice, trials=1, settings=settings)
            blind = [run for run in runs if "c" not in run.sources]
            assert blind
            for run in blind:
                record = execute(run, store)
                weights.append({n: value.tolist() for n, value in store.weights(run).items()})
                outcomes.append([point.score("c", "main") for point in record.checkpoints])
        found.append((weights, outcomes))
    (weights, outcomes), (noisy_weights, noisy_outcomes) = found
    assert weights == noisy_weights
    assert all(one != other for one, other in zip(outcomes, noisy_outcomes, strict=True))


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
    found = []
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
        found.append({name: value.tolist() for name, value in store.weights(run).items()})
    assert found[0] == found[1]


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


def test_a_snapshot_taken_for_fewer_rules_is_not_gone_on_from(tmp_path):
    settings = {"steps": 30, "every": 3}
    run = plan_run("spirals", "erm", target=("turn0", "turn10"), settings=settings)
    store = Store(tmp_path)
    interrupted(run, store, after=15)
    record = execute(replace(run, rules=("left-out-source",)), store)
    assert all(checkpoint.score("turn0", "main") for checkpoint in record.checkpoints)


def test_a_snapshot_made_with_other_threads_is_not_gone_on_from(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 30, "every": 3})
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    execute(run, straight)
    interrupted(run, broken, after=15)
    state, done = broken.snapshot(run)
    state["made"]["device"] = "cpu, 7 thread(s)"
    broken.put_snapshot(run, state, done)
    execute(run, broken)
    assert outcome(broken, run) == outcome(straight, run)


def test_a_snapshot_that_no_longer_fits_the_method_is_dropped(tmp_path, caplog):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 30, "every": 3})
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    execute(run, straight)
    interrupted(run, broken, after=15)
    state, done = broken.snapshot(run)
    del state["learner"]["optimizer"]
    broken.put_snapshot(run, state, done)
    execute(run, broken)
    assert "does not fit" in caplog.text
    assert outcome(broken, run) == outcome(straight, run)


@pytest.mark.parametrize("lost", ["made", "random", "best", "seconds"])
def test_a_snapshot_without_a_field_is_reported_and_not_used(tmp_path, caplog, lost):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 12, "every": 3})
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    execute(run, straight)
    interrupted(run, broken, after=6)
    state, done = broken.snapshot(run)
    del state[lost]
    broken.put_snapshot(run, state, done)
    execute(run, broken)
    assert "does not fit" in caplog.text
    assert outcome(broken, run) == outcome(straight, run)


def test_slow_snapshots_are_written_less_often(tmp_path, monkeypatch):
    """After one that took two seconds, 40 seconds pass; every checkpoint takes two seconds."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: clock.now))

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


def test_the_callers_default_type_does_not_reach_a_run(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 5})
    first, second = Store(tmp_path / "first"), Store(tmp_path / "second")
    execute(run, first)
    torch.set_default_dtype(torch.float64)
    try:
        execute(run, second)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert outcome(first, run) == outcome(second, run)


def folder(root):
    """A folder of small pictures: four domains, of which the colours tell two unequal classes."""
    generator = np.random.default_rng(0)
    for number, domain in enumerate("abcd"):
        for label, count in (("blue", 4), ("red", 9)):
            for i in range(count):
                pixels = generator.integers(0, 120, (18, 18, 3)) + 10 * number
                pixels[..., 0 if label == "red" else 2] += 60
                path = root / domain / label / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


# All that a stream may do: some of the domains a step, classes alike, pictures varied.
VARIED = {"augment": "light", "domains_per_step": 2, "balance": True, "size": 16, "batch": 6}


def varied(tmp_path, method="groupdro", **settings):
    root = tmp_path / "pictures"
    if not root.exists():
        folder(root)
    return plan_run(root, method, target="d", settings={**VARIED, "steps": 80, **settings})


@pytest.mark.slow
def test_an_interrupted_run_that_varies_its_batches_ends_in_the_same_bytes(tmp_path):
    run = varied(tmp_path, every=8)
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    execute(run, straight)
    # In a block of 64 steps, and after it.
    for after in (24, 72):
        interrupted(run, broken, after=after)
        assert broken.snapshot(run) is not None
    execute(run, broken)
    assert outcome(broken, run) == outcome(straight, run)


def test_whether_pictures_are_held_in_memory_or_read_changes_nothing(tmp_path, monkeypatch):
    run = varied(tmp_path, steps=30, every=10)
    held, read = Store(tmp_path / "held"), Store(tmp_path / "read")
    execute(run, held)
    monkeypatch.setattr("afield.data.samples.MAX_BYTES_CPU", 0)
    dataset = find_dataset(run.dataset)
    material = RunData.of(run, dataset, load_domains(dataset, run), torch.device("cpu"))
    assert material.samples.x.in_memory is material.evaluations.regular.x.in_memory is None
    execute(run, read)
    assert outcome(read, run) == outcome(held, run)


@pytest.mark.parametrize(
    "other",
    [{"augment": "none"}, {"domains_per_step": 0}, {"balance": False}, {"limit": 2}],
    ids=str,
)
def test_each_way_to_vary_the_batches_changes_the_outcome(tmp_path, other):
    runs = [varied(tmp_path, steps=4, **settings) for settings in ({}, other)]
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
    import timm

    torch.manual_seed(0)
    net = timm.create_model("test_resnet", num_classes=0)
    net.train()(torch.randn(8, 3, 32, 32))
    file, store = tmp_path / "w.pth", Store(tmp_path / "runs")
    torch.save(net.state_dict(), file)
    settings = {"backbone": "timm:test_resnet", "weights": str(file), "size": 32}
    run = varied(tmp_path, "erm", steps=4, every=2, **{**settings, "domains_per_step": 0})
    record = execute(run, store)
    assert "timm" in record.versions
    weights = store.weights(run)
    for name, value in net.state_dict().items():
        assert torch.equal(weights[f"features.{name}"], value) == ("running" in name) or (
            "num_batches" in name
        )
    interrupted(run, Store(tmp_path / "broken"), after=2)
    execute(run, Store(tmp_path / "broken"))
    assert outcome(Store(tmp_path / "broken"), run) == outcome(store, run)
    torch.save({name: value + 1 for name, value in net.state_dict().items()}, file)
    with pytest.raises(DataError, match="changed after this run was planned"):
        execute(run, Store(tmp_path / "later"))


# At this rate the loss falls, turns at the fourth checkpoint and leaves: two later that is known.
ENDING = {
    "steps": 60,
    "every": 2,
    "lr": 0.3,
    "swad.converge": 2,
    "swad.patience": 2,
    "swad.slack": 0.2,
}
LAST_STEP = 12


def swad(**settings):
    return plan_run("spirals", "erm", target="turn0", average="swad", settings=ENDING | settings)


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
    run, store = swad(), Store(tmp_path)
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
    record = execute(swad(), Store(tmp_path))
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
    run, store = swad(), Store(tmp_path)
    plain = {name: value for name, value in ENDING.items() if not name.startswith("swad.")}
    last = plan_run("spirals", "erm", target="turn0", settings=plain | {"steps": LAST_STEP})
    record, other = execute(run, store), execute(last, store)
    assert run.key != last.key
    assert not torch.equal(store.weights(run)["head.weight"], store.weights(last)["head.weight"])
    # Until the end, checkpoints show the model that is trained.
    for mine, its in zip(record.checkpoints[:-1], other.checkpoints, strict=False):
        assert mine.logs == its.logs
        for source in run.sources:
            assert mine.scores[source].probe.loss == its.scores[source].probe.loss


@pytest.mark.parametrize("form", ["code", "paper"])
def test_a_valley_that_was_interrupted_ends_in_the_same_bytes(form, tmp_path):
    run = swad(**{"swad.form": form})
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    execute(run, straight)
    # Before it begins, in it, and where its end is known.
    for after in (4, 8, 10, LAST_STEP):
        interrupted(run, broken, after=after)
        assert broken.snapshot(run) is not None
    seen = []
    execute(run, broken, watch=lambda *arguments: seen.append(arguments))
    assert seen == []
    assert outcome(broken, run) == outcome(straight, run)


@pytest.mark.slow
def test_swad_killed_at_random_moments_ends_in_the_same_bytes(tmp_path):
    settings = {"steps": 60, "every": 4, "swad.converge": 2, "swad.patience": 3}
    run = plan_run("rotated_digits", "erm", target="15deg", average="swad", settings=settings)
    assert_kills_change_nothing(run, tmp_path, kills=4, resumed_at_least=1)


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


def test_another_optimiser_survives_an_interruption(tmp_path):
    settings = {"steps": 30, "every": 3, "optimizer": "sgd:momentum=0.9,nesterov=true"}
    run = plan_run("spirals", "vrex", target="turn0", settings=settings)
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    execute(run, straight)
    for after in (9, 21):
        interrupted(run, broken, after=after)
    execute(run, broken)
    assert outcome(broken, run) == outcome(straight, run)


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
    interrupted(run, broken, after=best.step)
    state, _ = broken.snapshot(run)
    parts = state["learner"]["parts"]
    assert set(parts) == set(kept)
    assert all(torch.equal(parts[name], kept[name]) for name in kept)


@pytest.mark.parametrize(("method", "there"), [("dann", True), ("crossgrad", True), ("erm", False)])
def test_parts_are_kept_of_methods_that_have_them(method, there, tmp_path):
    run, store = plan_run("spirals", method, settings={"steps": 4}), Store(tmp_path)
    execute(run, store)
    assert (store.folder(run) / "parts.safetensors").exists() == there


def test_parts_of_a_best_checkpoint_before_a_kill_are_kept(tmp_path):
    settings = {"steps": 60, "every": 2, "lr": 0.03}
    run = plan_run("spirals", "dann", target="turn0", settings=settings)
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    record = execute(run, straight)
    values = [selection_value(checkpoint, run) for checkpoint in record.checkpoints]
    best = record.checkpoints[values.index(max(values))].step
    assert best < 58, "nothing comes after the best: the test has lost its point"
    interrupted(run, broken, after=best + 2)
    execute(run, broken)
    assert outcome(broken, run) == outcome(straight, run)
    assert "parts.safetensors" in outcome(broken, run)[0]


@pytest.mark.slow
def test_further_networks_killed_at_random_moments_end_in_the_same_bytes(tmp_path):
    settings = {"steps": 60, "every": 4}
    run = plan_run("rotated_digits", "dann", target="15deg", settings=settings)
    assert_kills_change_nothing(run, tmp_path, kills=4, resumed_at_least=1)


def test_a_snapshot_from_before_parts_were_kept_is_not_gone_on_from(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 20, "every": 5})
    straight, old = Store(tmp_path / "straight"), Store(tmp_path / "old")
    execute(run, straight)
    interrupted(run, old, after=10)
    state, done = old.snapshot(run)
    del state["best_parts"]
    old.put_snapshot(run, state, done)
    execute(run, old)
    assert outcome(old, run) == outcome(straight, run)


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
    again = execute(alone, store)
    assert again.checkpoints == record.checkpoints


def test_a_schedule_and_clipping_reach_the_training(tmp_path):
    store, found = Store(tmp_path), {}
    for more in ({}, {"lr_schedule": "cosine:warmup=0.2"}, {"clip_norm": 0.01}):
        run = plan_run("spirals", "erm", target="turn0", settings={"steps": 10, **more})
        execute(run, store)
        found[run.key] = store.weights(run)["head.weight"]
    first, second, third = found.values()
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("erm", {}),
        ("vrex", {}),
        # It has schedules of its own for weights and for masks.
        ("dmg", {"dmg.schedule": "exponential", "dmg.mask_schedule": "inverse"}),
    ],
)
def test_a_schedule_survives_an_interruption(method, more, tmp_path):
    settings = {"steps": 30, "every": 5, "lr_schedule": "cosine:warmup=4", "clip_norm": 0.5, **more}
    run = plan_run("spirals", method, target="turn0", settings=settings)
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    execute(run, straight)
    for after in (5, 20):
        interrupted(run, broken, after=after)
    execute(run, broken)
    assert outcome(broken, run) == outcome(straight, run)


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
    for step, shares, found in (seen[0], seen[10], seen[19]):
        expected = [share(step) * own * rate for own, rate in zip(shares, rates, strict=True)]
        assert found == pytest.approx(expected)
    assert seen[0][1][0] > seen[19][1][0]


def test_a_constant_schedule_is_none():
    runs = [
        plan_run("spirals", "erm", target="turn0", settings={"steps": 10, **more})
        for more in ({}, {"lr_schedule": "constant", "clip_norm": 0})
    ]
    assert runs[0].key == runs[1].key


def probed_base(store):
    """A base with a fitted head, done."""
    settings = {"steps": 1, "backbone": "small:mlp"}
    base = plan_run("spirals", "linear_probe", target="turn0", settings=settings)
    base = replace(base, role="base")
    execute(base, store)
    return base


@pytest.mark.parametrize("average", registry.names("averages"))
def test_an_expert_starts_from_its_base_and_keeps_a_frozen_head_to_the_byte(average, tmp_path):
    store = Store(tmp_path)
    base = probed_base(store)
    settings = {"steps": 6, "every": 2, "weight_decay": 0.1}
    run = averaged(plan_run("spirals", "erm", target="turn0", settings=settings), average)
    run = replace(run, role="expert", base=base.key, freeze_head=True)
    execute(run, store)
    before, after = store.weights(base), store.weights(run)
    for name, value in before.items():
        assert torch.equal(after[name], value) == name.startswith("head."), name


def test_an_expert_with_a_frozen_head_survives_an_interruption(tmp_path):
    stores = [Store(tmp_path / name) for name in ("straight", "broken")]
    run = plan_run("spirals", "arith", target="turn0", settings={"steps": 20, "every": 5})
    for store in stores:
        base = probed_base(store)
    run = replace(run, role="expert", base=base.key, freeze_head=True)
    execute(run, stores[0])
    interrupted(run, stores[1], after=10)
    execute(run, stores[1])
    assert outcome(stores[0], run) == outcome(stores[1], run)


def test_a_base_that_is_not_there_is_named(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 2})
    with pytest.raises(DataError, match=r"erm-0/model\.safetensors: no readable weights"):
        execute(replace(run, base="erm-0"), Store(tmp_path))
