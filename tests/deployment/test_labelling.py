"""Samples to label: how they are drawn, what their labels buy, and the file that comes back."""

import numpy as np
import pandas as pd
import pytest

from afield.data.lookup import find_dataset
from afield.deployment.evaluation import evaluate
from afield.deployment.labelled import split_row
from afield.deployment.labelling import (
    LEAST,
    allocate,
    choose_samples,
    label_widths,
    strata_of,
    write_labels,
)
from afield.deployment.model import load
from afield.errors import SpecError


@pytest.fixture(scope="module")
def confidences():
    return np.random.default_rng(0).beta(4, 1, size=1000)


def test_strata_are_equal_parts_by_confidence_and_unsure_ones_get_more_labels(confidences):
    strata = strata_of(confidences, 100)
    assert np.bincount(strata).tolist() == [250] * 4
    assert confidences[strata == 0].max() <= confidences[strata == 3].min()
    numbers = allocate(confidences, strata, 100)
    assert numbers.sum() == 100
    assert numbers[0] > numbers[3] >= LEAST


def test_accuracies_of_both_samples_are_right_on_average_and_narrow_ones_vary_less(confidences):
    """By simulation: samples are right as often as their confidence says."""
    generator = np.random.default_rng(1)
    right = generator.random(1000) < confidences
    means = {}
    for how in ("random", "narrow"):
        values = []
        for seed in range(400):
            sample = choose_samples(confidences, 50, how, seed)
            assert len(set(sample.rows)) == 50
            weights = sample.weights or [1.0] * 50
            values.append(np.average(right[list(sample.rows)], weights=weights))
        means[how] = np.array(values)
        assert np.mean(values) == pytest.approx(right.mean(), abs=0.01)
    assert means["narrow"].std() < means["random"].std()
    # The widths that were promised are those that came out.
    (widths,) = [each for each in label_widths(confidences) if each.count == 50]
    assert 1.96 * means["random"].std() == pytest.approx(widths.random, rel=0.15)
    assert 1.96 * means["narrow"].std() == pytest.approx(widths.narrow, rel=0.2)


def test_widths_are_shown_for_as_many_labels_as_there_are_samples(confidences):
    assert [each.count for each in label_widths(confidences[:60])] == [20, 50]
    assert label_widths(confidences[:10]) == []
    known = label_widths(confidences, accuracy=0.5)[0]
    assert known.random == pytest.approx(1.96 * (0.25 / 20) ** 0.5)


def test_other_numbers_and_ways_are_refused(confidences):
    with pytest.raises(SpecError, match="random or narrow"):
        choose_samples(confidences, 5, "best")
    with pytest.raises(SpecError, match="at least 1"):
        choose_samples(confidences, 0, "random")
    assert len(choose_samples(confidences, 10**6, "random").rows) == 1000


@pytest.mark.parametrize("how", ["random", "narrow"])
def test_samples_of_an_array_file_go_out_and_come_back_with_labels(spiral_model, tmp_path, how):
    model, domain = load(spiral_model), find_dataset("spirals").load()["turn20"]
    np.save(tmp_path / "new.npy", domain.x.numpy())
    result = model.estimate(tmp_path / "new.npy")
    sample = result.choose_labels(40, how)
    write_labels(tmp_path / "labels.csv", result.rows["file"].tolist(), sample)
    frame = pd.read_csv(tmp_path / "labels.csv", keep_default_na=False)
    assert frame["file"][0].startswith("new.npy[")
    assert set(frame["label"]) == {""}
    rows = [int(split_row(file)[1]) for file in frame["file"]]
    frame["label"] = [model.classes[int(domain.y[row])] for row in rows]
    frame.to_csv(tmp_path / "labels.csv", index=False)
    evaluation = evaluate(model, tmp_path / "labels.csv")
    assert evaluation.overall.samples == 40
    assert evaluation.weighted == (how == "narrow")
    right = model.predict(domain.x.numpy()[rows]) == frame["label"].to_numpy()
    assert evaluation.rows["right"].tolist() == right.tolist()
    assert evaluation.overall.low <= (right.mean() if how == "random" else 1)


def test_rows_of_tables_are_written_to_be_read(tmp_path):
    pd.DataFrame({"text": ["good", "bad", "odd"], "label": [1, 2, 3]}).to_csv(
        tmp_path / "new.csv", index=False
    )
    names = [f"{tmp_path / 'new.csv'}[{row}]" for row in range(3)]
    write_labels(tmp_path / "labels.csv", names, choose_samples([0.5] * 3, 2, "random"))
    frame = pd.read_csv(tmp_path / "labels.csv", keep_default_na=False)
    assert list(frame.columns) == ["file", "label", "text"]
    assert set(frame["label"]) == {""}
    assert set(frame["text"]) < {"good", "bad", "odd"}
