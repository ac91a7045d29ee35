"""Thumbnails: a strip of images per domain, kept in the store once, whatever the labels."""

import base64
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from afield.data.domains import Domain
from afield.data.lookup import find_dataset
from afield.data.modalities.array import Array
from afield.runs.run_files import thumbnail_file
from afield.runs.store import Store
from afield.runs.thumbnails import (
    GAP,
    IMAGES,
    MAX_DOMAINS,
    SIDE,
    image_strips,
    keep_thumbnails,
    write_strips,
)
from afield.studies.settings import resolve_run

DIGITS = find_dataset("rotated_digits")


def domain(shape=(3, 20, 30), *, count=20, seed=0):
    x = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, *shape)))
    return Domain(x.to(torch.uint8), torch.arange(count) % 2)


def opened(strip):
    return Image.open(io.BytesIO(base64.b64decode(strip)))


def test_every_domain_has_a_strip_of_equal_images():
    strips = image_strips({"a": domain(), "b": domain(seed=1, count=3)}, Array())
    assert list(strips) == ["a", "b"]
    for strip in strips.values():
        image = opened(strip)
        assert (image.format, image.height) == ("WEBP", SIDE)
        assert image.width == IMAGES * SIDE + (IMAGES - 1) * GAP
        assert len(strip) < 50_000
    # Three samples leave the rest of the strip transparent.
    assert opened(strips["b"]).convert("RGBA").getpixel((image.width - 5, 5))[3] == 0
    assert opened(strips["a"]).convert("RGBA").getpixel((image.width - 5, 5))[3] == 255


def test_labels_do_not_matter():
    samples = domain()
    other = replace(samples, y=1 - samples.y)
    assert image_strips({"a": samples}, Array()) == image_strips({"a": other}, Array())


@pytest.mark.parametrize("shape", [(1, 16, 16), (2, 16, 16), (3, 16, 16)])
def test_images_of_one_to_three_channels_have_strips(shape):
    assert image_strips({"a": domain(shape)}, Array())


@pytest.mark.parametrize("shape", [(7,), (1, 4, 4), (12, 16, 16)])
def test_other_samples_have_none(shape):
    assert image_strips({"a": domain(shape)}, Array()) == {}


def test_the_strips_of_many_domains_are_those_of_the_first():
    strips = image_strips({f"d{i}": domain(count=2) for i in range(MAX_DOMAINS + 3)}, Array())
    assert list(strips) == [f"d{i}" for i in range(MAX_DOMAINS)]


def test_a_store_keeps_the_strips_of_each_dataset_once(store, tmp_path):
    runs = [resolve_run(DIGITS, method, DIGITS.domains[1:]) for method in ("erm", "vrex")]
    spirals = find_dataset("spirals")
    runs.append(resolve_run(spirals, "erm", spirals.domains[1:]))
    keep_thumbnails(runs, store)
    (file,) = tmp_path.iterdir()
    assert file.name == thumbnail_file(runs[0])
    assert list(json.loads(file.read_text())) == list(DIGITS.domains)
    file.write_text("{}")
    keep_thumbnails(runs, store)
    assert file.read_text() == "{}"


def test_features_have_the_strips_that_were_written_beside_them(tmp_path):
    features = tmp_path / "cache" / "own.npz"
    features.parent.mkdir()
    write_strips(features, {"a": domain()}, Array())
    run = replace(resolve_run(DIGITS, "erm", DIGITS.domains[1:]), dataset=str(features), data="abc")
    keep_thumbnails([run], Store(tmp_path))
    kept = json.loads((tmp_path / thumbnail_file(run)).read_text())
    assert kept == image_strips({"a": domain()}, Array())


def test_data_that_are_gone_are_no_failure(tmp_path):
    run = replace(resolve_run(DIGITS, "erm", DIGITS.domains[1:]), dataset=str(tmp_path / "gone"))
    keep_thumbnails([run], Store(tmp_path))
    assert not list(tmp_path.iterdir())
