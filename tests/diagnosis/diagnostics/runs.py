"""What tests of diagnostics that look at moved inputs share: small runs, and their whole state."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from afield.runs.finished import FinishedRun, reopen
from afield.studies.benchmarking import train
from tests.files import npz, saved, spoken, tone

MARKUP_DOMAINS, MARKUP_CLASSES = ("_a$b", "x^_{", "$y$"), ("$\\frac", "_b_")


def spiral_runs(store: Path, methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """The folders of short runs on spirals by name; ``guided`` is a form of crossgrad."""
    result = {}
    for name, settings in methods.items():
        method = "crossgrad" if name == "guided" else name
        chosen = {"steps": 30, **settings}
        record = train("spirals", method, target="turn30", store=store, settings=chosen)
        result[name] = store / record.run.key
    return result


def trained(data: Path, method: str, *, target: str | list[str] = (), **settings: Any) -> Path:
    """The folder of a run of two steps on own data."""
    store = data.parent / "runs"
    record = train(data, method, target=target, store=store, settings={"steps": 2, **settings})
    return store / record.run.key


def reopened(folder: Path) -> FinishedRun:
    """A finished run; the random numbers of the test are left alone."""
    with torch.random.fork_rng():
        return reopen(folder)


def numbers(folder: Path, *, domains: int, each: int, shape: tuple[int, ...] = (2,)) -> Path:
    """Domains of numbers, each a little further away."""
    y = np.tile([0, 1], domains * each // 2)
    origin = np.repeat(np.arange(domains), each)
    x = np.random.default_rng(0).normal(size=(len(y), *shape)).astype(np.float32)
    x += (y + 0.5 * origin).reshape(-1, *(1 for _ in shape))
    return npz(folder, X=x, y=y, domain=[f"d{i:02}" for i in origin])


def pictures_with_markup(root: Path) -> Path:
    """Small pictures, whose domains and classes have markup in their names."""
    generator = np.random.default_rng(0)
    for number, domain in enumerate(MARKUP_DOMAINS):
        for level, label in enumerate(MARKUP_CLASSES):
            for i in range(5):
                pixels = generator.integers(0, 99, (9, 9, 3)) + 70 * level + 20 * number
                saved(Image.fromarray(pixels.astype(np.uint8)), root / domain / label / f"{i}.png")
    return root


def spoken_words(root: Path, *, each: int) -> Path:
    """Three speakers who say two words, each so often."""
    for speaker, hertz in (("ann", 400.0), ("bob", 900.0), ("cid", 1500.0)):
        for factor, word in ((1.0, "no"), (2.0, "yes")):
            for i in range(each):
                wave = tone(hertz * factor + 20 * i, seconds=0.3)
                spoken(root / speaker / word / f"{i}.wav", wave)
    return root


def everything(subject: FinishedRun) -> list[object]:
    """All weights, gradients and modes of a subject."""
    nets = [subject.model, subject.trained.model, subject.trained.parts]
    nets += [subject.learner.model, subject.learner.parts]
    result: list[object] = [subject.stream.drawn]
    for net in nets:
        result += [copy.deepcopy(value).tolist() for value in net.state_dict().values()]
        result += [parameter.grad for parameter in net.parameters()]
        result += [module.training for module in net.modules()]
    return result


def merged(subject, *deltas, **more):
    """A merged run whose experts have changed the matrix `w` of a base by these deltas."""
    base = {"w": torch.zeros_like(deltas[0]), "bias": torch.zeros(3)}
    experts = {f"expert{i}": {**base, "w": delta} for i, delta in enumerate(deltas)}
    for name, values in more.items():
        base[name] = torch.zeros_like(values[0])
        for own, value in zip(experts.values(), values, strict=True):
            own[name] = value
    return replace(subject, base=base, experts=experts)
