"""Modalities: what depends on the kind of samples is said in one place."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from afield.data.modalities.audio import LogMel
from afield.data.modality import (
    ARRAY,
    AUDIO,
    IMAGE,
    MODALITIES,
    TEXT,
    Audio,
    FileModality,
    ModalityName,
    Text,
    find_modality,
    modality_of_file,
)
from afield.errors import SpecError

FILES = [IMAGE, AUDIO]


def test_the_names_in_stored_models_are_those_of_the_modalities():
    names = ("pictures", "sounds", "arrays", "table", "texts")
    assert get_args(ModalityName) == tuple(MODALITIES) == names


def test_the_names_in_the_cache_never_change():
    assert IMAGE.cache_form(18) == "pictures of 18 × 18"
    assert AUDIO.cache_form(0) == (
        "sounds as LogMel(rate=16000, seconds=1.0, bins=40, window=0.025, hop=0.01)"
    )
    assert TEXT.cache_form(0) == "texts as 512 tokens of bytes"


@pytest.mark.parametrize(
    "modality", [IMAGE, AUDIO, Audio(LogMel(rate=8000)), ARRAY, Text("t.json", 8)], ids=str
)
def test_a_modality_is_found_again_by_its_name_and_settings(modality):
    assert find_modality(modality.name, **modality.settings) == modality


def test_an_unknown_name_and_a_setting_of_another_modality_are_refused():
    with pytest.raises(SpecError, match="did you mean 'pictures'"):
        find_modality("picture")
    with pytest.raises(SpecError, match="kind=arrays: takes no mel"):
        find_modality("arrays", mel=LogMel())


@pytest.mark.parametrize("modality", FILES, ids=str)
def test_the_modality_of_a_file_is_that_of_its_suffix_in_any_case(modality):
    for suffix in modality.suffixes:
        assert modality_of_file(Path(f"a{suffix.upper()}")) == modality
    assert modality_of_file(Path("a.txt")) == TEXT
    assert modality_of_file(Path("a.pdf")) is None
    # A file of arrays is not one sample.
    assert modality_of_file(Path("a.npz")) is None


def test_no_two_modalities_share_a_suffix():
    suffixes = [suffix for kind in MODALITIES.values() for suffix in kind.suffixes]
    assert len(set(suffixes)) == len(suffixes)


@pytest.mark.parametrize("modality", FILES, ids=str)
def test_rows_of_the_cache_become_samples_with_channels_first(modality: FileModality):
    row = modality.empty_row(32)
    samples = modality.to_samples(torch.from_numpy(np.stack([row, row])))
    assert samples.shape[1] in (1, 3)
    assert samples.ndim == 4


def test_images_alone_are_stored_larger_than_the_network_sees_them():
    assert IMAGE.stored_side(224) == 256
    assert AUDIO.stored_side(224) == ARRAY.stored_side(224) == TEXT.stored_side(224) == 0
    assert [modality.resizable for modality in (IMAGE, AUDIO, ARRAY)] == [True, False, False]


def test_low_frequencies_are_shown_at_the_bottom_and_all_else_as_it_is():
    x = torch.arange(6.0).view(1, 3, 2)
    assert AUDIO.upright(x)[0].tolist() == [[4, 5], [2, 3], [0, 1]]
    assert torch.equal(AUDIO.upright(x[None])[0], AUDIO.upright(x))
    for modality in (IMAGE, ARRAY):
        assert torch.equal(modality.upright(x), x)
