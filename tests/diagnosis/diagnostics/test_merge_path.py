"""Along the line from a base through a merged model: its ends are what the records say."""

from pathlib import Path

import pytest
import torch

from afield.data.lookup import find_dataset
from afield.diagnosis.diagnostics.merge_path import MergePath, interpolate_weights
from afield.errors import SpecError
from afield.runs.finished import FinishedRun, reopen
from afield.runs.run_files import read_record
from afield.runs.store import Store
from afield.runs.sweep import complete
from tests.diagnosis.diagnostics.runs import reopened
from tests.protocols import merging_runs


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Merged runs of one target, by their merges, and the base."""
    store = Store(tmp_path_factory.mktemp("merged"))
    settings = {"steps": 40, "score.scale": 1.5}
    runs = merging_runs(find_dataset("spirals"), ["score"], trials=1, settings=settings)
    wanted = {"score": "score", "base": "base"}
    last = {run.method: run for run in runs if run.experts and "turn30" not in run.sources}
    needed = {key for method in wanted for key in (*last[method].experts, last[method].base)}
    chosen = [run for run in runs if run.key in needed]
    chosen += [last[method] for method in wanted]
    records = list(complete(chosen, store))
    return {record.run.method: store.root / record.run.key for record in records}


@pytest.fixture
def given(folders: dict[str, Path]) -> FinishedRun:
    return reopened(folders["score"])


def accuracies(finding, scale):
    return finding.data[finding.data["scale"] == scale].set_index("domain")["accuracy"].to_dict()


def recorded(folder):
    (checkpoint,) = read_record(folder).checkpoints
    main = checkpoint.scores["turn30"].main.accuracy
    sources = ("turn0", "turn10", "turn20")
    return {name: checkpoint.scores[name].probe.accuracy for name in sources} | {"turn30": main}


def test_its_ends_are_the_base_and_the_merged_run_of_the_records(given, folders):
    finding = MergePath(points=3).diagnose_runs([given])
    assert accuracies(finding, 0.0) == pytest.approx(recorded(folders["base"]))
    assert accuracies(finding, 1.0) == pytest.approx(recorded(folders["score"]))
    assert sorted(finding.data["scale"].unique()) == [0, 1, 2]
    assert finding.data.groupby("domain")["seen"].first().to_dict() == {
        "turn0": True,
        "turn10": True,
        "turn20": True,
        "turn30": False,
    }


def test_between_and_beyond_it_is_the_base_and_a_multiple_of_the_merged_delta(given):
    before = {name: value.clone() for name, value in given.model.state_dict().items()}
    measured = accuracies(MergePath(points=5, furthest=3.0).diagnose_runs([given]), 2.25)
    samples = given.domains["turn30"]
    x = samples.batch(torch.arange(len(samples))).x
    delta = {name: value - given.base[name] for name, value in before.items()}
    given.model.load_state_dict({name: given.base[name] + 2.25 * delta[name] for name in delta})
    right = given.model(x).argmax(dim=1) == samples.y
    assert measured["turn30"] == pytest.approx(float(right.double().mean()))


def test_the_network_stays_as_it_is(given):
    before = {name: value.clone() for name, value in given.model.state_dict().items()}
    MergePath(points=2).diagnose_runs([given])
    assert all(torch.equal(before[k], v) for k, v in given.model.state_dict().items())


def test_where_one_goes_is_exact_at_both_ends_and_integers_stay():
    torch.manual_seed(0)
    base = {"w": torch.randn(50), "running_var": torch.tensor([1.0]), "count": torch.tensor(3)}
    merged = {"w": torch.randn(50), "running_var": torch.tensor([0.2]), "count": torch.tensor(9)}
    assert torch.equal(interpolate_weights(base, merged, 0.0)["w"], base["w"])
    assert torch.equal(interpolate_weights(base, merged, 1.0)["w"], merged["w"])
    beyond = interpolate_weights(base, merged, 2.0)
    torch.testing.assert_close(beyond["w"], 2 * merged["w"] - base["w"])
    # Statistics stay within those that were measured.
    assert float(beyond["running_var"]) == float(merged["running_var"])
    assert int(beyond["count"]) == 9
    half = interpolate_weights(
        {"w": torch.zeros(1)}, {"w": torch.ones(1, dtype=torch.float16)}, 0.5
    )
    assert half["w"].dtype == torch.float16


def test_it_says_where_it_is_best_on_the_sources_and_what_the_unseen_domain_has_there(given):
    finding = MergePath(points=11).diagnose_runs([given])
    data = finding.data
    mean = data[data["seen"]].groupby("scale")["accuracy"].mean().round(9)
    best = min(mean[mean == mean.max()].index, key=lambda scale: abs(scale - 1))
    assert finding.summary.startswith(f"best scale on the sources: {best:g} (")
    there = accuracies(finding, best)["turn30"]
    assert f"turn30 (unseen) at this scale: {100 * there:.1f} %" in finding.summary
    labels = finding.figure().axes[0].get_legend_handles_labels()[1]
    assert f" best on the sources: {best:g}" in labels
    assert " turn30 (unseen)" in labels


def test_the_merged_model_is_marked_though_it_is_between_the_points(given):
    scales = MergePath(points=2, furthest=1.5).diagnose_runs([given]).data["scale"].unique()
    assert sorted(scales) == [0, 1, 1.5]


def test_fewer_samples_can_be_asked_for(given):
    few = MergePath(points=2, samples=10).diagnose_runs([given]).data
    assert ((10 * few["accuracy"]).round(6) % 1 == 0).all()


def test_other_runs_and_settings_are_refused(subject, folders):
    with pytest.raises(SpecError, match=r"merge_path takes merged runs, as made by `afield"):
        MergePath().diagnose_runs([subject])
    with pytest.raises(SpecError, match="merge_path: base equals its base"):
        MergePath().diagnose_runs([reopen(folders["base"])])
    for settings in ({"points": 1}, {"furthest": 0.0}, {"samples": 0}):
        with pytest.raises(SpecError, match=f"merge_path.{next(iter(settings))}="):
            MergePath(**settings)
