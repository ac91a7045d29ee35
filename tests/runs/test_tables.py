"""Tables from the command line to a prediction."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import afield as package
from afield.data.lookup import find_dataset
from afield.errors import AfieldError
from afield.runs.run_data import RunData
from afield.runs.run_setup import load_domains
from afield.studies.planning import plan_run


@pytest.fixture
def patients(tmp_path):
    """Three hospitals; the dose separates the classes, and the south has its own treatment."""
    generator = np.random.default_rng(0)
    rows = 90
    ill = np.arange(rows) % 2 == 0
    hospital = np.repeat(["east", "north", "south"], rows // 3)
    frame = pd.DataFrame(
        {
            "dose": np.where(ill, 3.0, -3.0) + generator.normal(0, 0.5, rows),
            "treatment": np.where(
                hospital == "south", "c", np.where(np.arange(rows) % 3 == 0, "a", "b")
            ),
            "diagnosis": np.where(ill, "ill", "well"),
            "hospital": hospital,
        }
    )
    frame.loc[[1, 40, 70], "dose"] = np.nan
    frame.loc[[2, 41], "treatment"] = None
    path = tmp_path / "patients.csv"
    frame.to_csv(path, index=False)
    return path


def test_the_preprocessing_of_a_fold_comes_from_its_sources(patients):
    spec = f"{patients}?label=diagnosis&domain=hospital"
    dataset = find_dataset(spec)
    run = plan_run(spec, "erm", target="south", settings={"steps": 2})
    domains = load_domains(dataset, run)
    before = RunData.of(run, dataset, domains, torch.device("cpu"))
    assert before.shape == (3,)  # the dose, and the treatments a and b of the sources
    domains["south"].x.mul_(100)
    after = RunData.of(run, dataset, domains, torch.device("cpu"))
    assert after.scaling == before.scaling


@pytest.mark.slow
def test_a_table_goes_from_the_command_line_to_a_prediction(patients, tmp_path, afield):
    store, columns = str(tmp_path / "runs"), ["--label", "diagnosis", "--domain", "hospital"]
    short = ["--trials", "1", "--steps", "60", "--store", store]
    code, out, _ = afield(
        "bench", str(patients), *columns, "--methods", "erm", "--workers", "2", *short
    )
    assert code == 0
    assert "patients" in out
    spec = f"{patients}?label=diagnosis&domain=hospital"
    options = {"store": store, "settings": {"steps": 60}}
    model = package.fit(spec, "erm", tmp_path / "model", **options)
    assert model.about.estimate.domains["north"] > 0.9
    described = json.loads((tmp_path / "model" / "model.json").read_text())["inputs"]["table"]
    assert [column["name"] for column in described] == ["dose", "treatment"]
    new = pd.DataFrame({"treatment": ["a", None, "new"], "dose": [3.0, -3.0, None], "other": 1})
    loaded = package.load(tmp_path / "model")
    assert loaded.predict(new).tolist()[:2] == ["ill", "well"]
    file = tmp_path / "new.csv"
    new.to_csv(file, index=False)
    np.testing.assert_allclose(loaded.predict_proba(file), loaded.predict_proba(new), atol=1e-6)
    with pytest.raises(AfieldError, match="no column 'dose'"):
        loaded.predict(new.drop(columns="dose"))
    with pytest.raises(AfieldError, match="takes tables"):
        package.export(tmp_path / "model", out=tmp_path / "model.onnx")
    merged = package.bench(spec, [], merges="average", trials=1, steps=20, store=store)
    assert {record.run.method for record in merged} >= {"average"}
