import pytest
import torch
import torch.nn.functional as F

from afield.diagnosis.diagnostics.agreement import Agreement
from afield.tensors import flatten


def cosines(finding):
    return finding.data.set_index(["first", "second"])["cosine"]


def test_it_is_the_mean_cosine_of_the_gradients_of_two_halves(subject):
    values = cosines(Agreement(samples=40).diagnose_runs([subject]))
    slopes = {}
    for name in ("turn0", "turn30"):
        for half, index in enumerate(subject.sample_indices(name, 40).tensor_split(2)):
            batch = subject.domains[name].batch(index)
            loss = F.cross_entropy(subject.model(batch.x), batch.y)
            slopes[name, half] = flatten(
                torch.autograd.grad(loss, list(subject.model.parameters()))
            )
    crossed = [
        F.cosine_similarity(slopes["turn0", a], slopes["turn30", b], dim=0)
        for a in (0, 1)
        for b in (0, 1)
    ]
    assert values["turn0", "turn30"] == pytest.approx(float(torch.stack(crossed).mean()), abs=1e-5)
    own = F.cosine_similarity(slopes["turn0", 0], slopes["turn0", 1], dim=0)
    assert values["turn0", "turn0"] == pytest.approx(float(own), abs=1e-5)


def test_it_does_not_matter_which_domain_comes_first(subject):
    values = cosines(Agreement(samples=32).diagnose_runs([subject]))
    assert all(values[a, b] == pytest.approx(values[b, a], abs=1e-6) for a, b in values.index)
    assert values.abs().max() <= 1 + 1e-6


def test_sources_are_distinguished_from_unseen_domains(subject):
    finding = Agreement(samples=16).diagnose_runs([subject])
    unseen = finding.data[
        (finding.data["first"] == "turn30") | (finding.data["second"] == "turn30")
    ]
    assert not unseen["seen"].any()
    assert finding.data.drop(unseen.index)["seen"].all()
    assert "between a source and an unseen domain" in finding.summary


def test_the_start_of_a_run_is_another_place_than_its_end(subject):
    ends = [
        cosines(Agreement(at=at, samples=32).diagnose_runs([subject])) for at in ("start", "end")
    ]
    assert not ends[0].equals(ends[1])


def test_gradients_in_pieces_are_those_of_all_samples(subject, monkeypatch):
    whole = cosines(Agreement(samples=100).diagnose_runs([subject]))
    monkeypatch.setattr("afield.diagnosis.diagnostics.agreement.CHUNK", 7)
    assert cosines(Agreement(samples=100).diagnose_runs([subject])).to_numpy() == pytest.approx(
        whole.to_numpy(), abs=1e-5
    )
