"""Does a broken file ever end in a traceback, a hang or a full memory? Mutate files and read them.

    python benchmarks/fuzz.py                          # 2,000 mutations of each format, seed 0
    python benchmarks/fuzz.py --count 200 --only wav   # fewer, of one format

For each format, a valid file is written by afield or by the usual library, changed at random
(bytes flipped, cut, inserted and repeated; values of JSON and TOML exchanged) and read by the same
functions as by the command line. A reader may accept the file, or refuse it with one of afield's
errors. Anything else is printed with the seed that repeats it, and the exit code is 1.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from PIL import Image
from safetensors.torch import save_file

import afield
from afield.data.groups import group_labels
from afield.data.log_mel import LogMel
from afield.data.lookup import find_dataset
from afield.data.modalities.audio import read_audio
from afield.data.modalities.image import IMAGE_ERRORS, read_image
from afield.deployment import load
from afield.errors import AfieldError
from afield.merging.tensor_files import TensorFiles
from afield.reporting import tabulate
from afield.reporting.page import render_page
from afield.runs.status import statuses
from afield.runs.store import Store
from afield.studies.benchmark import read_benchmark
from afield.tensors import read_weights

MAX_SECONDS, MAX_MEMORY = 5, 2**30
ODD_VALUES: list[Any] = [None, True, -1, 0, 10**30, 1e308, float("nan"), "", "\x1b[2J", [], {}]
Read = Callable[[Path], object]


@dataclass(frozen=True)
class Format:
    """A file that is mutated, the function that reads it, and the errors it may raise."""

    file: Path
    read: Read
    errors: tuple[type[Exception], ...] = (AfieldError,)
    is_json: bool = False


def formats(folder: Path) -> dict[str, Format]:
    """Write one valid file of every format."""
    rng = np.random.default_rng(0)
    label = {"y": np.tile([0, 1], 8), "domain": np.repeat(list("abcd"), 4)}
    np.savez(folder / "data.npz", X=rng.normal(size=(16, 3)).astype(np.float32), **label)
    save_file({"a": torch.ones(3, 4), "b.weight": torch.zeros(2)}, folder / "w.safetensors")
    torch.save({"a": torch.ones(3, 4), "b.weight": torch.zeros(2)}, folder / "w.pt")
    settings = {"steps": 4, "every": 2}
    store = str(folder / "store")
    afield.bench("spirals", ["erm"], trials=1, store=store, settings=settings)
    model = folder / "model"
    afield.fit("spirals", "erm", model, estimate=False, store=store, settings=settings)
    record = next(Path(store).glob("erm-*/record.json"))
    plan = next(Path(store, "plans").glob("*.json"))
    bench = 'dataset = "spirals"\nmethods = ["erm", "vrex"]\ntrials = 2\n[settings]\nlr = 0.1\n'
    (folder / "bench.toml").write_text(bench + "[settings.vrex]\npenalty = 3\n")
    soundfile.write(folder / "tone.wav", rng.normal(size=4000).astype(np.float32), 8000)
    image = Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8))
    for suffix in ("png", "jpg", "bmp", "webp", "tif"):
        image.save(folder / f"image.{suffix}")
    (folder / "lists").mkdir()
    for domain in ("one", "two"):
        for name in ("a", "b"):
            (folder / "lists" / domain / name).mkdir(parents=True)
            for number in range(2):
                image.save(folder / "lists" / domain / name / f"{number}.png")
        lines = {"train": "0", "test": "1"}
        for split, number in lines.items():
            text = "".join(f"{domain}/{name}/{number}.png 0\n" for name in ("a", "b"))
            (folder / "lists" / f"{domain}_{split}.txt").write_text(text)
    domains = find_dataset(folder / "lists").load()
    names = [name for domain in domains.values() for name in domain.names]
    (folder / "groups.csv").write_text("path,slide\n" + "".join(f"{name},1\n" for name in names))
    mel = LogMel(rate=8000, bins=20)
    decoding = (OSError, ValueError)
    return {
        "npz": Format(folder / "data.npz", lambda path: find_dataset(path).load()),
        "safetensors": Format(folder / "w.safetensors", TensorFiles),
        "state dict": Format(folder / "w.pt", lambda path: read_weights(str(path))),
        "model.json": Format(model / "model.json", lambda path: load(path.parent), is_json=True),
        "record.json": Format(record, lambda path: report(path.parents[1]), is_json=True),
        "plan": Format(plan, lambda path: statuses(Store(path.parents[1])), is_json=True),
        "toml": Format(folder / "bench.toml", read_benchmark),
        "lists": Format(
            folder / "lists" / "one_train.txt", lambda path: find_dataset(path.parent).load()
        ),
        "csv": Format(
            folder / "groups.csv", lambda path: group_labels(f"{path}:slide", domains, "lists")
        ),
        "wav": Format(folder / "tone.wav", lambda path: read_audio(path, mel), decoding),
        **{
            suffix: Format(
                folder / f"image.{suffix}", lambda path: read_image(path, 32), IMAGE_ERRORS
            )
            for suffix in ("png", "jpg", "bmp", "webp", "tif")
        },
    }


_reports = count()


def report(folder: Path) -> None:
    """Table of a store and, every tenth time since it is slow, its report page."""
    records = list(Store(folder))
    tabulate(records)
    if records and next(_reports) % 10 == 0:
        render_page(records, [], store="store")


def mutate(content: bytes, draw: random.Random, *, is_json: bool) -> bytes:
    """Change a few places of a file."""
    if is_json and draw.random() < 0.7:
        tree = json.loads(content)
        for _ in range(draw.randint(1, 2)):
            exchange_value(tree, draw)
        return json.dumps(tree).encode()
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        kind = draw.randrange(4)
        if kind == 0 and place < len(changed):
            changed[place] = draw.randrange(256)
        elif kind == 1:
            del changed[place : place + draw.choice((1, 4, 1000, len(changed)))]
        elif kind == 2:
            changed[place:place] = draw.randbytes(draw.choice((1, 4, 64)))
        else:
            changed[place:place] = changed[place : place + draw.choice((4, 64, 1000))]
    return bytes(changed)


def exchange_value(tree: Any, draw: random.Random) -> None:
    """Replace or remove one value somewhere in a tree of JSON."""
    while isinstance(tree, dict | list) and tree:
        key = draw.choice(list(tree)) if isinstance(tree, dict) else draw.randrange(len(tree))
        if draw.random() < 0.3 or not isinstance(tree[key], dict | list) or not tree[key]:
            if draw.random() < 0.2:
                del tree[key]
            else:
                tree[key] = draw.choice(ODD_VALUES)
            return
        tree = tree[key]


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise a TimeoutError after `MAX_SECONDS`."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"no answer after {MAX_SECONDS} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def attempt(form: Format, content: bytes) -> str:
    """Read a mutated file; return what went wrong, or nothing."""
    form.file.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with time_limit(), contextlib.redirect_stderr(io.StringIO()):
            form.read(form.file)
    except TimeoutError as error:
        return str(error)
    except form.errors:
        pass
    except Exception as error:  # noqa: BLE001  this is what is looked for
        return f"{type(error).__name__}: {error}"
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return f"took {grown / 2**20:.0f} MB of memory" if grown > MAX_MEMORY else ""


def main() -> None:
    """Mutate every format and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AFIELD_CACHE"] = f"{folder}/cache"
        for name, form in formats(Path(folder)).items():
            if asked.only not in ("", name):
                continue
            original, problems = form.file.read_bytes(), []
            for number in range(asked.count):
                draw = random.Random(f"{asked.seed} {name} {number}")
                problem = attempt(form, mutate(original, draw, is_json=form.is_json))
                problems += [f"  mutation {number}: {problem}"] if problem else []
            form.file.write_bytes(original)
            print(f"{name}: {asked.count} mutations, {len(problems)} problems")
            print("\n".join(problems[:5]), end="\n" if problems else "", flush=True)
            wrong += len(problems)
    print(f"{wrong} problems")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
