"""Texts from a table to records: exact, honest, and refused where they do not fit."""

import pytest

import afield as package
from afield.errors import AfieldError
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.planning import plan_run
from tests.texts import reviews, write_encoder, write_reviews


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))


def plan(path, method="erm", **settings):
    options = {"steps": 6, "every": 2, "batch": 4, "tokens": 16} | settings
    return plan_run(path, method, target="hotels", settings=options)


def test_the_settings_of_texts_suit_the_network(tmp_path, caplog):
    path, folder = write_reviews(tmp_path), write_encoder(tmp_path / "encoder")
    small = plan_run(path, "erm", target="hotels")
    assert (small.backbone, small.tokens, small.start, small.lr) == ("bag:", 2048, "", 0.02)
    convolutions = plan_run(path, "erm", target="hotels", settings={"backbone": "small:text"})
    assert (convolutions.tokens, convolutions.lr, convolutions.steps) == (512, 1e-3, 300)
    tuned = plan_run(path, "erm", target="hotels", settings={"backbone": f"hf:{folder}"})
    assert tuned.backbone == f"hf:{folder}?pooling=mean"
    assert (tuned.tokens, tuned.weights, tuned.lr, tuned.size) == (24, "hub", 5e-5, 0)
    assert tuned.augment == ""
    first = plan(path, backbone=f"hf:{folder}", pooling="first")
    assert first.backbone == f"hf:{folder}?pooling=first"
    assert "texts are cut at 16 tokens; --set tokens=N changes that" in caplog.text


def test_the_key_of_a_run_names_the_encoder_by_its_content(tmp_path):
    path = write_reviews(tmp_path)
    here, there = (write_encoder(tmp_path / name) for name in ("here", "there"))
    keys = [plan(path, backbone=f"hf:{folder}").key for folder in (here, there)]
    assert keys[0] == keys[1]
    write_encoder(there, seed=1)
    assert plan(path, backbone=f"hf:{there}").key != keys[0]
    assert plan(path, backbone=f"hf:{here}", pooling="first").key != keys[0]
    assert plan(path, backbone=f"hf:{here}", weights="none").key != keys[0]
    assert plan(path, backbone=f"hf:{here}", tokens=12).key != keys[0]
    assert plan(path, backbone=f"hf:{here}", freeze_blocks=1).key != keys[0]


def test_an_encoder_that_changes_after_planning_is_refused(tmp_path):
    path, folder = write_reviews(tmp_path), write_encoder(tmp_path / "encoder")
    run = plan(path, backbone=f"hf:{folder}")
    write_encoder(folder, seed=1)
    with pytest.raises(AfieldError, match="changed after this run was planned"):
        execute(run, Store(tmp_path / "runs"))


def test_noise_for_labels_of_the_target_does_not_change_the_weights(tmp_path):
    plain = reviews()
    noisy = plain.copy()
    target = noisy.domain == "hotels"
    noisy.loc[target, "label"] = noisy.label[target].sample(frac=1, random_state=0).to_numpy()
    result = []
    for number, frame in enumerate((plain, noisy)):
        run = plan(write_reviews(tmp_path, frame, f"reviews{number}.csv"))
        store = Store(tmp_path / f"runs{number}")
        record = execute(run, store)
        result.append((store.weights(run), record.checkpoints[-1].score("hotels", "main")))
    assert {n: v.tolist() for n, v in result[0][0].items()} == {
        n: v.tolist() for n, v in result[1][0].items()
    }
    assert result[0][1] != result[1][1]


def test_frozen_blocks_keep_the_weights_of_the_encoder(tmp_path):
    path, folder = write_reviews(tmp_path), write_encoder(tmp_path / "encoder")
    store = Store(tmp_path / "runs")
    weights = []
    for steps in (1, 4):
        run = plan(path, backbone=f"hf:{folder}", freeze_blocks=1, steps=steps, every=1, lr=0.01)
        execute(run, store)
        weights.append(store.weights(run))
    changed = {name for name in weights[0] if not weights[0][name].equal(weights[1][name])}
    assert changed
    frozen = ("features.encoder.embeddings", "features.encoder.encoder.layer.0")
    assert not [name for name in changed if name.startswith(frozen)]


def test_what_texts_do_not_allow_is_refused_before_training(tmp_path):
    path = write_reviews(tmp_path)
    for message, method, settings in (
        ("mixup mixes inputs, which token ids of texts do not allow", "mixup", {}),
        ("small:cnn: reviews has texts; use bag:", "erm", {"backbone": "small:cnn"}),
        ("tokens=2: texts need at least 4", "erm", {"tokens": 2}),
        ("augment=light: reviews has no square images", "erm", {"augment": "light"}),
        ("size=32: reviews has no images", "erm", {"size": 32}),
        ("pooling=first: only for an encoder", "erm", {"pooling": "first"}),
        (
            r"freeze_blocks=9: small:text has 3 block\(s\)",
            "erm",
            {"freeze_blocks": 9, "backbone": "small:text"},
        ),
    ):
        with pytest.raises(AfieldError, match=message):
            plan(path, method, **settings)
    for message, settings in (
        ("small:text: spirals has no texts", {"backbone": "small:text"}),
        ("tokens=8: spirals has no texts", {"tokens": 8}),
    ):
        with pytest.raises(AfieldError, match=message):
            plan_run("spirals", "erm", settings=settings)


@pytest.mark.slow
def test_a_benchmark_of_all_methods_leaves_out_those_that_do_not_fit(tmp_path, caplog):
    path = write_reviews(tmp_path)
    records = package.bench(
        path,
        "all",
        text="text",
        trials=1,
        targets="hotels",
        store=str(tmp_path / "runs"),
        workers=1,
        steps=2,
        every=2,
        batch=4,
        tokens=16,
    )
    assert not [record for record in records if not isinstance(record, package.Record)]
    methods = {record.run.method for record in records}
    assert {
        "erm",
        "arith",
        "crossgrad",
        "labelgrad",
        "dmg",
        "seed_category",
        "coral",
        "irm",
        "vrex",
        "linear_probe",
    } <= methods
    assert not {"mixup", "lisa"} & methods
    assert "left out: mixup mixes inputs" in caplog.text


@pytest.mark.slow
def test_experts_of_an_encoder_are_merged_and_diagnosed(tmp_path):
    path, folder = write_reviews(tmp_path), write_encoder(tmp_path / "encoder")
    store = tmp_path / "runs"
    options = {"steps": 3, "every": 3, "batch": 4, "tokens": 16, "lr": 0.01}
    records = package.bench(
        path,
        "erm",
        merges="score,average",
        start="linear_probe",
        trials=1,
        targets="hotels",
        backbone=f"hf:{folder}",
        store=str(store),
        workers=1,
        **options,
    )
    methods = {record.run.method: record.run for record in records}
    assert {"erm", "base", "score", "average", "logit_ensemble", "best_expert"} <= {*methods}
    merged = store / methods["score"].key
    assert "word_embeddings" in str(package.diagnose("conflicts", merged).data.layer.tolist())
    for name in ("overlap", "merge_path"):
        assert len(package.diagnose(name, merged).data) > 2
