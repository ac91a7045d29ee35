import copy
from itertools import islice

import pytest
import torch
import torch.nn.functional as F

from afield.diagnosis.diagnostic import diagnose
from afield.diagnosis.diagnostics.loss_surface import LossSurface
from afield.errors import SpecError
from afield.runs.finished import reopen
from afield.studies.benchmarking import train
from afield.tensors import flatten, unflatten

QUICK = {"steps": 5, "points": 4, "samples": 24}


@pytest.fixture(scope="module")
def finding(folder):
    return diagnose("loss_surface", folder, settings=QUICK)


def positions(subject, *, steps):
    """The weights after so many fresh Adam steps on each of the first three sources."""
    model = copy.deepcopy(subject.model)
    result = []
    for source in subject.record.run.sources[:3]:
        optimizer = torch.optim.Adam(model.parameters(), lr=subject.record.run.lr)
        for batch in islice(subject.batches(source), steps):
            optimizer.zero_grad()
            F.cross_entropy(model(batch.x), batch.y).backward()
            optimizer.step()
        result.append(flatten(list(model.parameters())))
    return result


def loss_at(subject, weights, domain, samples):
    model = copy.deepcopy(subject.model)
    parameters = list(model.parameters())
    with torch.no_grad():
        for parameter, value in zip(parameters, unflatten(weights, parameters), strict=True):
            parameter.copy_(value)
        batch = subject.domains[domain].batch(subject.sample_indices(domain, samples))
        return float(F.cross_entropy(model(batch.x), batch.y))


def test_marks_are_the_experts_of_an_inner_loop_and_their_centroid(finding, subject):
    experts = positions(subject, steps=5)
    data = finding.data[finding.data["domain"] == "turn30"].set_index("mark")
    names = [f"after {source}" for source in subject.record.run.sources]
    for name, weights in zip(names, experts, strict=True):
        assert data.loc[name, "loss"] == pytest.approx(
            loss_at(subject, weights, "turn30", 24), rel=1e-4
        )
    expected = loss_at(subject, torch.stack(experts).mean(0), "turn30", 24)
    assert data.loc["centroid", "loss"] == pytest.approx(expected, rel=1e-4)


def test_distances_on_the_plane_are_those_between_the_networks(finding, subject):
    experts = positions(subject, steps=5)
    data = finding.data[finding.data["domain"] == "turn0"].set_index("mark")
    places = [
        data.loc[f"after {s}", ["x", "y"]].to_numpy(float) for s in subject.record.run.sources
    ]
    for i in range(3):
        for j in range(i):
            away = float((experts[i] - experts[j]).norm())
            assert ((places[i] - places[j]) ** 2).sum() ** 0.5 == pytest.approx(away, rel=1e-3)
    middle = sum(places) / 3
    assert data.loc["centroid", ["x", "y"]].to_numpy(float) == pytest.approx(middle, abs=1e-5)


def test_places_of_the_grid_have_the_loss_of_the_weights_there(finding, subject):
    first, second, third = positions(subject, steps=5)
    u = F.normalize(second - first, dim=0)
    aside = (third - first) - ((third - first) @ u) * u
    v = F.normalize(aside, dim=0)
    grid = finding.data[(finding.data["mark"] == "") & (finding.data["domain"] == "turn10")]
    for _, row in grid.iloc[[0, 7, 15]].iterrows():
        weights = first + row["x"] * u + row["y"] * v
        assert row["loss"] == pytest.approx(loss_at(subject, weights, "turn10", 24), rel=1e-3)


def test_there_is_a_panel_and_a_whole_grid_for_every_domain(finding, subject):
    assert finding.panels == len(subject.domains) == 4
    grid = finding.data[finding.data["mark"] == ""]
    assert (grid.groupby("domain").size() == 16).all()
    assert not finding.data[finding.data["domain"] == "turn30"]["seen"].any()
    assert "on unseen domains" in finding.summary


def test_the_network_is_as_it_was_when_only_its_experts_were_made(subject):
    before = flatten(list(subject.model.parameters()))
    LossSurface(steps=3)._trained(subject)
    assert torch.equal(flatten(list(subject.model.parameters())), before)


@pytest.mark.parametrize("setting", ["steps", "rate", "inner", "samples", "margin", "points"])
def test_every_setting_matters(folder, finding, setting):
    other = {"steps": 7, "rate": 3.0, "inner": "sgd", "samples": 30, "margin": 1.0, "points": 5}
    changed = diagnose("loss_surface", folder, settings={**QUICK, setting: other[setting]})
    assert not changed.data.equals(finding.data)


def test_two_sources_make_a_plane_with_the_start(tmp_path):
    record = train(
        "spirals", "erm", target=["turn0", "turn30"], store=tmp_path, settings={"steps": 20}
    )
    result = diagnose("loss_surface", tmp_path / record.run.key, settings=QUICK).data
    assert {"start", "after turn10", "after turn20", "centroid", ""} == set(result["mark"])


def test_three_runs_are_a_plane_of_their_own(tmp_path):
    folders = [
        tmp_path
        / train("spirals", name, target="turn0", store=tmp_path, settings={"steps": 20}).run.key
        for name in ("erm", "arith", "fish")
    ]
    finding = diagnose("loss_surface", folders, settings={"points": 3, "samples": 16})
    own = finding.data[finding.data["domain"] == "turn0"].set_index("mark")
    for folder in folders:
        subject = reopen(folder)
        weights = flatten(list(subject.model.parameters()))
        expected = loss_at(subject, weights, "turn0", 16)
        assert own.loc[folder.name, "loss"] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(SpecError, match="three different runs"):
        diagnose("loss_surface", [folders[0]] * 3)
    other = train("spirals", "erm", target="turn30", store=tmp_path, settings={"steps": 20})
    with pytest.raises(SpecError, match="must have the same sources"):
        diagnose("loss_surface", [*folders[:2], tmp_path / other.run.key])
    with pytest.raises(SpecError, match="takes one run or three"):
        diagnose("loss_surface", folders[:2])


def test_one_source_is_refused(tmp_path):
    record = train(
        "spirals",
        "erm",
        target=["turn0", "turn10", "turn20"],
        store=tmp_path,
        settings={"steps": 5},
    )
    with pytest.raises(SpecError, match="two source domains or more"):
        diagnose("loss_surface", tmp_path / record.run.key)
