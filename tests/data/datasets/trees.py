"""Made-up files in the layouts of real datasets; a picture's colour tells its class and domain."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image

from afield.data.datasets.fmow import REGIONS, fmow
from afield.data.domains import Domain, DomainSet, ReadOptions

SIDE = 8
COUNTRIES = {"EGY": "Africa", "PER": "Americas", "JPN": "Asia", "FIN": "Europe", "FJI": "Oceania"}
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


def camelyon17_files(root: Path, patches: Iterable[tuple[int, int, int, int]]) -> Path:
    """Patches with these tumors, hospitals, slides and splits."""
    folder = root / "camelyon17_v1.0"
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split\n"]
    for i, (tumor, hospital, slide, split) in enumerate(patches):
        name = f"patient_00{hospital}_node_1"
        file = folder / "patches" / name / f"patch_{name}_x_{i}_y_7.png"
        painted(file, label=tumor, domain=hospital)
        lines.append(f"{i},00{hospital},1,{i},7,{tumor},{slide},{hospital},{split}\n")
    (folder / "metadata.csv").write_text("".join(lines))
    (folder / "RELEASE_v1.0.txt").touch()
    return root


def iwildcam_files(root: Path, images: Iterable[tuple[str, int, int, int]]) -> Path:
    """Images with these splits, classes, places and shades of blue."""
    folder = root / "iwildcam_v2.0"
    lines = ["split,filename,y,location_remapped,sequence_remapped,datetime\n"]
    for i, (split, label, place, shade) in enumerate(images):
        painted(folder / "train" / f"{i}.jpg", label=label, domain=shade)
        lines.append(f"{split},{i}.jpg,{label},{place},{i},2013-05-01 12:03:0{i % 10}.000\n")
    (folder / "metadata.csv").write_text("".join(lines))
    (folder / "RELEASE_v2.0.txt").touch()
    return root


def fmow_files(root: Path, images: Iterable[tuple[int, str, str, int]]) -> Path:
    """Images with these classes, countries, splits and years; those of the split seq are absent."""
    folder = root / "fmow_v1.1"
    lines = ["category,country_code,split,timestamp\n"]
    for i, (label, country, split, year) in enumerate(images):
        if split != "seq":
            region = REGIONS.index(COUNTRIES.get(country, "Other"))
            painted(folder / "images" / f"rgb_img_{i}.png", label=label, domain=region)
        lines.append(f"{fmow.classes[label]},{country},{split},{year}-03-01T10:00:00Z\n")
    (folder / "rgb_metadata.csv").write_text("".join(lines))
    mapping = "".join(f"{code},{region}\n" for code, region in COUNTRIES.items())
    (folder / "country_code_mapping.csv").write_text(f"alpha-3,region\n{mapping}")
    (folder / "RELEASE_v1.1.txt").touch()
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
