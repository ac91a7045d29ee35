"""The commands estimate and evaluate, and fit with one more domain, as they are typed."""

import numpy as np
import pandas as pd
import pytest

from afield.data.lookup import find_dataset


@pytest.fixture
def samples(tmp_path):
    np.save(tmp_path / "new.npy", find_dataset("spirals").load()["turn20"].x.numpy())
    return "new.npy"


def test_samples_to_label_go_out_and_come_back(afield, spiral_model, samples, tmp_path):
    words = ("--to-label", "labels.csv", "--labels", "20", "--how", "narrow", "--out", "e.html")
    code, out, err = afield("estimate", spiral_model, samples, *words)
    assert code == 0, err
    assert "labels would give" in out
    assert "20 samples to label in labels.csv" in err
    assert "Strangest samples" in (tmp_path / "e.html").read_text()
    code, _, err = afield("evaluate", spiral_model, "labels.csv")
    assert code == 2
    assert "'label' is empty; fill it in" in err
    pd.read_csv("labels.csv").assign(label="first").to_csv("labels.csv", index=False)
    code, out, _ = afield("evaluate", spiral_model, "labels.csv")
    assert code == 0
    assert "20 samples" in out
    assert "Samples count by the weights" in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("estimate", "MODEL", "new.npy", "--to-label", "l.csv", "--how", "best"), "--how best"),
        (("estimate", "MODEL", "new.npy", "--to-label", "l.xlsx"), "use the suffix .csv"),
        (("predict", "MODEL", "new.npy", "--coverage", "1.5"), "between 0 and 1"),
        (("fit", "spirals", "--like", "MODEL", "--out", "x"), "--like FOLDER and --add NAME=PATH"),
        (
            ("fit", "spirals", "erm", "--like", "MODEL", "--add", "a=b", "--out", "x"),
            "without METHOD",
        ),
        (("fit", "spirals", "--like", "MODEL", "--add", "a", "--out", "x"), "write NAME=PATH"),
        (
            ("fit", "spirals", "--like", "MODEL", "--add", "a=b", "--ensemble", "3", "--out", "x"),
            "--ensemble is taken from --like",
        ),
        (("fit", "spirals", "--like", "MODEL", "--add", "a=nothing", "--out", "x"), "nothing: no "),
    ],
)
def test_what_cannot_be_done_is_one_line(afield, spiral_model, samples, words, problem):
    given = [str(spiral_model) if word == "MODEL" else word for word in words]
    code, _, err = afield(*given)
    assert code == 2
    assert problem in err
    assert len(err.strip().splitlines()) == 1


def test_sets_are_printed_beside_what_can_be_promised(afield, spiral_model, samples):
    code, out, err = afield("predict", spiral_model, samples, "--coverage", "0.9")
    assert code == 0
    assert "set,set_worst" in out
    assert "at most 80 %" in err
