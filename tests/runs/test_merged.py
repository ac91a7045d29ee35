"""Merged models as runs: what is merged, scored and kept, and what becomes of failures."""

import json
import logging
import pickle
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn

import afield
from afield.diagnosis.diagnosing import diagnose
from afield.errors import DataError, SpecError
from afield.registry import CODE_FORM
from afield.reporting.table import tabulate
from afield.runs import sweep
from afield.runs.derived import execute_derived
from afield.runs.finished import reopen
from afield.runs.merged import MERGE_BASELINES, Ensemble, _best_expert
from afield.runs.pools.local import Local
from afield.runs.record import Failure, Record, Run
from afield.runs.run_setup import Machine, set_up
from afield.runs.runner import execute
from afield.runs.selection import selection_value
from afield.runs.store import Store, read_run_weights
from afield.runs.sweep import complete
from afield.studies.benchmark import make_benchmark
from afield.training.evaluation import Checkpoint, Score, Scores
from tests.files import GOLDEN

MERGES = ("average", "score", "task_arithmetic", "ties")
DOMAINS = ("a", "b", "c", "d")


def pictures(path: Path, *, flipped=(), numbers: bool = False) -> Path:
    """Four domains of dark and bright little pictures; in `flipped` ones labels are exchanged."""
    generator = np.random.default_rng(0)
    y = np.tile([0, 1, 2], 4 * 12)
    domain = np.repeat(DOMAINS, 36)
    shift = 12 * np.repeat(np.arange(4), 36)
    x = 60 * y[:, None, None, None] + generator.integers(0, 70, (len(y), 1, 8, 8))
    x = (x + shift[:, None, None, None]).astype(np.float32 if numbers else np.uint8)
    for name in flipped:
        y = np.where(domain == name, 2 - y, y)
    np.savez(path, X=x, y=y, domain=domain)
    return path


def of_target(runs: list[Run], target: str) -> list[Run]:
    """The runs that one target needs."""
    merged = [run for run in runs if run.experts and target not in run.sources]
    needed = {run.base for run in merged} | {key for run in merged for key in run.experts}
    return [run for run in runs if run in merged or run.key in needed]


def runs_of(data, target="d", *, merges=MERGES, **options) -> list[Run]:
    settings = {"steps": 12, "every": 4, **options.pop("settings", {})}
    return of_target(
        make_benchmark(data, merges=merges, trials=1, settings=settings, **options).runs(), target
    )


def bytes_of(store: Store, runs: list[Run]) -> dict[str, tuple[bytes, object]]:
    return {
        run.key: (
            (store.folder(run) / "model.safetensors").read_bytes(),
            store.get(run).checkpoints,
        )
        for run in runs
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> SimpleNamespace:
    """All runs of one target, done; tests leave the folder as it is."""
    folder = tmp_path_factory.mktemp("merged")
    runs = runs_of(pictures(folder / "own.npz"))
    store = Store(folder / "runs")
    found = {outcome.run.key: outcome for outcome in complete(runs, store)}
    assert all(isinstance(outcome, Record) for outcome in found.values())
    merged = {run.method: found[run.key] for run in runs if run.experts}
    return SimpleNamespace(folder=folder, runs=runs, store=store, found=found, merged=merged)


def trained(done: SimpleNamespace, folder: Path) -> Store:
    """A store in which all experts are done, and nothing is merged."""
    for run in done.runs:
        if not run.experts:
            shutil.copytree(done.store.folder(run), folder / run.key)
    return Store(folder)


def logits_of(folder: Path, record: Record, domain: str, weights=None, part="main") -> Tensor:
    """What a network of the run makes of a part of a domain, written out."""
    subject = reopen(folder / record.run.key)
    network = subject.model
    if weights is not None:
        network.load_state_dict(weights)
    samples = (subject.domains if part == "main" else subject.probes)[domain]
    with torch.inference_mode():
        return network(samples.prepare(samples.x.in_memory)), samples.y


def accuracy(logits: Tensor, y: Tensor) -> float:
    return float((logits.argmax(1) == y).double().mean())


def test_one_checkpoint_has_what_every_rule_reads(done):
    for name, record in done.merged.items():
        (checkpoint,) = record.checkpoints
        assert checkpoint.step == record.run.steps
        assert checkpoint.deployed
        for source in record.run.sources:
            assert checkpoint.score(source, "probe") is not None
            assert checkpoint.score(source, "main") is None
        for part in ("main", "probe"):
            assert checkpoint.score("d", part) is not None, name
        assert checkpoint.score("d", "main").calibration_error is not None, name
        assert checkpoint.score("d", "main").accuracy_at_90 is not None, name


def test_the_row_of_the_base_is_the_bases_own_scores(done):
    record = done.merged["base"]
    base = done.found[record.run.base]
    best = max(base.candidates, key=lambda checkpoint: selection_value(checkpoint, base.run))
    for source in record.run.sources:
        assert record.checkpoints[0].score(source, "probe") == best.score(source, "probe")
    assert record.checkpoints[0].score("d", "main") == best.score("d", "main")
    ours, theirs = (done.store.weights(run) for run in (record.run, base.run))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_the_experts_start_from_the_base(done):
    expert = next(run for run in done.runs if run.role == "expert")
    place = Machine(torch.device("cpu"), 1, done.folder, done.store.root)
    first = set_up(expert, place).learner.model.state_dict()
    base = read_run_weights(done.store.root / expert.base)
    assert all(torch.equal(value, base[name]) for name, value in first.items())
    assert not torch.equal(done.store.weights(expert)["head.weight"], base["head.weight"])


def test_the_expert_of_the_target_reports_what_it_has_not_seen(done):
    record = done.merged["target_expert"]
    scores = record.checkpoints[0].scores["d"]
    assert scores.main == scores.probe
    expert = done.found[record.run.experts[0]]
    assert expert.run.sources == ("d",)
    best = max(expert.candidates, key=lambda checkpoint: selection_value(checkpoint, expert.run))
    assert scores.main.size == best.score("d", "probe").size
    assert scores.main.accuracy == best.score("d", "probe").accuracy
    for other in ("base", "score"):
        own = done.merged[other].checkpoints[0].scores["d"]
        assert own.main.size > own.probe.size


def listed(root: Path) -> Path:
    """Images with official lists; those on the test list of `c` carry no information."""
    generator = np.random.default_rng(0)
    for domain in "abc":
        lists = {"train": [], "test": []}
        for i in range(24):
            label, part = "xyz"[i % 3], "test" if i % 4 == 0 else "train"
            known = i % 3 if (domain, part) != ("c", "test") else generator.integers(3)
            pixels = 60 * known + generator.integers(0, 70, (8, 8, 3))
            path = root / domain / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
            lists[part].append(f"{domain}/{label}/{i}.png")
        for part, names in lists.items():
            (root / f"{domain}_{part}.txt").write_text("\n".join(names))
    return root


@pytest.mark.slow
def test_by_official_lists_the_expert_of_the_target_reports_on_the_test_list(tmp_path):
    """What is the probe part of an unseen domain then is what it was trained on."""
    runs = runs_of(listed(tmp_path / "own"), "c", merges=["average"],
                   settings={"size": 8, "steps": 30})  # fmt: skip
    store = Store(tmp_path / "runs")
    found = {outcome.run.method: outcome for outcome in complete(runs, store)}
    scores = found["target_expert"].checkpoints[0].scores["c"]
    assert (scores.main.size, scores.probe.size) == (6, 18)
    logits, y = logits_of(store.root, found["target_expert"], "c")
    assert scores.main.accuracy == accuracy(logits, y)
    assert found["average"].checkpoints[0].scores["c"].main.size == 6


def test_the_ensemble_is_the_mean_of_raw_logits_as_the_reference_has_it():
    numbers = np.load(GOLDEN / "logit_ensemble.npz")

    class Given(nn.Module):
        def __init__(self, rows):
            super().__init__()
            self.rows = nn.Parameter(torch.tensor(rows))

        def forward(self, x):
            return self.rows[x]

    ensemble = Ensemble([Given(rows) for rows in numbers["logits"]])
    found = ensemble(torch.arange(10)).detach().numpy()
    np.testing.assert_allclose(found, numbers["mean"], rtol=0, atol=1e-10)
    assert found.argmax(1).tolist() == numbers["pred"].tolist()
    # Of probabilities it would be another vote.
    assert numbers["pred"].tolist() != numbers["pred_prob_avg"].tolist()


def test_the_ensemble_scores_as_its_experts_logits_say(done):
    record = done.merged["logit_ensemble"]
    experts = [read_run_weights(done.store.root / key) for key in record.run.experts]
    for part in ("main", "probe"):
        pairs = [logits_of(done.store.root, done.merged["base"], "d", e, part) for e in experts]
        mean = torch.stack([logits for logits, _ in pairs]).mean(dim=0)
        score = record.checkpoints[0].score("d", part)
        assert score.accuracy == pytest.approx(accuracy(mean, pairs[0][1]))
        loss = nn.functional.cross_entropy(mean, pairs[0][1])
        assert score.loss == pytest.approx(float(loss), rel=1e-5)
    kept = done.store.weights(record.run)
    for i, expert in enumerate(experts):
        for name, value in expert.items():
            assert torch.equal(kept[f"networks.{i}.{name}"], value)


@pytest.mark.parametrize("name", MERGES)
def test_the_weights_on_disk_are_what_merging_the_stored_ones_gives(done, name):
    run = done.merged[name].run
    base = read_run_weights(done.store.root / run.base)
    experts = [read_run_weights(done.store.root / key) for key in run.experts]
    expected = afield.merge(name, base, experts, **run.params)
    found = done.store.weights(run)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    logits, y = logits_of(done.store.root, done.merged["base"], "d", expected)
    assert done.merged[name].checkpoints[0].score("d", "main").accuracy == accuracy(logits, y)


def test_scale_and_settings_change_what_comes_out(done):
    settings = {"score.tau": 0.5, "score.scale": 0.5, "average.scale": 0}
    runs = runs_of(done.folder / "own.npz", merges=["score", "average"], settings=settings)
    found = {o.run.method: o for o in complete(runs, done.store)}
    assert found["score"].run.key != done.merged["score"].run.key
    first, second = (done.store.weights(done_.run) for done_ in (done.merged["score"],
                                                                 found["score"]))  # fmt: skip
    assert not torch.equal(first["head.weight"], second["head.weight"])
    # No step at all from the base.
    nowhere, base = (done.store.weights(found[name].run) for name in ("average", "base"))
    assert all(torch.equal(value, base[key]) for key, value in nowhere.items())


@pytest.fixture
def judged(tmp_path):
    """A function of experts' sources and accuracies to the number of the best of them."""

    def number(sources: list[tuple[str, ...]], table: list[dict[str, float]]) -> int:
        store, keys = Store(tmp_path), []
        for i, own in enumerate(sources):
            run = Run("toy", "erm", own, role="expert", base="erm-0", draw=i)
            with store.claim(run):
                scores = {name: Scores() for name in own}
                store.put(Record(run, (Checkpoint(1, scores, {}),), 0.0, {}, "cpu"), {})
            keys.append(run.key)
        merged = Run("toy", "best_expert", ("a", "b", "c"), role="merged", experts=tuple(keys))

        def evaluate(network):
            accuracies = table[int(network.weight)]
            return {n: Scores(probe=Score(v, v, 1.0, 5)) for n, v in accuracies.items()}

        work = SimpleNamespace(
            learner=SimpleNamespace(model=nn.Linear(1, 1, bias=False)),
            evaluations=SimpleNamespace(evaluate=evaluate),
            machine=SimpleNamespace(store=tmp_path),
        )
        experts = [{"weight": torch.full((1, 1), float(i))} for i in range(len(table))]
        return int(_best_expert(merged, work, experts).weight)

    return number


def test_the_best_expert_is_judged_by_sources_that_it_was_not_trained_on(judged):
    table = [
        {"a": 1.0, "b": 0.5, "c": 0.5, "d": 1.0},
        {"a": 0.6, "b": 0.1, "c": 0.6, "d": 0.0},
        {"a": 0.4, "b": 0.4, "c": 1.0, "d": 1.0},
    ]
    assert judged([("a",), ("b",), ("c",)], table) == 1


def test_experts_of_several_methods_are_judged_by_all_sources(judged):
    """Also where they are as many as the sources."""
    everything = ("a", "b", "c")
    table = [
        {"a": 0.0, "b": 0.9, "c": 0.9},
        {"a": 0.7, "b": 0.7, "c": 0.7},
        {"a": 0.9, "b": 0.9, "c": 0.0},
    ]
    assert judged([everything] * 3, table) == 1
    assert judged([everything] * 2, table[:2]) == 1


def test_of_equals_the_first_is_the_best(judged):
    assert judged([("a",), ("b",), ("c",)], [dict.fromkeys("abc", 0.5)] * 3) == 0


@pytest.mark.slow
def test_the_best_expert_is_picked_without_the_target(tmp_path):
    """In the target classes are exchanged, and one expert knows that; it does not help it."""
    runs = runs_of(pictures(tmp_path / "own.npz", flipped="d"), merges=["average"],
                   settings={"steps": 40})  # fmt: skip
    store = Store(tmp_path / "runs")
    list(complete([run for run in runs if not run.experts], store))
    best = next(run for run in runs if run.method == "best_expert")
    of_target = next(run for run in runs if run.method == "target_expert").experts[0]
    spy = next(run for run in runs if run.key == best.experts[0])
    with store.claim(spy):
        store.put(store.get(spy), read_run_weights(store.root / of_target))
    record = execute_derived(best, store)
    found = store.weights(best)
    values = {}
    for key in best.experts:
        weights = read_run_weights(store.root / key)
        values[key] = accuracy(*logits_of(store.root, record, "d", weights))
        if key == spy.key:
            assert not torch.equal(found["head.weight"], weights["head.weight"])
    assert max(values, key=values.get) == spy.key


def test_a_second_start_does_nothing(done):
    before = {p: p.stat().st_mtime_ns for p in done.store.root.rglob("*.*")}
    again = {outcome.run.key: outcome for outcome in complete(done.runs, done.store)}
    assert again == done.found
    assert {p: p.stat().st_mtime_ns for p in done.store.root.rglob("*.*")} == before


@pytest.mark.slow
def test_a_start_that_was_broken_off_anywhere_goes_on_to_the_same_bytes(done, tmp_path):
    store = Store(tmp_path)
    for count in (2, 3, 4):
        outcomes = complete(done.runs, store)
        # What is known comes first.
        wanted = sum(store.get(run) is not None for run in done.runs) + count
        for _ in range(wanted):
            next(outcomes)
        outcomes.close()
    assert len(list(store)) < len(done.runs)
    list(complete(done.runs, store))
    assert bytes_of(store, done.runs) == bytes_of(done.store, done.runs)


SWEEP = """
import pickle, sys
from pathlib import Path
from afield.runs.store import Store
from afield.runs.sweep import complete
runs = pickle.loads(Path(sys.argv[1]).read_bytes())
list(complete(runs, Store(sys.argv[2]), snapshot_seconds=0.0))
"""


@pytest.mark.slow
def test_killed_at_some_moments_it_ends_in_the_same_bytes(done, tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP)
    (tmp_path / "runs.pickle").write_bytes(pickle.dumps(done.runs))
    command = [sys.executable, tmp_path / "sweep.py", tmp_path / "runs.pickle", tmp_path / "runs"]
    store, killed = Store(tmp_path / "runs"), 0
    for count in (1, 4, 8):
        with subprocess.Popen(command) as process:
            while process.poll() is None:
                if len(list(store.root.glob("*/record.json"))) >= count:
                    process.send_signal(signal.SIGKILL)
                    killed += 1
                    break
                time.sleep(0.005)
    assert killed >= 2
    list(complete(done.runs, store))
    assert bytes_of(store, done.runs) == bytes_of(done.store, done.runs)


@pytest.mark.slow
def test_two_workers_give_the_same_bytes(done, tmp_path):
    store = Store(tmp_path)
    list(complete(done.runs, store, pool=Local(2)))
    assert bytes_of(store, done.runs) == bytes_of(done.store, done.runs)


@pytest.mark.slow
def test_a_failed_expert_fails_what_needs_it_by_name_and_nothing_else(done, tmp_path, monkeypatch):
    store, lost = Store(tmp_path), done.merged["score"].run.experts[1]

    def fails_once(run, *arguments, **options):
        if run.key == lost:
            raise SpecError("no luck")
        return execute(run, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "execute", fails_once)
        found = {outcome.run.key: outcome for outcome in complete(done.runs, store)}
    failed = {o.run.method: o.error for o in found.values() if isinstance(o, Failure)}
    assert failed.keys() == {"erm", "best_expert", "logit_ensemble", *MERGES}
    for name in ("best_expert", *MERGES):
        assert failed[name].startswith(f"{lost}: this expert has no weights in {tmp_path}")
        assert "\n" not in failed[name]
    again = {outcome.run.key: outcome for outcome in complete(done.runs, store)}
    assert all(isinstance(outcome, Record) for outcome in again.values())
    assert store.failures() == []
    assert bytes_of(store, done.runs) == bytes_of(done.store, done.runs)


def test_a_failed_base_fails_all_that_starts_from_it(done, tmp_path, monkeypatch):
    def fails(run, *arguments, **options):
        if run.role == "base":
            raise SpecError("no luck")
        return execute(run, *arguments, **options)

    monkeypatch.setattr(sweep, "execute", fails)
    found = list(complete(done.runs, Store(tmp_path)))
    assert all(isinstance(outcome, Failure) for outcome in found)
    base = done.merged["base"].run.base
    assert all(base in o.error and "\n" not in o.error for o in found if o.run.role == "expert")


@pytest.mark.parametrize("methods", [["dmg"], ["erm", "multi_head"], ["urm"]])
def test_an_expert_that_is_another_network_is_refused_before_training(tmp_path, methods):
    message = f"{methods[-1]} changes the network of the base, so its experts cannot be merged"
    with pytest.raises(SpecError, match=message) as caught:
        runs_of(pictures(tmp_path / "own.npz"), merges=["average"], expert_method=methods)
    assert "\n" not in str(caught.value)


def test_heads_of_a_single_domain_are_one_head(tmp_path):
    assert runs_of(pictures(tmp_path / "own.npz"), merges=["average"], expert_method=["multi_head"])


def test_a_merged_run_is_not_trained(done, tmp_path):
    run = done.merged["score"].run
    with pytest.raises(SpecError, match=f"{run.key}: this model is not trained"):
        execute(run, Store(tmp_path))


def test_a_merged_run_of_experts_that_are_not_there_names_them(done, tmp_path):
    run = done.merged["score"].run
    with pytest.raises(DataError, match="no readable weights"):
        execute_derived(run, Store(tmp_path))


def test_it_leaves_generators_and_threads_alone(done, tmp_path):
    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    execute_derived(done.merged["score"].run, trained(done, tmp_path))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_experts_of_several_methods_are_merged(tmp_path):
    runs = runs_of(pictures(tmp_path / "own.npz"), merges=["slerp", "score"],
                   expert_method=["erm", "vrex"])  # fmt: skip
    store = Store(tmp_path / "runs")
    found = {o.run.method: o for o in complete(runs, store) if o.run.role == "merged"}
    assert all(isinstance(record, Record) for record in found.values())
    assert len(found["slerp"].run.experts) == 2


def test_what_is_known_of_a_merged_run_says_with_what_it_was_made(done, monkeypatch, caplog):
    record = done.merged["score"]
    assert record.versions["code"]
    assert record.versions["code"] != done.merged["ties"].versions["code"]
    with safe_open(done.store.folder(record.run) / "model.safetensors", "pt") as file:
        assert record.run.key in file.metadata()["afield"]
    monkeypatch.setattr("afield.registry._builtin_digest", lambda *_: f"{CODE_FORM}another")
    with caplog.at_level(logging.WARNING):
        list(complete([record.run], done.store))
    assert "score: its code has changed" in caplog.text


def scaling(store: Store, key: str) -> str:
    """How inputs are scaled, as it is kept beside the weights."""
    with safe_open(store.root / key / "model.safetensors", "pt") as file:
        metadata = json.loads(file.metadata()["afield"])
    return metadata["mean"], metadata["std"]


def test_pictures_are_scaled_alike_for_base_experts_and_merged(done):
    assert len({str(scaling(done.store, run.key)) for run in done.runs}) == 1


def test_numbers_are_scaled_alike_for_base_experts_and_merged(tmp_path):
    """An expert whose inputs were scaled otherwise is no expert for what the merged one sees."""
    runs = runs_of(pictures(tmp_path / "own.npz", numbers=True), merges=["average"],
                   settings={"steps": 2})  # fmt: skip
    store = Store(tmp_path / "runs")
    list(complete(runs, store))
    assert len({str(scaling(store, run.key)) for run in runs}) == 1


def test_a_table_has_the_merges_and_what_they_are_compared_with(done):
    frame = tabulate(done.store)
    assert {row.split(" ")[0] for row in frame["method"]} == {*MERGE_BASELINES, *MERGES}
    of_target = frame[(frame["domain"] == "d") & (frame["rule"] == "sources")]
    accuracies = of_target.set_index("method")["accuracy"]
    for name, record in done.merged.items():
        # A merge with settings has them in the label of its row.
        rows = [row for row in accuracies.index if row.split(" ")[0] == name]
        expected = record.checkpoints[0].score("d", "main").accuracy
        assert expected in [accuracies[row] for row in rows]


def test_a_merged_run_can_be_looked_into(done):
    folder = done.store.folder(done.merged["score"].run)
    finding = diagnose("agreement", folder, settings={"samples": 10})
    assert len(finding.data)
    subject = reopen(folder)
    assert list(subject.experts) == ["a", "b", "c"]
    base = read_run_weights(done.store.root / done.merged["score"].run.base)
    assert all(torch.equal(value, base[name]) for name, value in subject.base.items())
    # Before a first step it is the base.
    first = subject.learner.model.state_dict()
    assert all(torch.equal(value, base[name]) for name, value in first.items())


def test_experts_of_several_methods_are_called_by_these(tmp_path):
    runs = runs_of(pictures(tmp_path / "own.npz"), merges=["average"],
                   expert_method=["erm", "vrex"], settings={"steps": 2})  # fmt: skip
    store = Store(tmp_path / "runs")
    list(complete(runs, store))
    run = next(run for run in runs if run.method == "average")
    assert list(reopen(store.folder(run)).experts) == ["erm", "vrex"]


def test_an_ensemble_is_not_one_network_to_look_into(done):
    folder = done.store.folder(done.merged["logit_ensemble"].run)
    with pytest.raises(SpecError, match="an ensemble is not one network; give one of its"):
        diagnose("agreement", folder)


def test_an_expert_can_be_looked_into(done):
    key = done.merged["score"].run.experts[0]
    assert len(diagnose("agreement", done.store.root / key, settings={"samples": 10}).data)


def test_runs_read_for_one_rule_are_read_again_for_another(done, tmp_path):
    """The record keeps what it has."""
    run, store = replace(done.merged["score"].run, rules=("sources",)), trained(done, tmp_path)
    narrow = execute_derived(run, store)
    assert narrow.checkpoints[0].score("d", "probe") is None
    whole = execute_derived(done.merged["score"].run, store)
    assert whole.checkpoints == done.merged["score"].checkpoints
