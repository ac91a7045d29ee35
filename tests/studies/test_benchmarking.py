"""Training one model."""

import numpy as np
import pytest
from PIL import Image

from afield.errors import DataError, UnknownNameError
from afield.studies.benchmarking import train

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
