"""Sizes, levels, lengths and missing values of new samples beside those of training domains."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from afield.data.lookup import find_dataset
from afield.deployment.estimate_page import render_estimate
from afield.deployment.fitting import fit
from afield.deployment.input_statistics import InputChange, compare, measure_domains

SETTINGS = {"steps": 4, "every": 2}


def test_a_mean_differs_if_it_is_outside_the_range_of_training_domains():
    changes = compare({"a": 5.0, "b": 2.0, "c": 1.0}, {"x": {"a": 1.0, "b": 1.0}, "y": {"b": 3.0}})
    assert [change.name for change in changes] == ["a", "b"]
    assert changes[0].differs
    assert not changes[1].differs
    assert not InputChange("a", 3.05, 1.0, 3.0).differs
    assert InputChange("a", 3.5, 1.0, 3.0).differs


def test_images_that_are_large_and_dark_are_reported(two_colours, tmp_path):
    settings = {"backbone": "small:cnn", **SETTINGS}
    model = fit(two_colours, "erm", tmp_path / "m", store=tmp_path / "runs", settings=settings)
    east = model.about.statistics["east"]
    assert (east["width"], east["height"]) == (30, pytest.approx(24.5))
    new = tmp_path / "new"
    new.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 9, (80, 200, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(new / f"{number}.png")
    result = model.estimate(new)
    values = {change.name: change for change in result.inputs}
    assert values["width"].new == 200
    assert all(values[name].differs for name in ("width", "height", "brightness", "contrast"))
    page = render_estimate(result, "new", "m")
    assert "Unlike in all training domains" in page
    assert page.count("data:image/webp") == 10


def test_missing_values_and_means_of_columns_are_measured(tmp_path):
    frame = pd.DataFrame({"age": [1.0, 3.0, np.nan, np.nan] * 5, "sex": ["f", "m"] * 10})
    frame["label"], frame["domain"] = ["a", "b"] * 10, ["x", "y"] * 10
    frame.to_csv(tmp_path / "t.csv", index=False)
    model = fit(
        tmp_path / "t.csv", "erm", tmp_path / "m", store=tmp_path / "runs", settings=SETTINGS,
        estimate=False,
    )  # fmt: skip
    domains = find_dataset(tmp_path / "t.csv").load()
    measured = measure_domains(model.about.inputs, domains)
    assert model.about.statistics == measured
    assert measured["x"] == {
        "missing values": 0.25, "missing: age": 0.5, "mean: age": 1.0, "missing: sex": 0.0,
    }  # fmt: skip
