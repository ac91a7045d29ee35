"""Texts of three domains, and an encoder small enough for a test."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

GOOD, BAD = ("good", "great", "fine", "lovely"), ("bad", "awful", "poor", "sad")
OTHERS = ("the", "film", "food", "hotel", "was", "and", "very", "room", "plot", "soup")
DOMAINS = ("films", "food", "hotels")


def reviews(each: int = 12, *, seed: int = 0) -> pd.DataFrame:
    """Reviews of 3 to 19 words, half of them good, `each` of every class and domain."""
    draw = np.random.default_rng(seed)
    rows = []
    for domain in DOMAINS:
        for number in range(2 * each):
            words = [*draw.choice(OTHERS, draw.integers(2, 18))]
            words.insert(int(draw.integers(len(words))), draw.choice(BAD if number % 2 else GOOD))
            label = "bad" if number % 2 else "good"
            rows.append({"text": " ".join(words), "label": label, "domain": domain})
    return pd.DataFrame(rows)


def write_reviews(folder: Path, frame: pd.DataFrame | None = None, name="reviews.csv") -> Path:
    frame = reviews() if frame is None else frame
    path = folder / name
    if name.endswith(".parquet"):
        frame.to_parquet(path)
    elif name.endswith(".jsonl"):
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False)
    return path


def write_text_tree(root: Path, frame: pd.DataFrame | None = None) -> Path:
    """The same reviews as files ``root/<domain>/<class>/<number>.txt``."""
    for number, row in (reviews() if frame is None else frame).iterrows():
        file = root / row["domain"] / row["label"] / f"{number:03d}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(row["text"])
    return root


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer that knows the words of the reviews, with special tokens at both ends."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *GOOD, *BAD, *OTHERS]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    # As published tokenizers do; afield neither pads nor cuts to these lengths.
    tokenizer.enable_truncation(6)
    tokenizer.enable_padding(length=6)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def write_encoder(folder: Path, *, seed: int = 0, blocks: int = 2) -> Path:
    """A BERT of two narrow blocks with its tokenizer, as a folder of the library transformers."""
    import torch
    from transformers import BertConfig, BertModel

    write_tokenizer(folder)
    config = BertConfig(
        vocab_size=22,
        hidden_size=16,
        num_hidden_layers=blocks,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    return folder


def change_json(file: Path, **values: object) -> None:
    """Replace values of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
