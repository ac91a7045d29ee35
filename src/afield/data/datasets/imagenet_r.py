"""ImageNet-R: 30,000 pictures of 200 things in 15 styles, none of them a plain photograph.

Hendrycks et al., *The Many Faces of Robustness*, ICCV 2021. The domains are the styles, which stand
in the files' names: ``imagenet-r/<class>/<style>_<number>.jpg`` under the data root, where a class
is a WordNet id like n01443537; classes are in the order of these. Styles differ much in size, and
not every style has every class. The pictures belong to their owners.

Differs from the original: there it is a test set for networks trained on ImageNet, and its styles
are not told apart.
"""

from functools import partial
from pathlib import Path

from afield.data.domains import DOMAINBED_DEFAULTS, Domain, DomainSet, Download, ReadOptions
from afield.data.modality import IMAGE
from afield.data.sources.folders import read_files
from afield.data.sources.labeled_files import LabeledFile
from afield.errors import DataError

__all__ = ["imagenet_r"]

FOLDER = "imagenet-r"
STYLES = (
    *("art", "cartoon", "deviantart", "embroidery", "graffiti", "graphic", "misc", "origami"),
    *("painting", "sculpture", "sketch", "sticker", "tattoo", "toy", "videogame"),
)
CLASSES = 200


def imagenet_r(root: Path) -> DomainSet:
    """The dataset under this root, with the classes that it has there."""
    folders = (path for path in (root / FOLDER).glob("[!.]*") if path.is_dir())
    classes = tuple(sorted(path.name for path in folders))
    return DomainSet(
        name="imagenet_r",
        domains=STYLES,
        classes=classes,
        reader=partial(_read, classes),
        training=DOMAINBED_DEFAULTS,
        modality=IMAGE,
        needs=(FOLDER,),
        download=Download(
            instructions="get https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar (2.2 GB) "
            "and "
            f"unpack it in the data root, as {FOLDER}",
            license="the pictures belong to their owners; research use",
        ),
    )


def _read(classes: tuple[str, ...], reading: ReadOptions) -> dict[str, Domain]:
    root = reading.root.resolve() / FOLDER
    if len(classes) != CLASSES:
        told = f"{len(classes)} class folders, not {CLASSES}"
        raise DataError(f"{root}: {told}; unpack the archive anew")
    files: dict[str, list[LabeledFile]] = {style: [] for style in STYLES}
    for label, name in enumerate(classes):
        for file in sorted((root / name).glob("[!.]*")):
            style = file.name.rpartition("_")[0]
            if style not in files:
                known = ", ".join(STYLES)
                raise DataError(f"{file}: not <style>_<number>; styles are {known}; move it")
            files[style].append(LabeledFile(file, label))
    return read_files(root, files, IMAGE, reading)
