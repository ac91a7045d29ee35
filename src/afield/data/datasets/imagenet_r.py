"""ImageNet-R: 30,000 images of 200 classes in 15 styles; plain photographs are not among them.

Hendrycks et al., *The Many Faces of Robustness*, ICCV 2021. The domains are the styles. Their sizes
differ a lot, and not every style has every class. License: the images belong to their owners.

In the data root: ``imagenet-r/<class>/<style>_<number>.jpg``, where a class is a WordNet id such as
n01443537. Classes are in the order of these ids.

Differs from the original: there it is a test set for networks trained on ImageNet, and styles are
not distinguished.
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
    """Dataset with the classes that are in this data root."""
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
            instructions="download https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar "
            f"(2.2 GB) and unpack it in the data root, as {FOLDER}",
            license="the images belong to their owners; research use",
        ),
    )


def _read(classes: tuple[str, ...], options: ReadOptions) -> dict[str, Domain]:
    root = options.root.resolve() / FOLDER
    if len(classes) != CLASSES:
        raise DataError(
            f"{root}: {len(classes)} class folders, not {CLASSES}; unpack the archive again"
        )
    files: dict[str, list[LabeledFile]] = {style: [] for style in STYLES}
    for label, name in enumerate(classes):
        for file in sorted((root / name).glob("[!.]*")):
            style = file.name.rpartition("_")[0]
            if style not in files:
                styles = ", ".join(STYLES)
                raise DataError(
                    f"{file}: not named <style>_<number>; styles are {styles}; move it elsewhere"
                )
            files[style].append(LabeledFile(file, label))
    return read_files(root, files, IMAGE, options)
