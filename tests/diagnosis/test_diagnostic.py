"""What every diagnostic's finding can do: be drawn to given axes, and be saved."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from afield import registry
from afield.diagnosis.diagnostic import Diagnostic, Finding, choose_domains, diagnose
from afield.errors import SpecError
from afield.hyperparameters import build, defaults, ranges
from afield.reporting.benchmarking import bench
from afield.runs.finished import reopen
from afield.studies.benchmarking import train

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
    found = Finding(data, "", lambda axes: axes[0].set_title("$a_", parse_math=False))
    found.figure().savefig("/dev/null", format="png")


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
    with pytest.raises(SpecError, match="cannot write"):
        finding.save(tmp_path / "file" / "fig.png")


@pytest.mark.parametrize(
    ("panels", "rows"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 2), (8, 4), (9, 3), (10, 5)]
)
def test_panels_fill_their_rows(panels, rows):
    finding = Finding(pd.DataFrame(), "", lambda axes: None, panels=panels)
    axes = finding.figure().axes
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
