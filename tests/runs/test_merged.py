"""Runs made from finished runs: merged and adapted models, soups, and starts from a head."""

import json
import logging
import shutil
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
from afield.data.domains import Domain
from afield.diagnosis.diagnostic import diagnose
from afield.errors import DataError, SpecError
from afield.registry import CODE_FORM
from afield.reporting.table import tabulate
from afield.runs import sweep
from afield.runs.finished import reopen
from afield.runs.merged import Ensemble, _best_expert
from afield.runs.record import Failure, Record
from afield.runs.row import MERGE_BASELINES
from afield.runs.run import Run
from afield.runs.run_files import read_run_weights
from afield.runs.run_setup import Machine, run_adaptation, set_up
from afield.runs.runner import execute
from afield.runs.selection import selection_value
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.studies.benchmark import make_benchmark
from afield.studies.planning import check_run
from afield.training.adaptations.t3a import T3A
from afield.training.evaluation import Evaluator
from afield.training.scores import Checkpoint, Score, Scores
from tests.files import GOLDEN
from tests.pairs import every_pair
from tests.runs.interruption import outcome
from tests.runs.merge_runs import MERGES, runs_of_merges, write_domains


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> SimpleNamespace:
    """All runs of one target, done; tests leave the folder as it is."""
    folder = tmp_path_factory.mktemp("merged")
    runs = runs_of_merges(write_domains(folder / "own.npz"))
    store = Store(folder / "runs")
    result = {outcome.run.key: outcome for outcome in complete(runs, store)}
    assert all(isinstance(outcome, Record) for outcome in result.values())
    merged = {run.method: result[run.key] for run in runs if run.experts}
    return SimpleNamespace(folder=folder, runs=runs, store=store, records=result, merged=merged)


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
    base = done.records[record.run.base]
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
    expert = done.records[record.run.experts[0]]
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
    runs = runs_of_merges(listed(tmp_path / "own"), "c", merges=["average"],
                   settings={"size": 8, "steps": 30})  # fmt: skip
    store = Store(tmp_path / "runs")
    result = {outcome.run.method: outcome for outcome in complete(runs, store)}
    scores = result["target_expert"].checkpoints[0].scores["c"]
    assert (scores.main.size, scores.probe.size) == (6, 18)
    logits, y = logits_of(store.root, result["target_expert"], "c")
    assert scores.main.accuracy == accuracy(logits, y)
    assert result["average"].checkpoints[0].scores["c"].main.size == 6


def test_the_ensemble_is_the_mean_of_raw_logits_as_the_reference_has_it():
    numbers = np.load(GOLDEN / "logit_ensemble.npz")

    class Given(nn.Module):
        def __init__(self, rows):
            super().__init__()
            self.rows = nn.Parameter(torch.tensor(rows))

        def forward(self, x):
            return self.rows[x]

    ensemble = Ensemble([Given(rows) for rows in numbers["logits"]])
    result = ensemble(torch.arange(10)).detach().numpy()
    np.testing.assert_allclose(result, numbers["mean"], rtol=0, atol=1e-10)
    assert result.argmax(1).tolist() == numbers["pred"].tolist()
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
    result = done.store.weights(run)
    assert result.keys() == expected.keys()
    assert all(torch.equal(result[key], value) for key, value in expected.items())
    logits, y = logits_of(done.store.root, done.merged["base"], "d", expected)
    assert done.merged[name].checkpoints[0].score("d", "main").accuracy == accuracy(logits, y)


def test_scale_and_settings_change_what_comes_out(done):
    settings = {"score.tau": 0.5, "score.scale": 0.5, "average.scale": 0}
    runs = runs_of_merges(done.folder / "own.npz", merges=["score", "average"], settings=settings)
    result = {o.run.method: o for o in complete(runs, done.store)}
    assert result["score"].run.key != done.merged["score"].run.key
    first, second = (done.store.weights(done_.run) for done_ in (done.merged["score"],
                                                                 result["score"]))  # fmt: skip
    assert not torch.equal(first["head.weight"], second["head.weight"])
    # No step at all from the base.
    nowhere, base = (done.store.weights(result[name].run) for name in ("average", "base"))
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
    runs = runs_of_merges(write_domains(tmp_path / "own.npz", flipped="d"), merges=["average"],
                   settings={"steps": 40})  # fmt: skip
    store = Store(tmp_path / "runs")
    list(complete([run for run in runs if not run.experts], store))
    best = next(run for run in runs if run.method == "best_expert")
    of_target = next(run for run in runs if run.method == "target_expert").experts[0]
    spy = next(run for run in runs if run.key == best.experts[0])
    with store.claim(spy):
        store.put(store.get(spy), read_run_weights(store.root / of_target))
    record = execute(best, store)
    result = store.weights(best)
    values = {}
    for key in best.experts:
        weights = read_run_weights(store.root / key)
        values[key] = accuracy(*logits_of(store.root, record, "d", weights))
        if key == spy.key:
            assert not torch.equal(result["head.weight"], weights["head.weight"])
    assert max(values, key=values.get) == spy.key


def test_a_second_start_does_nothing(done):
    before = {p: p.stat().st_mtime_ns for p in done.store.root.rglob("*.*")}
    again = {outcome.run.key: outcome for outcome in complete(done.runs, done.store)}
    assert again == done.records
    assert {p: p.stat().st_mtime_ns for p in done.store.root.rglob("*.*")} == before


@pytest.mark.slow
def test_a_failed_expert_fails_what_needs_it_by_name_and_nothing_else(done, tmp_path, monkeypatch):
    store, lost = Store(tmp_path), done.merged["score"].run.experts[1]

    def fails_once(run, *arguments, **options):
        if run.key == lost:
            raise SpecError("no luck")
        return execute(run, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "execute", fails_once)
        result = {outcome.run.key: outcome for outcome in complete(done.runs, store)}
    failed = {o.run.method: o.error for o in result.values() if isinstance(o, Failure)}
    assert failed.keys() == {"erm", "best_expert", "logit_ensemble", *MERGES}
    for name in ("best_expert", *MERGES):
        assert failed[name].startswith(f"{lost}: this expert has no weights in {tmp_path}")
        assert "\n" not in failed[name]
    again = {outcome.run.key: outcome for outcome in complete(done.runs, store)}
    assert all(isinstance(outcome, Record) for outcome in again.values())
    assert store.failures() == []
    for run in done.runs:
        assert outcome(store, run) == outcome(done.store, run)


def test_a_failed_base_fails_all_that_starts_from_it(done, tmp_path, monkeypatch):
    def fails(run, *arguments, **options):
        if run.role == "base":
            raise SpecError("no luck")
        return execute(run, *arguments, **options)

    monkeypatch.setattr(sweep, "execute", fails)
    result = list(complete(done.runs, Store(tmp_path)))
    assert all(isinstance(outcome, Failure) for outcome in result)
    base = done.merged["base"].run.base
    assert all(base in o.error and "\n" not in o.error for o in result if o.run.role == "expert")


@pytest.mark.parametrize("methods", [["dmg"], ["erm", "multi_head"], ["urm"]])
def test_an_expert_that_is_another_network_is_refused_before_training(tmp_path, methods):
    data = write_domains(tmp_path / "own.npz")
    message = f"{methods[-1]} changes the network of the base, so its experts cannot be merged"
    with pytest.raises(SpecError, match=message) as caught:
        runs_of_merges(data, merges=["average"], expert_method=methods)
    assert "\n" not in str(caught.value)


def test_heads_of_a_single_domain_are_one_head(tmp_path):
    data = write_domains(tmp_path / "own.npz")
    assert runs_of_merges(data, merges=["average"], expert_method=["multi_head"])


def test_a_merged_run_is_not_repeated_alone(done):
    run = done.merged["score"].run
    with pytest.raises(SpecError, match=f"{run.key}: this model is not trained"):
        check_run(run)


def test_a_merged_run_of_experts_that_are_not_there_names_them(done, tmp_path):
    run = done.merged["score"].run
    with pytest.raises(DataError, match="no readable weights"):
        execute(run, Store(tmp_path))


def test_it_leaves_generators_and_threads_alone(done, tmp_path):
    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    execute(done.merged["score"].run, trained(done, tmp_path))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_experts_of_several_methods_are_merged(tmp_path):
    runs = runs_of_merges(write_domains(tmp_path / "own.npz"), merges=["slerp", "score"],
                   expert_method=["erm", "vrex"])  # fmt: skip
    store = Store(tmp_path / "runs")
    result = {o.run.method: o for o in complete(runs, store) if o.run.role == "merged"}
    assert all(isinstance(record, Record) for record in result.values())
    assert len(result["slerp"].run.experts) == 2


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
    runs = runs_of_merges(write_domains(tmp_path / "own.npz", numbers=True), merges=["average"],
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
    assert len(diagnose("agreement", folder, settings={"samples": 10}).data)
    subject = reopen(folder)
    assert list(subject.experts) == ["a", "b", "c"]
    base = read_run_weights(done.store.root / done.merged["score"].run.base)
    assert all(torch.equal(value, base[name]) for name, value in subject.base.items())
    # Before a first step it is the base.
    first = subject.learner.model.state_dict()
    assert all(torch.equal(value, base[name]) for name, value in first.items())


def test_experts_of_several_methods_are_called_by_these(tmp_path):
    runs = runs_of_merges(write_domains(tmp_path / "own.npz"), merges=["average"],
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
    assert execute(run, store).checkpoints[0].score("d", "probe") is None
    whole = execute(done.merged["score"].run, store)
    assert whole.checkpoints == done.merged["score"].checkpoints


QUICK = {"steps": 10, "every": 5}


def plan(*methods: str, dataset="spirals", **options) -> list[Run]:
    return make_benchmark(dataset, methods, trials=1, settings=QUICK, **options).runs()


def do(runs: list[Run], folder: Path) -> dict[str, afield.Record]:
    """The records of rows that leave out the first domain, and of the runs that these need."""
    by_key, store = {run.key: run for run in runs}, Store(folder)
    needed = [r for r in runs if "turn0" not in r.sources and r.role in ("", "merged", "adapted")]
    for run in needed:
        needed += [by_key[key] for key in (run.base, *run.experts) if key]
    ordered = sorted({run.key: run for run in needed}.values(), key=lambda run: run.order)
    return {run.key: execute(run, store) for run in ordered}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    records = do(plan("erm", adapt="t3a"), folder)
    (record,) = (record for record in records.values() if record.run.adaptation)
    return record, records[record.run.base], folder


def test_an_adapted_run_is_one_checkpoint_of_its_base(adapted):
    record, base, folder = adapted
    assert record.run.role == "adapted"
    assert len(record.checkpoints) == 1
    assert base.run.key == record.run.base
    assert read_run_weights(folder / record.run.key) == {}
    same = replace(record.run, role="", base="", adaptation="", adaptation_params={})
    assert same.key == base.run.key


def test_its_scores_are_those_of_the_adaptation_by_hand(adapted):
    record, base, folder = adapted
    finished = reopen(folder / base.run.key)
    domain = finished.domains["turn0"]
    stored = np.argsort([int(name) for name in finished.sample_names["turn0"]])
    split = Domain(domain.x.in_memory[stored], domain.y[stored])
    evaluator = Evaluator({("turn0", "main"): split}, domain.prepare, trial=0)
    scores = evaluator.evaluate(T3A().predictor(finished.model))
    assert record.checkpoints[0].scores["turn0"].main == scores["turn0"].main
    assert record.checkpoints[0].score("turn10", "probe") is not None


def test_labels_of_the_target_do_not_change_what_an_adapted_model_predicts():
    torch.manual_seed(0)
    x, y = torch.randn(150, 4), torch.arange(150) % 2
    scores = []
    for labels in (y, 1 - y):
        model = afield.networks.network("small:mlp", (4,), 2)
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape)
        evaluator = Evaluator({("new", "main"): Domain(x, labels)})
        scores.append(evaluator.evaluate(T3A(keep=5).predictor(model))["new"].main.accuracy)
    assert sum(scores) == pytest.approx(1.0)


def test_done_again_it_does_nothing_and_done_anew_it_is_the_same(adapted, tmp_path):
    record, base, folder = adapted
    assert execute(record.run, Store(folder)) == record
    execute(base.run, Store(tmp_path))
    assert execute(record.run, Store(tmp_path)).checkpoints == record.checkpoints


def test_an_adapted_run_is_neither_trained_nor_reopened(adapted):
    record, base, folder = adapted
    with pytest.raises(SpecError, match="bench with --adapt"):
        check_run(record.run)
    with pytest.raises(SpecError, match=f"give {base.run.key}"):
        reopen(folder / record.run.key)


def test_draws_vary_the_adaptation_and_settings_are_in_the_label():
    runs = [run for run in plan("erm", adapt="t3a", draws=4) if run.adaptation]
    assert len({run.adaptation_params["keep"] for run in runs}) > 1
    repeated = make_benchmark("spirals", "erm", adapt="t3a", draws=8, trials=2).runs()
    keeps = [
        [run.adaptation_params["keep"] for run in repeated if run.adaptation and run.trial == trial]
        for trial in range(2)
    ]
    assert keeps[0] != keeps[1]
    chosen = make_benchmark("spirals", "erm", adapt="t3a", settings={"t3a.keep": 5}, trials=1)
    run = chosen.runs()[-1]
    assert run.adaptation_params == {"keep": 5}
    assert run.given["t3a.keep"] == 5
    assert run_adaptation(run) == T3A(keep=5)


def test_twins_of_adapted_and_started_runs_share_their_recipe():
    runs = plan("erm", adapt="t3a", start="linear_probe", rules="left-out-source")
    rows = [run for run in runs if run.role != "base"]
    assert len({run.recipe for run in rows}) == 2
    unstarted = plan("erm", rules="left-out-source")
    assert unstarted[0].recipe not in {run.recipe for run in rows}


def test_a_run_starts_from_the_fitted_head(tmp_path):
    records = do(plan("erm", start="linear_probe", average="wise"), tmp_path)
    (base,) = (record.run for record in records.values() if record.run.role == "base")
    (run,) = (record.run for record in records.values() if not record.run.role)
    assert (base.method, run.base, run.given["start"]) == ("linear_probe", base.key, "linear_probe")
    first = reopen(tmp_path / run.key).learner.model.state_dict()
    fitted = read_run_weights(tmp_path / base.key)
    assert all(torch.equal(first[name], value) for name, value in fitted.items())
    still = replace(run, average_params={"alpha": 0.0})
    execute(still, Store(tmp_path))
    deployed = read_run_weights(tmp_path / still.key)
    assert all(torch.equal(deployed[name], value) for name, value in fitted.items())


def test_a_soup_is_of_draws_on_all_sources_that_share_a_base(tmp_path):
    runs = plan(merges="average,greedy_soup", expert_draws=3)
    experts = [r for r in runs if r.role == "expert" and "turn0" not in r.sources]
    experts = [run for run in experts if len(run.sources) == 3]
    assert [run.draw for run in experts] == [0, 1, 2]
    assert len({run.base for run in experts}) == 1
    assert not any(run.freeze_head for run in experts)
    assert len({run.lr for run in experts}) > 1
    records = do(runs, tmp_path)
    merged = {r.run.method: r for r in records.values() if r.run.role == "merged"}

    def validation(record):
        scores = [record.checkpoints[0].score(name, "probe") for name in record.run.sources]
        return np.mean([score.accuracy for score in scores])

    soup, best = merged["greedy_soup"], merged["best_expert"]
    assert validation(soup) >= validation(best)
    assert soup.run.experts == tuple(run.key for run in experts)
    assert soup.run.given["expert_draws"] == 3
    assert soup.checkpoints[0].logs["kept experts"] in (1, 2, 3)
    assert not best.checkpoints[0].logs


def test_starts_methods_averages_and_adaptations_go_together_in_pairs(tmp_path):
    methods, averages = ["erm", "vrex", "mldg"], ["last", "ema", "wise"]
    for method, average, adapt in every_pair(methods, averages, ["", "t3a"]):
        runs = plan(method, average=average, adapt=adapt or None, start="linear_probe")
        records = do(runs, tmp_path).values()
        assert any(record.run.adaptation == adapt for record in records)
        assert all(record.run.average in (average, "last") for record in records)


@pytest.mark.parametrize(
    ("methods", "options", "reason"),
    [
        ("erm", {"adapt": "tent"}, "erm with --adapt tent: tent adapts BatchNorm layers"),
        ("dmg", {"adapt": "t3a"}, "dmg with --adapt t3a: t3a replaces the one linear head"),
        ("erm", {"average": "wise"}, "their head is random; add --start linear_probe"),
        ("multi_head", {"start": "linear_probe"}, "multi_head trains other weights"),
        ("linear_probe", {"start": "linear_probe"}, "cannot start from itself"),
        ("erm", {"start": "erm"}, "training can start from linear_probe only"),
        ("", {"merges": "average", "start": "linear_probe"}, "--start is for --methods"),
        ("erm", {"expert_draws": 3}, "need --merges"),
        (
            "",
            {"merges": "average", "expert_draws": 3, "expert_method": "erm,vrex"},
            "--expert-draws are of one method",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_training(methods, options, reason):
    with pytest.raises(SpecError, match=reason):
        plan(*filter(None, [methods]), **options)


def test_of_all_methods_those_that_cannot_be_adapted_are_left_out(caplog):
    runs = plan("all", adapt="t3a")
    adapted = {run.method for run in runs if run.adaptation}
    assert "erm" in adapted
    assert "dmg" not in adapted
    assert "dmg" in {run.method for run in runs}
    assert "left out: dmg with --adapt t3a" in caplog.text


def test_a_merge_by_validation_does_not_merge_files(tmp_path):
    with pytest.raises(afield.AfieldError, match="validation scores, which files do not have"):
        afield.merge_files(
            "greedy_soup", tmp_path / "a", [tmp_path / "b"], tmp_path / "out.safetensors"
        )
