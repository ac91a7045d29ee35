"""What every diagnostic's finding can do: be drawn to given axes, and be saved."""

import shutil
from dataclasses import replace

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from afield import registry
from afield.diagnosis.diagnostic import (
    Diagnostic,
    Finding,
    choose_domains,
    diagnose,
    trained_learner,
)
from afield.errors import DataError, SpecError, UnknownNameError
from afield.hyperparameters import build, defaults, ranges
from afield.reporting.benchmarking import bench
from afield.runs.finished import reopen
from afield.runs.run_files import read_run_weights
from afield.runs.selection import selection_value
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.studies.benchmark import make_benchmark
from afield.studies.benchmarking import train
from tests.messages import message_of
from tests.pairs import small_problem

NAMES = registry.names("diagnostics")
# Those that look at runs of some methods only.
OF_METHODS = {"masks": "dmg", "perturbations": "crossgrad"}
OF_MERGES = ("conflicts", "merge_path", "overlap")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = tmp_path_factory.mktemp("runs")
    for lr in (0.003, 0.01):
        bench("spirals", ["erm"], store=store, trials=1, settings={"steps": 15, "lr": lr})
    for method in OF_METHODS.values():
        train("spirals", method, target="turn30", store=store, settings={"steps": 15})
    return store


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    store = tmp_path_factory.mktemp("twins")
    bench("spirals", ["erm"], store=store, trials=1, rules="all", settings={"steps": 15})
    return store


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    store = tmp_path_factory.mktemp("merged")
    bench("spirals", store=store, merges=["score"], trials=1, settings={"steps": 15})
    return next(store.glob("score-*"))


@pytest.fixture(scope="module")
def findings(store, twins, merged):
    quick = {"loss_surface": {"steps": 2, "points": 3, "samples": 8}}

    def looked_at(name):
        if registry.find("diagnostics", name).takes == "records":
            return store
        if registry.find("diagnostics", name).takes == "store":
            return twins
        if name in OF_MERGES:
            return merged
        return next(store.glob(f"{OF_METHODS.get(name, 'erm')}-*"))

    return {name: diagnose(name, looked_at(name), settings=quick.get(name)) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_it_draws_to_the_axes_that_it_is_given(findings, name):
    finding = findings[name]
    figure = Figure()
    axes = figure.subplots(1, finding.panels + 1, squeeze=False)
    finding.draw(axes)
    drawn = [each for each in axes.flat if each.axison]
    assert len(drawn) == finding.panels
    assert all(each.has_data() for each in drawn)


def test_it_says_what_it_found_in_a_line(findings):
    for name, finding in findings.items():
        assert finding.summary, name
        assert "nan" not in finding.summary, name


@pytest.mark.parametrize("name", NAMES)
def test_it_is_saved_with_its_numbers_beside_it(findings, name, tmp_path):
    finding = findings[name]
    picture, table, *more = finding.save(tmp_path / "new" / f"{name}.png")
    assert picture.stat().st_size > 5000
    assert len(pd.read_csv(table)) == len(finding.data)
    assert [path.name for path in more] == [f"{name}.{each}.csv" for each in finding.extra_tables]
    assert all(len(pd.read_csv(path)) for path in more)


def test_every_setting_has_a_range_and_the_defaults_can_be_built():
    for name in NAMES:
        kind = registry.find("diagnostics", name)
        assert set(ranges(kind)) == set(defaults(kind)), name
        assert vars(build(kind, {})) == defaults(kind), name


def test_a_name_with_markup_is_shown_as_it_is():
    data = pd.DataFrame({"x": [1]})
    finding = Finding(data, "", lambda axes: axes[0].set_title("$a_", parse_math=False))
    finding.figure().savefig("/dev/null", format="png")


def test_too_few_axes_are_refused():
    finding = Finding(pd.DataFrame(), "", lambda axes: None, panels=3)
    with pytest.raises(SpecError, match=r"3 panel\(s\), but got 2 axes"):
        finding.draw(Figure().subplots(1, 2))


@pytest.mark.parametrize("out", ["fig.gif", "fig"])
def test_a_picture_of_another_kind_is_refused(tmp_path, out):
    finding = Finding(pd.DataFrame(), "", lambda axes: None)
    with pytest.raises(SpecError, match="png, svg, pdf"):
        finding.save(tmp_path / out)


def test_a_place_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    finding = Finding(pd.DataFrame(), "", lambda axes: None)
    with pytest.raises(SpecError, match="cannot be written"):
        finding.save(tmp_path / "file" / "fig.png")


@pytest.mark.parametrize(
    ("panels", "rows"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 2), (8, 4), (9, 3), (10, 5)]
)
def test_panels_fill_their_rows(panels, rows):
    axes = Finding(pd.DataFrame(), "", lambda axes: None, panels=panels).figure().axes
    assert len({each.get_subplotspec().rowspan.start for each in axes}) == rows
    assert sum(not each.axison for each in axes) <= 1


def test_a_diagnostic_that_does_nothing_says_so():
    with pytest.raises(NotImplementedError, match="does not take runs"):
        Diagnostic().diagnose_runs([])
    with pytest.raises(NotImplementedError, match="does not take records"):
        Diagnostic().diagnose_records([])
    with pytest.raises(NotImplementedError, match="does not take a store"):
        Diagnostic().diagnose_store([], lambda record: record)


@pytest.fixture(scope="module")
def subject(store):
    with torch.random.fork_rng():
        return reopen(next(store.glob("crossgrad-*")))


def test_domains_that_are_asked_for_are_shown_in_that_order_and_once(subject):
    assert choose_domains(subject, ("turn20", "turn0", "turn20"), 2) == ["turn20", "turn0"]
    # Whoever asks gets more than are shown by default.
    assert choose_domains(subject, tuple(subject.domains), 2) == list(subject.domains)


def test_without_being_asked_at_most_so_many_domains_are_shown(subject):
    for most in (2, 3, 4, 9):
        assert choose_domains(subject, (), most) == subject.shown(most)
        assert len(choose_domains(subject, (), most)) == min(most, 4)


@pytest.mark.parametrize(
    ("name", "guess"), [("turn11", "did you mean 'turn10'"), ("elsewhere", "known: turn0, turn10")]
)
def test_a_domain_that_is_missing_is_reported_with_those_that_are(subject, name, guess):
    with pytest.raises(SpecError) as caught:
        choose_domains(subject, ("turn0", name), 4)
    assert str(caught.value).startswith(f"spirals has no domain '{name}'; {guess}")


def test_a_domain_of_own_data_is_reported_by_where_they_are(subject):
    own = replace(subject.record, run=replace(subject.record.run, dataset="/my/data"))
    with pytest.raises(SpecError, match="/my/data has no domain 'x'"):
        choose_domains(replace(subject, record=own), ("x",), 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    record = train("spirals", "erm", target="turn20", store=store, settings={"steps": 40})
    return store / record.run.key


def test_a_run_comes_back_with_the_scores_of_its_record(folder):
    subject = reopen(folder)
    record = subject.record
    best = max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, record.run))
    samples = subject.domains["turn20"]
    with torch.inference_mode():
        logits = subject.model(samples.batch(torch.arange(len(samples))).x)
    accuracy = (logits.argmax(1) == samples.y).double().mean()
    assert float(accuracy) == pytest.approx(best.scores["turn20"].main.accuracy)


def test_its_learner_and_stream_are_as_before_the_first_step(folder):
    first, second = reopen(folder), reopen(folder)
    assert first.learner.step == 0
    pairs = zip(first.learner.model.parameters(), second.learner.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.model.head.weight, first.learner.model.head.weight)
    assert all(
        torch.equal(a.x, b.x) for a, b in zip(next(first.stream), next(second.stream), strict=True)
    )


def test_looking_leaves_the_random_numbers_of_the_caller_alone(folder):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    diagnose("gradient_shares", folder, settings={"steps": 3})
    assert torch.equal(torch.get_rng_state(), before)


def test_looking_twice_finds_the_same(folder):
    first, second = (diagnose("agreement", folder, settings={"samples": 20}).data for _ in range(2))
    assert first.equals(second)


def test_looking_changes_nothing_on_disk(folder):
    before = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    diagnose("agreement", folder, settings={"samples": 20})
    after = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    assert before == after


def test_paths_that_are_no_run_are_reported(folder, tmp_path):
    with pytest.raises(DataError, match=r"no record\.json"):
        diagnose("agreement", tmp_path)
    with pytest.raises(SpecError, match=r"is a store; agreement takes one .* such as .*erm-"):
        diagnose("agreement", folder.parent)
    with pytest.raises(DataError, match="no records there; sensitivity takes the store"):
        diagnose("sensitivity", tmp_path)
    with pytest.raises(SpecError, match="agreement takes one run, not 2"):
        diagnose("agreement", [folder, folder])


def test_an_unknown_name_is_reported_with_a_guess(folder):
    with pytest.raises(UnknownNameError, match="did you mean 'agreement'"):
        diagnose("agrement", folder)


@pytest.mark.parametrize(
    ("diagnostic", "settings", "message"),
    [
        ("agreement", {"sampels": 3}, "did you mean 'samples'"),
        # A setting cannot be taken for something else.
        ("agreement", {"name": "x"}, "has no setting 'name'"),
        ("agreement", {"paths": "x"}, "has no setting 'paths'"),
        ("agreement", {"device": "x"}, "has no setting 'device'"),
        ("agreement", {"root": "x"}, "has no setting 'root'"),
        ("agreement", {"samples": 1}, "samples=1: must be at least 2"),
        ("gradient_shares", {"steps": 0}, "steps=0: must be at least 1"),
        ("gradient_shares", {"beta": 1}, "beta=1: must be at least 0 and below 1"),
        ("loss_surface", {"rate": -1}, "loss_surface.rate=-1: must not be below 0"),
        ("loss_surface", {"points": 1}, "points=1: must be at least 2"),
    ],
)
def test_settings_that_are_impossible_are_refused(folder, diagnostic, settings, message):
    with pytest.raises(SpecError, match=message):
        diagnose(diagnostic, folder, settings=settings)


def test_a_folder_may_be_moved_and_looked_at_from_inside(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "the_best_one")
    monkeypatch.chdir(tmp_path / "the_best_one")
    expected = diagnose("agreement", folder, settings={"samples": 20}).data
    assert diagnose("agreement", ".", settings={"samples": 20}).data.equals(expected)


def test_a_run_whose_weights_are_gone_is_reported(folder, tmp_path):
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(DataError, match="no readable weights"):
        diagnose("agreement", copy)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (9, ["turn0", "turn10", "turn20", "turn30"]),
        (4, ["turn0", "turn10", "turn20", "turn30"]),
        (3, ["turn0", "turn10", "turn20"]),
        (2, ["turn0", "turn10"]),
    ],
)
def test_of_many_domains_some_are_shown_unseen_ones_among_them(folder, most, expected):
    assert reopen(folder).shown(most) == expected


@pytest.fixture(scope="module")
def with_parts(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    settings = {"steps": 40, "every": 5}
    record = train("spirals", "dann", target="turn20", store=store, settings=settings)
    return store / record.run.key


def test_further_networks_come_back_as_they_were_when_the_model_was_best(with_parts):
    subject = reopen(with_parts)
    kept = read_run_weights(with_parts, "parts")
    result = subject.trained.parts.state_dict()
    assert set(result) == set(kept)
    assert all(torch.equal(result[name], kept[name]) for name in kept)
    assert subject.trained.model is subject.model
    nets = (subject.trained.model, subject.trained.parts)
    assert not any(module.training for net in nets for module in net.modules())


def test_the_start_of_further_networks_is_another_copy(with_parts):
    subject = reopen(with_parts)
    start, end = subject.learner.parts.state_dict(), subject.trained.parts.state_dict()
    assert not any(torch.equal(start[name], end[name]) for name in start if "weight" in name)
    with torch.no_grad():
        for parameter in subject.trained.parts.parameters():
            parameter.zero_()
    again = reopen(with_parts).learner.parts.state_dict()
    assert all(torch.equal(start[name], again[name]) for name in start)


def test_what_was_trained_does_not_change_when_the_run_is_trained_once_more(with_parts):
    subject = reopen(with_parts)
    nets = (subject.model, subject.trained.parts)
    before = [value.clone() for net in nets for value in net.state_dict().values()]
    *_, (step, _) = subject.retrain(4)
    assert step == 40
    after = [value for net in nets for value in net.state_dict().values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "method",
    # Predictions of a batch depend on the samples in it, so these cannot be compared one by one.
    [n for n in registry.names("methods") if not registry.find("methods", n).predicts_from_batches],
)
def test_a_run_of_every_method_comes_back_and_scores_as_it_did(method, tmp_path):
    dataset, target, settings = small_problem(method)
    settings = {"steps": 4, **settings}
    record = train(dataset, method, target=target, store=tmp_path, settings=settings)
    subject = reopen(tmp_path / record.run.key)
    samples = subject.domains[target]
    with torch.inference_mode():
        logits = subject.trained.model(samples.batch(torch.arange(len(samples))).x)
    accuracy = (logits.argmax(1) == samples.y).double().mean()
    (best,) = [each for each in record.checkpoints if each.step == subject.step]
    assert float(accuracy) == pytest.approx(best.scores[target].main.accuracy)


def test_a_run_whose_further_networks_are_gone_is_reported_where_they_are_needed(
    with_parts, tmp_path
):
    copy = tmp_path / with_parts.name
    shutil.copytree(with_parts, copy)
    file = copy / "parts.safetensors"
    file.unlink()
    assert len(diagnose("agreement", copy).data)
    message = message_of(DataError, trained_learner, reopen(copy))
    assert "remove its folder and run it again" in message
    file.write_bytes(b"short")
    with pytest.raises(DataError, match=r"parts\.safetensors: no readable weights"):
        diagnose("domain_space", copy)


def test_a_run_without_further_networks_needs_no_file_of_them(folder):
    assert not (folder / "parts.safetensors").exists()
    subject = reopen(folder)
    assert len(subject.trained.parts) == 0
    assert subject.trained.model is subject.model


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """The folder of a merged run, beside its base and its experts."""
    store = Store(tmp_path_factory.mktemp("merged"))
    runs = make_benchmark("spirals", merges=["average"], trials=1, settings={"steps": 5}).runs()
    wanted = next(run for run in runs if run.method == "average")
    needed = (wanted.key, wanted.base, *wanted.experts)
    list(complete([run for run in runs if run.key in needed], store))
    return store.folder(wanted)


def test_a_merged_run_comes_back_with_its_base_and_its_experts(averaged):
    subject = reopen(averaged)
    assert list(subject.experts) == list(subject.record.run.sources)
    ours = read_run_weights(averaged)
    assert all(torch.equal(v, ours[n]) for n, v in subject.model.state_dict().items())
    mean = torch.stack([each["head.bias"] for each in subject.experts.values()]).mean(0)
    torch.testing.assert_close(ours["head.bias"], mean)
    first = subject.learner.model.state_dict()
    assert all(torch.equal(v, subject.base[n]) for n, v in first.items())


def test_an_ordinary_run_has_neither(folder):
    subject = reopen(folder)
    assert subject.base == subject.experts == {}


def test_a_merged_run_alone_names_what_is_missing(averaged, tmp_path):
    shutil.copytree(averaged, tmp_path / averaged.name)
    with pytest.raises(DataError, match="no readable weights"):
        diagnose("agreement", tmp_path / averaged.name)


def test_a_merged_run_may_be_looked_at_from_inside(averaged, monkeypatch):
    monkeypatch.chdir(averaged)
    expected = diagnose("agreement", averaged, settings={"samples": 20}).data
    assert diagnose("agreement", ".", settings={"samples": 20}).data.equals(expected)
