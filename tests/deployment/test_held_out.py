"""The outputs for held-out domains that a model folder keeps."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from afield.deployment.fitting import fit
from afield.deployment.held_out import MAX_SAMPLES, DomainOutputs, from_tensors, to_tensors
from afield.deployment.hub import push
from afield.deployment.model import load
from afield.errors import DataError
from afield.files import sha256
from afield.runs.finished import reopen
from afield.runs.store import Store


def outputs(count=6, classes=3, name="a"):
    generator = torch.Generator().manual_seed(count)
    return DomainOutputs(
        name,
        torch.randn(count, classes, generator=generator),
        torch.randint(classes, (count,), generator=generator),
        {"distance": torch.rand(count, generator=generator)},
    )


def test_a_folder_keeps_the_outputs_of_models_that_left_each_domain_out(spiral_model):
    held_out = load(spiral_model).held_out
    store = Store(spiral_model.parent / "runs")
    assert [domain.name for domain in held_out] == ["turn0", "turn10", "turn20", "turn30"]
    for domain in held_out:
        (record,) = [each for each in store if each.unseen == (domain.name,)]
        subject = reopen(store.folder(record.run))
        parts = subject.domains[domain.name], subject.probes[domain.name]
        logits = torch.cat([subject.logits(part) for part in parts])
        labels = torch.cat([part.y for part in parts])
        assert len(domain) == len(labels)
        assert sorted(domain.logits[:, 0].tolist()) == pytest.approx(sorted(logits[:, 0].tolist()))
        # The order is not that of the data.
        assert not torch.allclose(domain.logits, logits)
        hits = (logits.argmax(1) == labels).double().mean()
        assert domain.accuracy == pytest.approx(float(hits))
        assert domain.scores["distance"].min() > 0


def test_the_tensors_survive_a_round_trip():
    domains = [outputs(), outputs(4, name="b")]
    again = from_tensors(to_tensors(domains), ["a", "b"], 3, "here")
    for one, other in zip(domains, again, strict=True):
        assert one.name == other.name
        assert torch.equal(one.logits, other.logits)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.scores["distance"], other.scores["distance"])


@pytest.mark.parametrize(
    "changed",
    [
        {"0.logits": torch.zeros(6, 2)},
        {"0.labels": torch.full((6,), 3, dtype=torch.int32)},
        {"0.labels": torch.full((6,), -1, dtype=torch.int32)},
        {"0.labels": torch.zeros(6)},
        {"0.distance": torch.zeros(5)},
        {"0.logits": torch.zeros(0, 3)},
    ],
)
def test_tensors_that_cannot_be_outputs_are_refused(changed):
    with pytest.raises(DataError, match=r"here: .*a"):
        from_tensors({**to_tensors([outputs()]), **changed}, ["a"], 3, "here")


def test_classes_that_a_model_did_not_know_have_no_probability():
    known = outputs(classes=2).with_classes(["cup", "pot"], ["bowl", "cup", "pot"])
    assert known.logits.shape == (6, 3)
    assert known.probabilities()[:, 0].max() == 0
    assert set(known.labels.tolist()) <= {1, 2}
    assert known.accuracy == outputs(classes=2).accuracy


def test_at_most_so_many_samples_are_kept():
    many = outputs(MAX_SAMPLES + 5)
    assert len(many.shuffled(0)) == MAX_SAMPLES
    assert not torch.equal(many.shuffled(0).logits, many.shuffled(1).logits)


def test_a_folder_without_them_and_an_older_one_load(tmp_path, model_folder):
    settings = {"steps": 2, "every": 2}
    fitted = fit(
        "spirals", "erm", tmp_path / "bare", store=tmp_path / "runs", settings=settings,
        held_out=False,
    )  # fmt: skip
    assert fitted.held_out == []
    assert not (tmp_path / "bare/held_out.safetensors").exists()
    about = json.loads((model_folder / "model.json").read_text())
    (model_folder / "held_out.safetensors").unlink()
    del about["held_out"], about["files"]["held_out.safetensors"]
    (model_folder / "model.json").write_text(json.dumps(about))
    assert load(model_folder).held_out == []


def test_a_changed_file_is_refused(model_folder):
    path = model_folder / "held_out.safetensors"
    tensors = load_file(path)
    tensors["0.logits"][0, 0] += 1
    save_file(tensors, path)
    with pytest.raises(DataError, match="SHA-256"):
        _ = load(model_folder).held_out
    tensors["0.labels"][0] = 9
    save_file(tensors, path)
    about = json.loads((model_folder / "model.json").read_text())
    about["files"]["held_out.safetensors"] = sha256(path)
    (model_folder / "model.json").write_text(json.dumps(about))
    with pytest.raises(DataError, match="not a class"):
        _ = load(model_folder).held_out


@pytest.mark.parametrize("asked", [False, True])
def test_push_leaves_them_out_unless_they_are_asked_for(model_folder, monkeypatch, asked):
    uploaded = {}

    class Hub:
        def create_repo(self, *_, **__):
            pass

        def upload_folder(self, *, allow_patterns, **_):
            uploaded["files"] = allow_patterns
            return type("Commit", (), {"repo_url": "there"})

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    push(model_folder, "user/name", with_held_out=asked)
    assert ("held_out.safetensors" in uploaded["files"]) == asked
