"""A model on labelled samples: scores, intervals, the card's promise, and what cannot be scored."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, precision_score, recall_score

import afield
from afield.data.lookup import find_dataset
from afield.deployment.evaluation import (
    Promise,
    check_result_file,
    evaluate,
    wilson_interval,
    write_result,
)
from afield.deployment.evaluation_page import remarks, render_evaluation
from afield.deployment.labelled import ONE_DOMAIN, read_labelled
from afield.deployment.model import load
from afield.deployment.model_folder import Estimate
from afield.errors import DataError, SpecError


@pytest.fixture(scope="module")
def model(spiral_model):
    return load(spiral_model)


@pytest.fixture(scope="module")
def arrays():
    domains = find_dataset("spirals").load()
    x = np.concatenate([domain.x.numpy() for domain in domains.values()])
    y = np.concatenate([domain.y.numpy() for domain in domains.values()])
    names = np.repeat(list(domains), [len(domain.y) for domain in domains.values()])
    # Harder than the training data: some samples are wrong.
    x = x + np.random.default_rng(0).normal(0, 0.4, x.shape).astype(np.float32)
    return x, np.array(["first", "second"])[y], names


def test_the_scores_are_those_of_scikit_learn(model, arrays):
    x, y, domain = arrays
    result = model.evaluate((x, y, domain))
    predicted = model.predict(x)
    assert 0.5 < result.overall.accuracy < 0.99
    assert result.overall.accuracy == pytest.approx(np.mean(predicted == y))
    balanced = balanced_accuracy_score(y, predicted)
    assert result.overall.balanced_accuracy == pytest.approx(balanced)
    for number, score in enumerate(result.classes):
        words = {"labels": [score.name], "average": None}
        assert score.recall == pytest.approx(recall_score(y, predicted, **words)[0])
        assert score.precision == pytest.approx(precision_score(y, predicted, **words)[0])
        assert result.confusion[number][number] == np.sum((y == score.name) & (predicted == y))
    by_domain = {each.name: each.accuracy for each in result.domains}
    assert by_domain["turn0"] == pytest.approx(np.mean((predicted == y)[domain == "turn0"]))
    assert result.trained == ["turn0", "turn10", "turn20", "turn30"]
    assert "says nothing about new ones" in remarks(result)[0]


def test_the_interval_is_wilsons():
    low, high = wilson_interval(0.9, 50)
    expected = stats.binomtest(45, 50).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert wilson_interval(1.0, 10)[1] == pytest.approx(1.0)


def test_abstaining_answers_fewer_samples_with_the_confidence_of_held_out_domains(model, arrays):
    result = model.evaluate(arrays)
    confidence = model.predict_proba(arrays[0]).max(axis=1)
    for each in result.coverage[1:]:
        kept = confidence >= model.threshold(each.abstain)
        assert each.answered == pytest.approx(kept.mean())
    answered = [each.answered for each in result.coverage]
    assert answered[0] == 1.0
    assert answered == sorted(answered, reverse=True)


def test_the_promise_is_the_prediction_interval_of_the_card(model, arrays):
    estimate = model.about.estimate
    promise = Promise.of(estimate)
    assert (promise.low, promise.high) == estimate.interval
    assert promise.low < min(estimate.domains.values())
    assert [promise.verdict(x) for x in (promise.low - 0.1, promise.low, promise.high + 0.1)] == [
        "below", "within", "above",
    ]  # fmt: skip
    result = evaluate(model, arrays)
    assert f"{result.overall.verdict} that interval" in result.headline
    assert Promise.of(None) is None


def test_one_held_out_domain_gives_no_interval_to_judge_by():
    promise = Promise.of(Estimate(0.8, 0.8, 0.9, {"a": 0.8}, 1))
    assert (promise.low, promise.high, promise.verdict(0.1)) == (None, None, "")
    assert "no interval" in promise.compare(0.1)


def test_classes_that_the_model_does_not_know_are_named_and_left_out(model, arrays):
    x, y, _ = arrays
    other = y.astype("<U10")
    other[:5] = "third"
    result = model.evaluate((x, other))
    assert result.unknown == {"third": 5}
    assert result.overall.samples == len(y) - 5
    assert "third (5)" in remarks(result)[0]
    with pytest.raises(DataError, match=r"third.*its classes are first, second"):
        model.evaluate((x[:5], other[:5]))


def test_strata_give_the_accuracy_of_all_samples_and_its_variance(model, arrays, tmp_path):
    x, y, _ = arrays
    predicted = model.predict(x)
    right = np.flatnonzero(predicted == y)[:30]
    wrong = np.flatnonzero(predicted != y)[:10]
    rows = np.concatenate([right, wrong])
    frame = pd.DataFrame({"label": y[rows], "weight": [9.0] * 30 + [1.0] * 10})
    frame["stratum"] = ["sure"] * 30 + ["unsure"] * 10
    samples = read_labelled((x[rows], y[rows]), model.about.inputs)
    weighted = type(samples)(
        samples.samples, samples.names, samples.labels, samples.domains,
        frame["weight"].tolist(), frame["stratum"].tolist(),
    )  # fmt: skip
    from afield.deployment import evaluation

    table, _ = evaluation._predict(model, weighted)
    score = evaluation._score("all", table, None)
    assert score.accuracy == pytest.approx(270 / 280)
    shares = np.array([270, 10]) / 280
    p = np.array([31 / 32, 1 / 12])
    variance = np.sum(shares**2 * p * (1 - p) / np.array([30, 10]))
    samples = score.accuracy * (1 - score.accuracy) / variance
    assert (score.low, score.high) == pytest.approx(wilson_interval(score.accuracy, samples))


def write_images(root, domain=""):
    generator = np.random.default_rng(1)
    for label, level in (("dark", 60), ("light", 150)):
        folder = root / domain / label
        folder.mkdir(parents=True)
        for number in range(3):
            pixels = (level + generator.normal(0, 25, (16, 16, 3))).clip(0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


def test_folders_lists_and_tables_give_the_same_numbers(two_colours, tmp_path):
    settings = {"steps": 20, "every": 20, "size": 16, "backbone": "small:cnn"}
    fitted = afield.fit(
        two_colours, "erm", tmp_path / "model", store=tmp_path / "runs", settings=settings,
        estimate=False,
    )  # fmt: skip
    write_images(tmp_path / "plain")
    write_images(tmp_path / "domains", "south")
    plain = fitted.evaluate(tmp_path / "plain")
    assert [each.name for each in plain.domains] == [ONE_DOMAIN]
    assert plain.promise is None
    assert plain.coverage == []
    south = fitted.evaluate(tmp_path / "domains")
    assert [each.name for each in south.domains] == ["south"]
    assert south.overall.accuracy == plain.overall.accuracy
    lines = ["file,label"]
    files = sorted((tmp_path / "plain").rglob("*.png"))
    lines += [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in files]
    (tmp_path / "labels.csv").write_text("\n".join([*lines, "plain/none.png,dark", "x.png,"]))
    listed = fitted.evaluate(tmp_path / "labels.csv")
    assert listed.overall.accuracy == plain.overall.accuracy
    assert listed.overall.samples == 6
    ((file, error),) = listed.unread
    assert file == "plain/none.png"
    assert "no such file" in error


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("file\na.png\n", "no column with the label"),
        ("file,label\na.png,\n", "is empty; fill it in"),
        ("", "empty"),
    ],
)
def test_a_table_without_labels_is_refused(model, tmp_path, content, reason):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=reason):
        model.evaluate(tmp_path / "t.csv")


def test_data_without_labels_are_refused(model, tmp_path):
    np.savez(tmp_path / "x.npz", X=np.zeros((2, 2), dtype=np.float32))
    (tmp_path / "x.txt").write_text("x")
    for name, reason in (
        ("x.npz", "no arrays X and y"),
        ("x.txt", "not labelled samples"),
        ("none", "no such file"),
        (".", "is a folder"),
    ):
        with pytest.raises(DataError, match=reason):
            model.evaluate(tmp_path / name)
    with pytest.raises(SpecError, match="same length"):
        model.evaluate((np.zeros((3, 2), dtype=np.float32), ["first"]))


def test_an_evaluation_is_written_as_a_page_as_json_and_as_csv(model, arrays, tmp_path):
    x, y, domain = arrays
    result = model.evaluate((x, y, np.where(domain == "turn0", "=evil<b>", domain)))
    page = render_evaluation(result, "new")
    for suffix in (".html", ".json", ".csv"):
        out = tmp_path / f"e{suffix}"
        check_result_file(out, overwrite=False)
        write_result(out, page=page, values=result.to_dict(), rows=result.rows)
        with pytest.raises(SpecError, match="exists already"):
            check_result_file(out, overwrite=False)
    values = json.loads((tmp_path / "e.json").read_text())
    assert values["overall"]["accuracy"] == result.overall.accuracy
    assert not any(math.isnan(each["recall"]) for each in values["classes"])
    assert "evil<b>" not in page
    assert "evil&lt;b&gt;" in page
    rows = pd.read_csv(tmp_path / "e.csv")
    assert len(rows) == len(x)
    assert rows["right"].mean() == pytest.approx(result.overall.accuracy)
    assert set(rows["domain"]) >= {"'=evil<b>"}
    with pytest.raises(SpecError, match="suffix"):
        check_result_file(tmp_path / "e.pdf", overwrite=True)
