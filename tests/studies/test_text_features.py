"""Features of texts against those of the encoder itself, text by text."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.data.sources.folders import unlabelled_files
from afield.errors import SpecError
from afield.networks.pretrained import Encoder
from afield.studies import features as partial_features
from afield.studies.benchmarking import train
from afield.studies.features import embed
from tests.files import words
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
        "from afield.studies.features import embed\n"
        "from afield.studies import features as pieces\n"
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


def test_texts_without_labels_give_vectors_and_names(tmp_path, encoder):
    frame = reviews(2)
    tree = write_text_tree(tmp_path / "tree", frame)
    flat = tree / "food" / "good"
    (flat / "read me.TXT").write_text("very good soup")
    labelled = np.load(embed(tree, tmp_path / "labelled", backbone=f"hf:{encoder}"))
    result = np.load(embed(flat, tmp_path / "flat", backbone=f"hf:{encoder}"))
    assert sorted(result.files) == ["X", "names", "provenance"]
    assert result["names"].tolist() == ["004.txt", "006.txt", "read me.TXT"]
    rows = [name.startswith("food/good") for name in labelled["names"]]
    np.testing.assert_allclose(result["X"], labelled["X"][rows], atol=1e-5)
    one = np.load(embed(flat / "006.txt", tmp_path / "one", backbone=f"hf:{encoder}"))
    np.testing.assert_allclose(one["X"][0], result["X"][1], atol=1e-5)
    vector = sentence_vector(encoder, "very good soup", 24)
    np.testing.assert_allclose(result["X"][2], vector, atol=1e-5)


def test_notes_in_folders_of_labelled_samples_are_not_texts_to_embed(tmp_path):
    texts = write_text_tree(tmp_path / "texts", reviews(2))
    (texts / "README.txt").write_text("Collected in May.")
    assert unlabelled_files(texts) is None
    sounds = words(tmp_path / "sounds")
    (sounds / "README.txt").write_text("Recorded in May.")
    assert unlabelled_files(sounds) is None
    assert unlabelled_files(tmp_path / "absent") is None


def test_the_record_of_features_knows_how_long_their_texts_were(tmp_path, encoder):
    path = write_reviews(tmp_path, reviews(6))
    out = embed(path, tmp_path / "features", backbone=f"hf:{encoder}", tokens=8)
    options = {"target": "food", "store": tmp_path / "runs", "device": "cpu"}
    record = train(out, "erm", settings={"steps": 4}, **options)
    settings = {"steps": 4, "backbone": f"hf:{encoder}", "tokens": 8}
    texts = train(path, "erm", settings=settings, **options)
    assert record.embedded_tokens == texts.run.tokens == 8
    assert texts.embedded_tokens == record.run.tokens == 0
    assert record.truncated == texts.truncated > 0
    assert record.median_tokens == texts.median_tokens > 0


def test_features_without_lengths_of_texts_are_still_read(tmp_path, encoder):
    out = embed(write_reviews(tmp_path), tmp_path / "features", backbone=f"hf:{encoder}")
    with np.load(out) as file:
        arrays = {key: file[key] for key in file.files if key != "text_lengths"}
    older = tmp_path / "older.npz"
    np.savez(older, **arrays)
    record = train(older, "erm", store=tmp_path / "runs", target="food", settings={"steps": 4})
    assert (record.truncated, record.median_tokens, record.embedded_tokens) == (0, 0, 0)


@pytest.mark.data
def test_the_vectors_of_new_texts_are_near_those_of_texts_with_the_same_meaning(tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    for name, text in (
        ("a", "I loved this film."),
        ("b", "The hotel room was dirty."),
        ("c", "What a wonderful movie!"),
    ):
        (folder / f"{name}.txt").write_text(text)
    encoder = data_root() / "weights" / "minilm_l6"
    x = np.load(embed(folder, tmp_path / "out", backbone=f"hf:{encoder}"))["X"]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert x[0] @ x[2] > 0.6 > 0.3 > x[0] @ x[1]
