"""Features of texts against those of the encoder itself, text by text."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from afield.data.lookup import find_dataset
from afield.errors import SpecError
from afield.experiments.embedding import embed
from afield.experiments.frozen import partial_features
from afield.experiments.frozen.encoder import Encoder
from tests.texts import reviews, write_encoder, write_reviews, write_text_tree


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def sentence_vector(folder, text, tokens):
    """The mean state of the tokens of one text, computed with transformers alone."""
    from tokenizers import Tokenizer
    from transformers import AutoModel

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(tokens)
    net = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        ids = torch.tensor([tokenizer.encode(text).ids])
        return net(ids).last_hidden_state[0].mean(0).numpy()


def test_features_are_the_sentence_vectors_of_the_encoder_in_the_order_of_the_domains(
    tmp_path, encoder, caplog
):
    frame = reviews(4)
    path = write_reviews(tmp_path, frame)
    out = embed(path, tmp_path / "features", backbone=f"hf:{encoder}", tokens=12)
    with np.load(out) as file:
        arrays = dict(file)
    texts = frame.sort_values("domain", kind="stable")
    for row in (0, 5, 23):
        expected = sentence_vector(encoder, texts["text"].iloc[row], 12)
        np.testing.assert_allclose(arrays["X"][row], expected, atol=1e-5)
    assert arrays["y"].tolist() == texts["label"].tolist()
    assert arrays["domain"].tolist() == texts["domain"].tolist()
    provenance = json.loads(str(arrays["provenance"]))
    assert provenance["tokens"] == 12
    assert "transformers" in provenance
    assert "of 24 texts are cut at 12 tokens; --tokens N" in caplog.text
    built = Encoder.from_provenance(find_dataset(out).provenance)
    assert built.shape == (12,)
    assert built.build()


def test_folders_of_texts_give_the_same_features_as_a_table(tmp_path, encoder):
    frame = reviews(2)
    tree = write_text_tree(tmp_path / "tree", frame)
    outs = [
        embed(data, tmp_path / f"{number}", backbone=f"hf:{encoder}")
        for number, data in enumerate((tree, write_reviews(tmp_path, frame)))
    ]
    rows = [np.load(out)["X"] for out in outs]
    # Within a domain, folders order texts by class.
    for start in range(0, 12, 4):
        one, other = (np.sort(x[start : start + 4], axis=0) for x in rows)
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_a_killed_process_continues_and_gives_the_same_bytes(tmp_path, encoder, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    path = write_reviews(tmp_path, reviews(40))
    whole = embed(path, tmp_path / "whole", backbone=f"hf:{encoder}")
    script = (
        "import os, signal, sys\n"
        "from afield.experiments.embedding import embed\n"
        "from afield.experiments.frozen import partial_features as pieces\n"
        "pieces.SAVE_SECONDS, write = 0.0, pieces._write_piece\n"
        "def die(folder, start, piece):\n"
        "    write(folder, start, piece)\n"
        "    if start: os.kill(os.getpid(), signal.SIGKILL)\n"
        "pieces._write_piece = die\n"
        f"embed({str(path)!r}, {str(tmp_path / 'cut')!r}, backbone={f'hf:{encoder}'!r})\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    read = []
    monkeypatch.setattr(
        partial_features,
        "_read_pieces",
        lambda folder, read_pieces=partial_features._read_pieces: (
            read.append(read_pieces(folder)) or read[-1]
        ),
    )
    cut = embed(path, tmp_path / "cut", backbone=f"hf:{encoder}")
    assert sum(map(len, read[0])) == 128
    assert cut.read_bytes() == whole.read_bytes()
    assert not list((tmp_path / "cache").glob("embedding-*"))


def test_features_of_texts_need_a_pretrained_encoder_and_images_need_none(tmp_path, encoder):
    path = write_reviews(tmp_path)
    for options, message in (
        ({}, "computed by a pretrained encoder; give, e.g., --backbone hf:FOLDER"),
        ({"backbone": "small:text"}, "with small:text: features of texts"),
        ({"backbone": "timm:resnet18"}, "use small:text, or an encoder"),
        ({"backbone": f"hf:{encoder}", "tokens": 2}, "tokens=2: texts need at least 4"),
    ):
        with pytest.raises(SpecError, match=message):
            embed(path, tmp_path / "out", **options)
    with pytest.raises(SpecError, match="has no texts"):
        embed("rotated_digits", tmp_path / "out", backbone=f"hf:{encoder}")
