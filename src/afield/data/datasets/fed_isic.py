"""Fed-ISIC: 23,247 images of eight skin lesions from six clinics or cameras, with a test split.

Ogier du Terrail et al., *FLamby*, NeurIPS 2022, based on ISIC 2019: Tschandl, Rosendahl, Kittler,
*HAM10000*, Sci. Data 2018; Codella et al., arXiv 1710.05006; Combalia et al., *BCN20000*, arXiv
1908.02288. The domains are FLamby's six centers. Its table lists the center, class and split of
every image. License: CC BY-NC 4.0. In the data root::

    fed_isic/train_test_split                        FLamby's table, from its repository
    fed_isic/ISIC_2019_Training_Input/<image>.jpg    ISIC's images, as unpacked

A source domain trains on FLamby's training split and validates on its test split; an unseen domain
is evaluated on its test split.

Differs from FLamby: images are resized to a square without cropping, and colors are not
normalized.
"""

import csv

from afield.data.domains import Domain, DomainSet, Download, Published, ReadOptions
from afield.data.modalities.image import Image
from afield.data.sources.folders import LabeledFile, read_files
from afield.data.training_settings import DOMAINBED_DEFAULTS
from afield.errors import DataError

__all__ = ["fed_isic"]

TABLE, IMAGES = "fed_isic/train_test_split", "fed_isic/ISIC_2019_Training_Input"
# Centers and classes are in the order of their numbers in the table.
SIZES = {
    "BCN": 12_413,
    "HAM_vidir_molemax": 3954,
    "HAM_vidir_modern": 3363,
    "HAM_rosendahl": 2259,
    "MSK": 819,
    "HAM_vienna_dias": 439,
}
# FLamby's test split, which a source validates on.
TESTED = {
    "BCN": 2483,
    "HAM_vidir_molemax": 791,
    "HAM_vidir_modern": 672,
    "HAM_rosendahl": 452,
    "MSK": 164,
    "HAM_vienna_dias": 88,
}
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CLASS_NAMES = {
    "MEL": "melanoma",
    "NV": "melanocytic nevus",
    "BCC": "basal cell carcinoma",
    "AK": "actinic keratosis",
    "BKL": "benign keratosis",
    "DF": "dermatofibroma",
    "VASC": "vascular lesion",
    "SCC": "squamous cell carcinoma",
}
TEMPLATES = (
    "a dermoscopic image of a {}.",
    "a dermoscopy image showing a {}.",
    "a close-up photo of a skin lesion, a {}.",
    "a photo of a {}, a type of skin lesion.",
)
IS_TEST = {"train": False, "test": True}


def _read(options: ReadOptions) -> dict[str, Domain]:
    root = options.root.resolve()
    files: dict[str, list[LabeledFile]] = {name: [] for name in SIZES}
    with (root / TABLE).open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                file = root / IMAGES / f"{row['image']}.jpg"
                center = tuple(SIZES)[_parse_index(row["center"], len(SIZES))]
                label = _parse_index(row["target"], len(CLASSES))
                entry = LabeledFile(file, label, test=IS_TEST[row["fold"]])
            except (LookupError, TypeError, ValueError):
                raise DataError(
                    f"{root / TABLE}, line {number}: not a line of FLamby's table; "
                    "download the file again"
                ) from None
            if not file.is_file():
                raise DataError(
                    f"{file}: listed in the table, but missing; unpack all of "
                    "ISIC_2019_Training_Input.zip"
                )
            files[center].append(entry)
    return read_files(root / IMAGES, files, Image(), options)


def _parse_index(text: str, count: int) -> int:
    """Number in a cell of the table, which must be below `count`."""
    index = int(text)
    if index not in range(count):
        raise ValueError(text)
    return index


fed_isic = DomainSet(
    name="fed_isic",
    domains=tuple(SIZES),
    classes=CLASSES,
    reader=_read,
    training=DOMAINBED_DEFAULTS,
    class_names=CLASS_NAMES,
    templates=TEMPLATES,
    modality=Image(),
    needs=(TABLE, IMAGES),
    download=Download(
        instructions="accept the terms at https://challenge.isic-archive.com/data/#2019, unpack "
        "ISIC_2019_Training_Input.zip (9 GB) in fed_isic in the data root, and put "
        "https://raw.githubusercontent.com/owkin/FLamby/main/flamby/datasets/fed_isic2019/"
        "dataset_creation_scripts/train_test_split beside it",
        license="CC BY-NC 4.0",
    ),
    sizes=SIZES,
    published=Published(tested=TESTED),
)
