"""Refits with one more domain: the joined data, the recipe of the older folder, the comparison."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from afield.data.lookup import find_dataset
from afield.deployment.fitting import fit
from afield.deployment.model import load
from afield.deployment.model_folder import read_description
from afield.deployment.refitting import (
    Comparison,
    join_data,
    label_column,
    read_recipe,
    refit,
)
from afield.errors import SpecError

SETTINGS = {"steps": 6, "every": 3}


@pytest.fixture(scope="module")
def spirals_file(tmp_path_factory):
    """Two domains of spirals as an array file, and a third one by itself."""
    place, domains = tmp_path_factory.mktemp("arrays"), find_dataset("spirals").load()
    for file, names in {"own": ["turn0", "turn10"], "new": ["turn30"]}.items():
        np.savez(
            place / f"{file}.npz",
            X=np.concatenate([domains[name].x.numpy() for name in names]),
            y=np.concatenate([domains[name].y.numpy() for name in names]),
            **({"domain": np.repeat(names, len(domains["turn0"].y))} if file == "own" else {}),
        )
    return place


def test_a_refit_has_the_recipe_of_the_folder_and_one_more_domain(spirals_file, tmp_path):
    store = tmp_path / "runs"
    settings = {"vrex.penalty": 3.0, **SETTINGS}
    fit(spirals_file / "own.npz", "vrex", tmp_path / "old", store=store, settings=settings)
    before = (tmp_path / "old/model.json").read_bytes()
    new = spirals_file / "new.npz"
    model, comparison = refit(
        spirals_file / "own.npz", tmp_path / "old", ("late", new), tmp_path / "new", store=store
    )
    old = load(tmp_path / "old")
    assert (tmp_path / "old/model.json").read_bytes() == before
    assert model.about.sources == ("late", "turn0", "turn10")
    one, other = old.about.run, model.about.run
    assert (one.method, one.params, one.steps) == (other.method, other.params, other.steps)
    assert comparison.before == old.evaluate(new).overall.accuracy
    assert comparison.domains == {
        name: (old.about.estimate.domains[name], model.about.estimate.domains[name])
        for name in ("turn0", "turn10")
    }
    assert comparison.left_out == model.about.estimate.domains["late"]
    assert 0 <= comparison.trained <= 1
    # The joined data are ordinary data.
    joined = find_dataset(tmp_path / "new-data.npz").load()
    assert np.array_equal(joined["late"].x, np.load(new)["X"].astype(np.float32))
    with pytest.raises(SpecError, match="has such a domain already"):
        refit(spirals_file / "own.npz", tmp_path / "old", ("turn0", new), tmp_path / "x")


def test_folders_are_joined_by_links_and_a_list_of_files_will_do(
    two_colours, tmp_path, monkeypatch
):
    root = tmp_path / "data"
    shutil.copytree(two_colours, root)
    shutil.move(root / "west", tmp_path / "west")
    rows = [
        {"file": str(file.relative_to(tmp_path)), "label": file.parent.name}
        for file in sorted((tmp_path / "west").rglob("*.png"))
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "labels.csv", index=False)
    settings = {"backbone": "small:cnn", **SETTINGS}
    old = fit(root, "erm", tmp_path / "old", store=tmp_path / "runs", settings=settings)
    for data, out in (("west", "a"), ("labels.csv", "b")):
        place = join_data(
            find_dataset(root), old, "west", tmp_path / data, tmp_path / out, overwrite=False
        )
        joined, known = find_dataset(place), find_dataset(two_colours)
        assert (joined.domains, joined.classes) == (known.domains, known.classes)
        x, y = joined.load()["west"], known.load()["west"]
        assert sorted(x.x.flatten(1).sum(1).tolist()) == sorted(y.x.flatten(1).sum(1).tolist())
    with pytest.raises(SpecError, match="exists already"):
        join_data(
            find_dataset(root), old, "west", tmp_path / "west", tmp_path / "a", overwrite=False
        )


def test_rows_of_tables_are_joined(tmp_path):
    generator = np.random.default_rng(0)
    for name, clinics in (("own", ["a", "b"]), ("new", ["c"])):
        n = 30 * len(clinics)
        frame = pd.DataFrame({"age": generator.normal(size=n), "sex": ["f", "m"] * (n // 2)})
        frame["ill"] = np.where(frame["age"] > 0, "yes", "no")
        frame["clinic"] = np.repeat(clinics, 30)
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    spec = f"{tmp_path / 'own.csv'}?domain=clinic&label=ill"
    old = fit(spec, "erm", tmp_path / "old", store=tmp_path / "runs", settings=SETTINGS)
    labelled = pd.read_csv(tmp_path / "new.csv").rename(columns={"ill": "label"})
    labelled.drop(columns="clinic").to_csv(tmp_path / "labels.csv", index=False)
    assert label_column(find_dataset(spec), tmp_path / "labels.csv") == ""
    assert label_column(find_dataset(spec), tmp_path / "new.csv") == "ill"
    place = join_data(
        find_dataset(spec), old, "c", tmp_path / "labels.csv", tmp_path / "new", overwrite=False
    )
    joined = find_dataset(place)
    assert joined.domains == ("a", "b", "c")
    assert joined.classes == ("no", "yes")
    assert len(joined.load()["c"].y) == 30


@pytest.mark.parametrize(
    ("command", "part"),
    [("afield merge a b", "not made by"), ("afield fit", "not made by"), ("", "not made by")],
)
def test_a_folder_without_a_recipe_is_refused(spiral_model, command, part):
    about = replace(read_description(spiral_model), command=command)
    with pytest.raises(SpecError, match=part):
        read_recipe(about, "spirals")


def test_options_of_the_recipe_are_read_and_others_are_not(spiral_model):
    about = read_description(spiral_model)
    command = (
        "afield fit d erm --out x --average ema --ensemble 3 --set lr=0.1 --finetune --trials 2"
    )
    request = read_recipe(replace(about, command=f"{command} --store /elsewhere"), "spirals")
    assert (request.average, request.ensemble, request.finetune) == ("ema", 3, True)
    assert request.settings == {"lr": "0.1"}
    assert request.protocol.trials == 2
    best = read_recipe(replace(about, command="afield fit d best --out x"), "spirals")
    assert best.method == about.run.method
    assert json.loads(json.dumps(dict(best.settings))) == dict(about.run.given)


def test_the_summary_says_what_was_gained():
    comparison = Comparison("late", {"a": (0.5, 0.6), "b": (0.7, 0.7)}, 0.4, 0.45, 0.9)
    assert comparison.summary == (
        "late: 40.0 % before, 90.0 % now that it is trained on; left out in turn, +5.0 points on "
        "the 2 old domains"
    )
