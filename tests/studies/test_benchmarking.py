"""Training one model."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import afield
from afield import own_code
from afield.data.domains import Domain, DomainSet
from afield.data.lookup import find_dataset
from afield.errors import AfieldError, DataError, UnknownNameError
from afield.studies.benchmarking import accept_objects, dataset_spec, train
from afield.training import Method, risks
from afield.training.methods.vrex import VREx

QUICK = {"steps": 10}


def test_broken_files_that_are_left_out_are_counted_in_the_log_and_the_record(tmp_path, caplog):
    generator = np.random.default_rng(0)
    for domain in ("a", "b"):
        for label in ("x", "y"):
            (tmp_path / "own" / domain / label).mkdir(parents=True)
            for i in range(4):
                pixels = generator.integers(0, 256, (8, 8, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "own" / domain / label / f"{i}.png")
    (tmp_path / "own" / "b" / "y" / "3.png").write_bytes(b"no picture")
    settings = {"steps": 1, "size": 16}
    with pytest.raises(DataError, match=r"b/y/3\.png"):
        train(tmp_path / "own", "erm", settings=settings, store=tmp_path / "runs")
    settings["skip_broken"] = True
    record = train(tmp_path / "own", "erm", settings=settings, store=tmp_path / "runs")
    assert record.dropped == 1
    assert "own: 1 broken file(s) left out" in caplog.text


def test_train_leaves_out_none_one_or_several(tmp_path):
    unseen = [
        train("spirals", "erm", target=target, settings=QUICK, store=tmp_path).unseen
        for target in ((), "turn10", ["turn0", "turn30"])
    ]
    assert unseen == [(), ("turn10",), ("turn0", "turn30")]


def test_train_with_an_unknown_target_has_a_guess(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean"):
        train("spirals", "erm", target="turn11", store=tmp_path)


@pytest.mark.slow
def test_it_learns_on_the_embedded_digits(tmp_path):
    record = train("rotated_digits", "erm", target="45deg", settings={"steps": 150}, store=tmp_path)
    assert record.checkpoints[-1].score("45deg", "main").accuracy > 0.6


ROWS = 30
SHORT = {"targets": "away", "trials": 1, "steps": 3}


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(own_code, "_registered", {})


def samples():
    generator = np.random.default_rng(0)
    y = np.arange(ROWS) % 2
    x = (generator.normal(0, 1, (ROWS, 3)) + 3 * y[:, None]).astype(np.float32)
    return x, y, np.repeat(["away", "east", "west"], ROWS // 3)


@dataclass(frozen=True)
class Scaled(Method):
    weight: float = 2.0

    def loss(self, learner, batches):
        return self.weight * risks(learner.model, batches).mean(), {}


def build(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, classes))


def test_every_form_of_data_has_the_same_samples(tmp_path):
    x, y, domain = samples()
    names = np.unique(domain)
    parts = {name: Domain(torch.from_numpy(x[domain == name]), torch.from_numpy(y[domain == name]))
             for name in names}  # fmt: skip
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(label=y, domain=domain)
    forms = {
        "arrays": (x, y, domain),
        "tensors": (torch.from_numpy(x), torch.from_numpy(y), domain.tolist()),
        "datasets": {name: TensorDataset(part.x, part.y) for name, part in parts.items()},
        "set": DomainSet("mine", tuple(names), ("0", "1"), lambda options: parts),
        "frame": frame,
    }
    for form, data in forms.items():
        result = find_dataset(dataset_spec(data, tmp_path / form))
        assert (result.domains, result.classes) == (("away", "east", "west"), ("0", "1")), form
        loaded = torch.cat([each.x for each in result.load().values()])
        np.testing.assert_array_equal(loaded.numpy(), x, err_msg=form)
        assert dataset_spec(data, tmp_path / form) == result.spec
        assert len(list((tmp_path / form).iterdir())) == 1, form


def test_several_datasets_are_several_and_arrays_are_one(tmp_path):
    for several in (["spirals", "rotated_digits"], ("spirals", "rotated_digits")):
        accepted = accept_objects({"dataset": several}, tmp_path)
        assert accepted["dataset"] == ["spirals", "rotated_digits"]
    spec = accept_objects({"dataset": samples()}, tmp_path)["dataset"]
    assert find_dataset(spec).domains == ("away", "east", "west")
    assert accept_objects({"dataset": [samples(), "spirals"]}, tmp_path)["dataset"] == [
        spec,
        "spirals",
    ]


def test_a_dataset_of_the_hub_library_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    x, y, domain = samples()
    features = datasets.Features(
        {
            **dict.fromkeys("abc", datasets.Value("float32")),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "domain": datasets.Value("string"),
        }
    )
    columns = {name: x[:, i] for i, name in enumerate("abc")}
    data = datasets.Dataset.from_dict({**columns, "label": y, "domain": domain}, features=features)
    result = find_dataset(dataset_spec(data, tmp_path))
    assert result.classes == ("no", "yes")
    assert [c.name for c in result.modality.columns] == ["a", "b", "c"]


def test_objects_run_in_a_benchmark_and_resume(tmp_path):
    words = {"store": tmp_path, "backbone": build, **SHORT}
    records = afield.bench(samples(), [Scaled, VREx(penalty=3.0), "erm"], **words)
    assert [record.run.method for record in records] == ["Scaled", "vrex", "erm"]
    assert records[1].run.params["penalty"] == 3.0
    assert records[1].run.backbone.startswith("build_")
    assert afield.bench(samples(), [Scaled, VREx(penalty=3.0), "erm"], **words) == records


@pytest.mark.slow
def test_objects_work_in_workers(tmp_path):
    torch.manual_seed(0)
    words = {"store": tmp_path, "backbone": build((3,), 2), "workers": 2, **SHORT}
    assert len(afield.bench(samples(), [Scaled, "erm"], **words)) == 2


def test_a_module_is_named_by_its_source_and_weights():
    names = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        names.append(accept_objects({"backbone": build((3,), 2)}, None)["backbone"])
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch("Sequential_[0-9a-f]{12}", name) for name in names)


def test_a_module_starts_from_its_own_weights():
    from afield.networks.backbone import network

    module = build((3,), 2)
    name = accept_objects({"backbone": module}, None)["backbone"]
    x = torch.randn(4, 3)
    torch.testing.assert_close(network(name, (3,), 2)(x), module(x))


def test_what_does_not_fit_is_refused_in_one_line(tmp_path):
    torch.manual_seed(0)
    x, y, domain = samples()
    wrong = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 7))
    no_linear = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    cases = (
        ({"dataset": 3}, "int is not data"),
        ({"dataset": {"a": 1, "b": 2}}, "is no torch Dataset"),
        ({"methods": [nn.Linear]}, "is neither a Method nor a classifier"),
        ({"backbone": 3}, "is no network"),
        ({"backbone": wrong}, r"returns \(1, 7\).*must return \(1, 2\)"),
        ({"backbone": nn.Conv2d(3, 2, 3)}, "cannot be built for inputs"),
        ({"backbone": nn.Linear(3, 2)}, "last layer must be an nn.Linear with 2 outputs, after"),
        ({"backbone": no_linear}, "has layers after its last"),
    )
    for words, message in cases:
        with pytest.raises(AfieldError, match=message):
            afield.bench(**{"dataset": (x, y, domain), "store": tmp_path, **SHORT, **words})
    with pytest.raises(AfieldError, match="y is float64"):
        afield.bench((x, y / 2, domain), store=tmp_path)
