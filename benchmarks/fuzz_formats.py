"""The files that `fuzz.py` mutates, and the functions that read them."""

import hashlib
import io
import json
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import soundfile
import torch
from fuzz import Format
from PIL import Image
from safetensors.torch import save_file

import afield
from afield.data.groups import group_labels
from afield.data.log_mel import LogMel
from afield.data.lookup import find_dataset
from afield.data.modalities.audio import read_audio
from afield.data.modalities.image import IMAGE_ERRORS, read_image
from afield.data.tokenizer_files import encode, truncating_tokenizer
from afield.deployment import load
from afield.merging.adapters import Adapter
from afield.merging.plan import read_plan
from afield.merging.tensor_files import TensorFiles
from afield.networks.backbone import network
from afield.reporting import tabulate
from afield.reporting.page import render_page
from afield.runs import execute
from afield.runs.run import Run
from afield.runs.status import statuses
from afield.runs.store import SNAPSHOT_SEAL, Store
from afield.studies.benchmark import read_benchmark
from afield.studies.planning import plan_run
from afield.studies.recipe import read_recipe
from afield.tensors import read_weights
from tests.texts import write_encoder, write_reviews

SETTINGS = {"steps": 4, "every": 2}
RATE = 8000
IMAGES = ("png", "jpg", "bmp", "webp", "tif")
SOUNDS = ("wav", "flac", "ogg", "mp3")
SENTENCES = ("the film was great", "a" * 2000, "\u4e2d\U0001f600 " * 50)


def formats(folder: Path) -> dict[str, Format]:
    """Write one valid file of every format."""
    return {
        **_weights(folder),
        **_stores(folder),
        **_texts(folder),
        **_tables(folder),
        **_adapters(folder / "adapter"),
        **_encoder(folder / "encoder"),
        **_media(folder),
    }


def _weights(folder: Path) -> dict[str, Format]:
    rng = np.random.default_rng(0)
    label = {"y": np.tile([0, 1], 8), "domain": np.repeat(list("abcd"), 4)}
    np.savez(folder / "data.npz", X=rng.normal(size=(16, 3)).astype(np.float32), **label)
    save_file({"a": torch.ones(3, 4), "b.weight": torch.zeros(2)}, folder / "w.safetensors")
    torch.save({"a": torch.ones(3, 4), "b.weight": torch.zeros(2)}, folder / "w.pt")
    return {
        "npz": Format(folder / "data.npz", _load_dataset),
        "safetensors": Format(folder / "w.safetensors", TensorFiles),
        "state dict": Format(folder / "w.pt", lambda path: read_weights(str(path))),
    }


def _stores(folder: Path) -> dict[str, Format]:
    store, model = folder / "store", folder / "model"
    options: dict[str, Any] = {"store": str(store), "settings": SETTINGS}
    afield.bench("spirals", ["erm"], trials=1, **options)
    afield.fit("spirals", "erm", model, estimate=False, **options)
    record = next(store.glob("erm-*/record.json"))
    plan = next((store / "plans").glob("*.json"))
    run = plan_run("spirals", "erm", target="turn0", settings=SETTINGS)
    snapshot = _snapshot(run, Store(folder / "killed"))
    return {
        "model.json": Format(model / "model.json", lambda path: load(path.parent), is_json=True),
        "model weights": Format(model / "model.safetensors", lambda path: load(path.parent)),
        "record.json": Format(record, lambda path: _report(path.parents[1]), is_json=True),
        "plan": Format(plan, lambda path: statuses(Store(path.parents[1])), is_json=True),
        "snapshot": Format(snapshot, lambda path: _continue(run, path)),
        "sealed snapshot": Format(snapshot, lambda path: _continue(run, path, seal=True)),
    }


def _snapshot(run: Run, store: Store) -> Path:
    """The snapshot of a run that was killed in the middle."""

    class Stop(Exception):  # noqa: N818  not an error
        pass

    class Stopping(Store):
        def put_snapshot(self, *args: Any) -> None:
            super().put_snapshot(*args)
            raise Stop

    with suppress(Stop):
        execute(run, Stopping(store.root), snapshot_seconds=0.0)
    path = store.folder(run) / "snapshot.pt"
    assert path.exists()
    return path


def _continue(run: Run, path: Path, *, seal: bool = False) -> None:
    """Continue a run from a changed snapshot, perhaps with the digest of its new content."""
    if seal:
        content = path.read_bytes().partition(SNAPSHOT_SEAL)[0]
        path.write_bytes(content + SNAPSHOT_SEAL + hashlib.sha256(content).digest())
    store = Store(path.parents[1])
    execute(run, store, snapshot_seconds=1000.0)
    for file in ("record.json", "model.safetensors"):
        (store.folder(run) / file).unlink(missing_ok=True)


_reports = count()


def _report(folder: Path) -> None:
    """Table of a store and, every tenth time since it is slow, its report page."""
    records = list(Store(folder))
    tabulate(records)
    if records and next(_reports) % 10 == 0:
        render_page(records, [], store="store")


def _texts(folder: Path) -> dict[str, Format]:
    bench = 'dataset = "spirals"\nmethods = ["erm", "vrex"]\ntrials = 2\n[settings]\nlr = 0.1\n'
    (folder / "bench.toml").write_text(bench + "[settings.vrex]\npenalty = 3\n")
    published = Path(afield.__file__).parent / "studies" / "recipes" / "arith_table1.toml"
    (folder / "recipe.toml").write_bytes(published.read_bytes())
    plan = 'merge = "task_arithmetic"\nbase = "b"\nexperts = ["c", "d"]\nout = "e"\n'
    (folder / "merge.toml").write_text(plan + "[params]\nscale = 0.5\n")
    return {
        "toml": Format(folder / "bench.toml", read_benchmark),
        "recipe": Format(folder / "recipe.toml", lambda path: list(read_recipe(path).parts)),
        "merge plan": Format(folder / "merge.toml", read_plan),
    }


def _tables(folder: Path) -> dict[str, Format]:
    rows = 24
    frame = pd.DataFrame(
        {
            "x": np.linspace(0, 1, rows).round(3),
            "kind": ["u", "v", "w"] * (rows // 3),
            "when": ["2024-05-31"] * rows,
            "label": ["ill", "well"] * (rows // 2),
            "domain": ["p", "q"] * (rows // 4) + ["r"] * (rows // 2),
        }
    )
    found: dict[str, Format] = {}
    for name in ("table.csv", "table.jsonl", "table.parquet"):
        write_reviews(folder, frame, name)
        found[name] = Format(folder / name, _load_dataset)
    write_reviews(folder, name="reviews.parquet")
    return {**found, "texts.parquet": Format(folder / "reviews.parquet", _load_dataset)}


def _load_dataset(path: Path) -> None:
    find_dataset(path).load()


def _adapters(folder: Path) -> dict[str, Format]:
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    start = "base_model.model.layer.q"
    factors = {f"{start}.lora_A.weight": torch.ones(2, 4)}
    factors[f"{start}.lora_B.weight"] = torch.ones(4, 2)
    save_file(factors, folder / "adapter_model.safetensors")

    def read(path: Path) -> None:
        adapter = Adapter(path.parent)
        for name in adapter.ranks():
            adapter.shape(name)

    return {
        "adapter config": Format(folder / "adapter_config.json", read, is_json=True),
        "adapter weights": Format(folder / "adapter_model.safetensors", read),
    }


def _encoder(folder: Path) -> dict[str, Format]:
    write_encoder(folder)

    def tokenize(path: Path) -> None:
        tokenizer = truncating_tokenizer(str(path), 16)
        for text in SENTENCES:
            encode(tokenizer, text)

    def build(path: Path) -> None:
        network(f"hf:{path.parent}", (8,), 2, weights="hub")

    def random(path: Path) -> None:
        network(f"hf:{path.parent}", (8,), 2)

    return {
        "config.json": Format(folder / "config.json", build, is_json=True),
        "config.json alone": Format(folder / "config.json", random, is_json=True),
        "tokenizer.json": Format(
            folder / "tokenizer.json", tokenize, (*Format.errors, ValueError), is_json=True
        ),
        "encoder weights": Format(folder / "model.safetensors", build),
    }


def _media(folder: Path) -> dict[str, Format]:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8))
    for suffix in IMAGES:
        image.save(folder / f"image.{suffix}")
    found = {**_lists(folder / "lists", image)}
    mel = LogMel(rate=RATE, bins=20)
    for suffix in SOUNDS:
        soundfile.write(folder / f"tone.{suffix}", rng.normal(size=4000) / 4, RATE)
        found[suffix] = Format(
            folder / f"tone.{suffix}", lambda path: read_audio(path, mel), (OSError, ValueError)
        )
    for suffix in IMAGES:
        found[suffix] = Format(
            folder / f"image.{suffix}", lambda path: read_image(path, 32), IMAGE_ERRORS
        )
    return found


def _lists(folder: Path, image: Image.Image) -> dict[str, Format]:
    """Lists of training and test images, and a table of their groups."""
    content = io.BytesIO()
    image.save(content, "PNG")
    for domain in ("one", "two"):
        for name in ("a", "b"):
            (folder / domain / name).mkdir(parents=True)
            for number in range(2):
                (folder / domain / name / f"{number}.png").write_bytes(content.getvalue())
        for split, number in (("train", 0), ("test", 1)):
            text = "".join(f"{domain}/{name}/{number}.png 0\n" for name in ("a", "b"))
            (folder / f"{domain}_{split}.txt").write_text(text)
    domains = find_dataset(folder).load()
    names = [name for domain in domains.values() for name in domain.names]
    groups = folder.with_name("groups.csv")
    groups.write_text("path,slide\n" + "".join(f"{name},1\n" for name in names))
    return {
        "lists": Format(folder / "one_train.txt", lambda path: _load_dataset(path.parent)),
        "groups": Format(groups, lambda path: group_labels(f"{path}:slide", domains, "lists")),
    }
