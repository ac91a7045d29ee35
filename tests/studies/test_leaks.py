"""Nothing of the target reaches training or selection: change it, and all the rest stays the same.

A kind of data writes files and says how to change the domain that is left out. For every change,
two runs are compared bit for bit: their settings, weights, scaling and vocabulary, the scores of
the sources at every checkpoint, and the pick of the rule `sources`. A new modality or reader adds
a kind; a new way in which data can differ adds a change.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from afield.data.lookup import find_dataset
from afield.deployment.model import load
from afield.reporting.results import group_records
from afield.runs.run_files import read_run_inputs, read_run_weights
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.planning import adapted_runs, plan_run
from tests.data.datasets.trees import iwildcam_files, needs_wilds
from tests.files import spoken, tone
from tests.texts import reviews, write_encoder, write_reviews


class Outcome(NamedTuple):
    """What must not depend on the target."""

    settings: Mapping[str, Any]
    weights: Mapping[str, np.ndarray]
    inputs: Mapping[str, Any]
    scores: list[Any]
    pick: int


@dataclass(frozen=True)
class Kind:
    """A kind of data: `write` makes it, and each of `changes` alters the target's part."""

    write: Callable[[Path], str | Path]
    changes: Mapping[str, Callable[[Path], None]]
    target: str = "target"
    settings: Mapping[str, Any] = field(default_factory=dict)
    finetune: bool | None = None
    adapt: str = ""
    method: str = "erm"


def train(kind: Kind, data: str | Path, store: Store) -> Outcome:
    """Train on all domains but the target; if asked for, adapt the model to every domain."""
    settings = {"steps": 6, "every": 2, "batch": 6, **kind.settings}
    if kind.method != "erm":
        settings = dict(kind.settings)
    run = plan_run(data, kind.method, target=kind.target, settings=settings, finetune=kind.finetune)
    record = execute(run, store)
    (adapted,) = adapted_runs([run], [kind.adapt]) if kind.adapt else [run]
    last = execute(adapted, store)
    scores = [
        [c.scores[name].probe for name in run.sources]
        for c in (*record.checkpoints, *last.checkpoints)
    ]
    assert all(score is not None for of_sources in scores for score in of_sources)
    (results,) = group_records([record])
    inputs = dict(read_run_inputs(store.folder(run)))
    inputs["table"] = [*map(in_words, inputs.get("table", ()))]
    own = {"dataset", "data", "images", "classes", "folder"}
    return Outcome(
        {name: value for name, value in vars(run).items() if name not in own | {"key"}},
        {name: value.numpy() for name, value in read_run_weights(store.folder(run)).items()},
        {name: value for name, value in inputs.items() if name not in ("run", "columns")},
        scores,
        results.picks("sources")[kind.method][0][kind.target].step,
    )


def in_words(column: Mapping[str, Any]) -> dict[str, Any]:
    """A fitted column with its categories by name: their numbers are places in the whole table."""
    named = dict(column)
    if column["known"]:
        categories = named.pop("categories")
        named["known"] = [categories[number] for number in column["known"]]
        named["fill"] = categories[int(column["fill"])]
    return named


def assert_same(before: Outcome, after: Outcome) -> None:
    assert before.settings == after.settings
    assert before.weights.keys() == after.weights.keys()
    for name, value in before.weights.items():
        np.testing.assert_array_equal(value, after.weights[name], err_msg=name)
    assert before.inputs == after.inputs
    assert before.scores == after.scores
    assert before.pick == after.pick


# Tables: numbers, categories and dates of patients, some of them missing.


def patients() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    size = 90
    age = generator.normal(60, 10, size).round(1)
    frame = pd.DataFrame(
        {
            "age": age,
            "pressure": generator.normal(130, 15, size).round(0),
            "pain": generator.choice(["none", "typical"], size),
            "seen": pd.date_range("2024-01-01", periods=size).strftime("%Y-%m-%d"),
            "label": np.where(age + generator.normal(0, 5, size) > 60, "sick", "healthy"),
            "domain": np.repeat(["north", "south", "target"], size // 3),
        }
    ).astype({"age": object, "pressure": object})
    frame.loc[3, "pressure"] = None
    return frame


def write_patients(folder: Path) -> Path:
    patients().to_csv(folder / "patients.csv", index=False)
    return folder / "patients.csv"


def write_split_patients(folder: Path) -> Path:
    """The same with lists for training, validation and tests."""
    frame = patients()
    frame["split"] = np.tile(["train", "val", "test"], len(frame) // 3)
    frame.to_csv(folder / "patients.csv", index=False)
    return folder / "patients.csv"


def cells(column: str, value: Any, rows: slice = slice(70, 71), name: str = "patients.csv"):
    def change(folder: Path) -> None:
        frame = pd.read_csv(folder / name).astype({column: object})
        frame.loc[frame.index[rows], column] = value
        frame.to_csv(folder / name, index=False)

    return change


def rows_removed(rows: slice, name: str):
    def change(folder: Path) -> None:
        frame = pd.read_csv(folder / name)
        frame.drop(frame.index[rows]).to_csv(folder / name, index=False)

    return change


CELLS = {
    "a number that is not one": cells("pressure", "n/d"),
    "a column without any number": cells("pressure", "unknown", slice(60, 90)),
    "a missing number": cells("age", None),
    "a column that is missing": cells("age", None, slice(60, 90)),
    "another value": cells("age", 1e4),
    "a new category": cells("pain", "burning"),
    "a number among categories": cells("pain", "7"),
    "a date that is not one": cells("seen", "soon"),
    "labels": cells("label", "healthy", slice(60, 80)),
    "a class of its own": cells("label", "at risk", slice(60, 70)),
    "fewer rows": rows_removed(slice(75, 90), "patients.csv"),
}
LISTS = {
    "another list": cells("split", "test", slice(60, 75)),
    "a list fewer": cells("split", "train", slice(61, 90, 3)),
}


# Texts: with a bag of words, and with the tokenizer of an encoder.


def write_texts(folder: Path) -> Path:
    return write_reviews(folder, reviews())


TEXTS = {
    "other words": cells("text", "entirely different vocabulary", slice(50, 72), "reviews.csv"),
    "a longer text": cells("text", "very long " * 400, slice(50, 51), "reviews.csv"),
    "another script": cells("text", "这家酒店很好", slice(48, 60), "reviews.csv"),
    "labels": cells("label", "good", slice(48, 60), "reviews.csv"),
    "a class of its own": cells("label", "average", slice(48, 60), "reviews.csv"),
    "fewer texts": rows_removed(slice(60, 72), "reviews.csv"),
}


# Images in folders: trained from pixels, and as features of a frozen network.


def write_images(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for number, domain in enumerate(("east", "north", "target")):
        for label, level in (("dark", 60), ("light", 150)):
            (folder / "photos" / domain / label).mkdir(parents=True)
            for i in range(10):
                noise = generator.normal(0, 25, (20 + i, 30, 3))
                pixels = (level + 20 * number + noise).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / "photos" / domain / label / f"{i}.png")
    return folder / "photos"


def images(change: Callable[[Image.Image], Image.Image], suffix: str = "", classes: str = "*"):
    def changed(folder: Path) -> None:
        for file in sorted((folder / "photos" / "target").glob(f"{classes}/*.png")):
            with Image.open(file) as opened:
                image = change(opened.convert("RGB"))
            file.unlink()
            image.save(file.with_suffix(suffix or file.suffix))

    return changed


def swap_classes(folder: Path) -> None:
    target = folder / "photos" / "target"
    (target / "dark").rename(target / "other")
    (target / "light").rename(target / "dark")
    (target / "other").rename(target / "light")


def add_class(folder: Path) -> None:
    target = folder / "photos" / "target"
    # Before the other classes in the alphabet, so that all numbers of classes change.
    shutil.copytree(target / "light", target / "amber")


def remove_files(folder: Path) -> None:
    for file in (folder / "photos" / "target").glob("*/[5-9].png"):
        file.unlink()


def break_file(folder: Path) -> None:
    (folder / "photos" / "target" / "dark" / "3.png").write_bytes(b"no image")


IMAGES = {
    "other pixels": images(lambda image: image.rotate(90).point(lambda v: 255 - v)),
    "other sizes": images(lambda image: image.resize((200, 31))),
    "shades of grey": images(lambda image: image.convert("L")),
    "transparency": images(lambda image: image.convert("RGBA")),
    "another format": images(lambda image: image, ".jpg"),
    "labels": swap_classes,
    "a class of its own": add_class,
    "fewer files": remove_files,
    "a broken file": break_file,
}
FROM_PIXELS = {"backbone": "small:cnn", "size": 16, "skip_broken": True}
FROZEN = {"backbone": "timm:test_resnet", "weights": "none", "size": 32, "skip_broken": True}


# Arrays.


def write_arrays(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 6)).astype(np.float32)
    y = np.where(x[:, 0] > 0, "up", "down")
    domain = np.repeat(["first", "second", "target"], 30)
    np.savez(folder / "arrays.npz", X=x, y=y, domain=domain)
    return folder / "arrays.npz"


def arrays(change: Callable[[dict[str, np.ndarray]], None]):
    def changed(folder: Path) -> None:
        path = folder / "arrays.npz"
        with np.load(path) as file:
            values = dict(file)
        change(values)
        np.savez(path, **values)

    return changed


def changed_values(name: str, value: Any, rows: slice = slice(60, 90)):
    def change(values: dict[str, np.ndarray]) -> None:
        values[name][rows] = value

    return arrays(change)


def kept(rows: int):
    return arrays(lambda values: values.update({k: v[:rows] for k, v in values.items()}))


ARRAYS = {
    "larger numbers": changed_values("X", 1e6),
    "the same number": changed_values("X", 0.0),
    "labels": changed_values("y", "up", slice(60, 80)),
    "a class of its own": changed_values("y", "a", slice(60, 70)),
    "fewer samples": kept(70),
}


# Audio.


def write_audio(folder: Path) -> Path:
    for speaker, shift in (("ann", 0), ("bob", 40), ("target", 80)):
        for word, hertz in (("no", 500), ("yes", 2000)):
            for i in range(6):
                path = folder / "words" / speaker / word / f"{i}.wav"
                spoken(path, tone(hertz + shift + 5 * i))
    return folder / "words"


def audio(*waves: np.ndarray, rate: int = 16_000, files: str = "*/*.wav"):
    def changed(folder: Path) -> None:
        for file in (folder / "words" / "target").glob(files):
            spoken(file, *waves, rate=rate)

    return changed


def remove_recordings(folder: Path) -> None:
    for file in (folder / "words" / "target").glob("*/[3-9].wav"):
        file.unlink()


AUDIO = {
    "another sound": audio(tone(3000)),
    "silence": audio(np.zeros(16_000)),
    "longer": audio(tone(900, seconds=3.0), files="no/0.wav"),
    "shorter": audio(tone(900, seconds=0.2)),
    "another rate": audio(tone(900, rate=8_000), rate=8_000),
    "two channels": audio(tone(900), tone(1200)),
    "fewer files": remove_recordings,
}


# The splits of WILDS, from its metadata; the target is its split test.


def camera_traps(target: list[tuple[str, int, int, int]]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        shutil.rmtree(folder / "iwildcam_v2.0", ignore_errors=True)
        sources = [
            (split, label, place, 20 * place + 3 * i + label)
            for i, split in enumerate(["train", "train", "train", "id_val", "id_val"] * 2)
            for label in (0, 1)
            for place in (0, 1)
        ]
        # A dataset with a name has outputs for all of its classes, whoever has samples of them.
        outside = [("val", label, 2, 70 + i) for i in range(4) for label in (0, 1, 2)]
        iwildcam_files(folder, [*sources, *outside, ("id_test", 0, 0, 90), *target])

    return write


TRAPS = [("test", i % 2, 3 + i // 5, 150 + i) for i in range(10)]


def write_traps(folder: Path) -> str:
    camera_traps(TRAPS)(folder)
    return "iwildcam_wilds"


WILDS = {
    "other images": camera_traps([(*trap[:3], 250 - i) for i, trap in enumerate(TRAPS)]),
    "labels": camera_traps([(split, 1 - label, *rest) for split, label, *rest in TRAPS]),
    "a class of its own": camera_traps([("test", 2, *rest) for _, _, *rest in TRAPS]),
    "other places": camera_traps([(s, label, 7 - place, z) for s, label, place, z in TRAPS]),
    "fewer images": camera_traps(TRAPS[3:7]),
}

# A smaller choice where the path of the data is the same and only what is done with it differs.
SOME = {name: IMAGES[name] for name in ("other pixels", "labels", "fewer files")}
WITH_BATCHNORM = {"backbone": "small:resnet_2block", "size": 8, "steps": 2}
# Classical methods, with few trees.
FEW: dict[str, dict[str, Any]] = {
    "logistic": {},
    "extra_trees": {"extra_trees.trees": 5},
    "boosted_trees": {"boosted_trees.rounds": 3},
    "svm": {},
    "nearest": {},
}
KINDS = {
    "table": Kind(write_patients, CELLS, settings={"steps": 20}),
    "table with lists": Kind(write_split_patients, LISTS),
    "bag of words": Kind(write_texts, TEXTS, "hotels"),
    "encoder": Kind(write_texts, TEXTS, "hotels", {"backbone": "hf:encoder", "tokens": 16}),
    "images": Kind(write_images, IMAGES, settings=FROM_PIXELS),
    "features": Kind(write_images, IMAGES, settings=FROZEN, finetune=False),
    "arrays": Kind(write_arrays, ARRAYS),
    "audio": Kind(write_audio, AUDIO),
    "wilds": Kind(write_traps, WILDS, "test", FROM_PIXELS),
    **{
        f"table, {method}": Kind(write_patients, CELLS, settings=few, method=method)
        for method, few in FEW.items()
    },
    "bag of words, logistic": Kind(write_texts, TEXTS, "hotels", method="logistic"),
    "bag of words, trees": Kind(
        write_texts, TEXTS, "hotels", FEW["extra_trees"], method="extra_trees"
    ),
    "images, logistic": Kind(write_images, IMAGES, settings=FROM_PIXELS, method="logistic"),
    "arrays, svm": Kind(write_arrays, ARRAYS, method="svm"),
    "audio, nearest": Kind(write_audio, AUDIO, method="nearest"),
    **{
        adaptation: Kind(write_images, SOME, settings=WITH_BATCHNORM, adapt=adaptation)
        for adaptation in ("batch_norm", "t3a", "tent")
    },
}
SLOW = ("encoder", "features", "batch_norm", "t3a", "tent")
MARKS = {name: [pytest.mark.slow] for name in SLOW}
MARKS["wilds"] = [pytest.mark.slow, needs_wilds]
CASES = [
    pytest.param(name, change, marks=MARKS.get(name, ()), id=f"{name}: {change}")
    for name, kind in KINDS.items()
    for change in kind.changes
]
_unchanged: dict[str, Outcome] = {}


def outcome(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, change: str = "") -> Outcome:
    """What comes out of a kind of data, unchanged or with one of its changes."""
    kind, data = KINDS[name], folder / "data"
    data.mkdir(parents=True)
    monkeypatch.setenv("AFIELD_CACHE", str(folder / "cache"))
    monkeypatch.setenv("AFIELD_DATA", str(data))
    monkeypatch.chdir(folder)
    if "encoder" in str(kind.settings.get("backbone")):
        write_encoder(folder / "encoder")
    where = kind.write(data)
    if change:
        kind.changes[change](data)
    return train(kind, where, Store(folder / "runs"))


@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_change_of_the_target_changes_nothing_that_is_trained_or_picked(
    name, change, tmp_path, monkeypatch
):
    if name not in _unchanged:
        _unchanged[name] = outcome(name, tmp_path / "before", monkeypatch)
    assert_same(_unchanged[name], outcome(name, tmp_path / "after", monkeypatch, change))


def test_a_change_of_the_sources_is_noticed(tmp_path, monkeypatch):
    before = outcome("table", tmp_path / "before", monkeypatch)
    data = tmp_path / "after"
    data.mkdir()
    write_patients(data)
    cells("age", 1e4, slice(30, 31))(data)
    after = train(KINDS["table"], data / "patients.csv", Store(tmp_path / "runs"))
    with pytest.raises(AssertionError):
        assert_same(before, after)


def test_the_types_of_earlier_versions_depend_on_the_target(tmp_path, monkeypatch):
    shapes = []
    for change in ("", "a number that is not one"):
        folder = tmp_path / f"data{change}"
        folder.mkdir()
        path = write_patients(folder)
        if change:
            CELLS[change](folder)
        kind = replace(KINDS["table"], settings={"columns": "table"})
        weights = train(kind, path, Store(folder / "runs")).weights
        shapes.append({name: value.shape for name, value in weights.items()})
    assert shapes[0] != shapes[1]


def test_a_change_of_the_texts_of_a_source_changes_the_vocabulary(tmp_path, monkeypatch):
    before = outcome("bag of words", tmp_path / "before", monkeypatch)
    path = write_texts(tmp_path)
    cells("text", "entirely different vocabulary", slice(0, 12), "reviews.csv")(tmp_path)
    after = train(KINDS["bag of words"], path, Store(tmp_path / "runs"))
    assert after.inputs != before.inputs


def test_what_else_is_predicted_decides_no_prediction_and_no_abstention(spiral_model):
    model = load(spiral_model)
    x = find_dataset("spirals").load()["turn20"].x.numpy()[:40]
    threshold = model.threshold(0.3)
    alone = list(model.predictions(x))
    among = list(model.predictions(np.concatenate([x, 1e3 * x, -x]), batch=40))[:40]
    assert model.threshold(0.3) == threshold
    assert {each.confidence < threshold for each in alone} == {True, False}
    for one, other in zip(alone, among, strict=True):
        assert one == other
