"""Made-up files in the layouts of real datasets; a picture's colour tells its class and domain."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image

from afield.data.domains import Domain, DomainSet, ReadOptions

SIDE = 8
# Importing the package to see whether it is there would start its question to the network.
needs_wilds = pytest.mark.skipif(find_spec("wilds") is None, reason="needs the extra wilds")


def painted(path: Path, *, label: int, domain: int) -> Path:
    """A tiny picture; always a PNG inside, whatever its name, so that no colour is lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (label % 256, label // 256, domain)
    Image.new("RGB", (SIDE, SIDE), colour).save(path, format="PNG")
    return path


def tree(root: Path, dataset: DomainSet, *, classes: int | None = None) -> Path:
    """Two pictures of each class, or of the first few, and domain: root/<domain>/<class>/<file>."""
    for number, domain in enumerate(dataset.domains):
        for label, name in enumerate(dataset.classes[:classes]):
            for i in range(2):
                painted(root / domain / name / f"{i}.png", label=label, domain=number)
    return root


def loaded(dataset: DomainSet, root: Path) -> dict[str, Domain]:
    return dataset.load(ReadOptions(root, side=SIDE))


def assert_labels_fit(domains: dict[str, Domain]) -> None:
    """Every sample is the picture that was painted for its class and domain."""
    for number, domain in enumerate(domains.values()):
        red, green, blue = domain.x[:, :, 0, 0].long().unbind(1)
        assert domain.x.shape[1:] == (3, SIDE, SIDE)
        assert torch.equal(red + 256 * green, domain.y)
        assert (blue == number).all()
