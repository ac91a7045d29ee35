"""Fed-ISIC: 23,247 pictures of eight skin lesions from six clinics or cameras, with a test part.

Ogier du Terrail et al., *FLamby*, NeurIPS 2022, made of ISIC 2019: Tschandl, Rosendahl, Kittler,
*HAM10000*, Sci. Data 2018; Codella et al., arXiv 1710.05006; Combalia et al., *BCN20000*, arXiv
1908.02288. The domains are FLamby's six centres, its table says which picture is of which centre,
class and part. Under the data root::

    fed_isic/train_test_split                        FLamby's table, as it is in its repository
    fed_isic/ISIC_2019_Training_Input/<image>.jpg    ISIC's pictures, as they unpack

Sources train on FLamby's training part and validate on its test part; an unseen domain reports on
its test part. CC BY-NC 4.0.

Differs from FLamby: pictures are squeezed to a square, not cropped, and their colours are left as
they are.
"""

import csv

from afield.data.domains import DOMAINBED_DEFAULTS, Domain, DomainSet, Download, ReadOptions
from afield.data.modality import IMAGE
from afield.data.sources.folders import read_files
from afield.data.sources.labeled_files import LabeledFile
from afield.errors import DataError

__all__ = ["fed_isic"]

TABLE, PICTURES = "fed_isic/train_test_split", "fed_isic/ISIC_2019_Training_Input"
# Centres and classes are in the order of their numbers in the table.
SIZES = {
    "BCN": 12_413,
    "HAM_vidir_molemax": 3954,
    "HAM_vidir_modern": 3363,
    "HAM_rosendahl": 2259,
    "MSK": 819,
    "HAM_vienna_dias": 439,
}
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
PARTS = {"train": False, "test": True}


def _read(reading: ReadOptions) -> dict[str, Domain]:
    root = reading.root.resolve()
    files: dict[str, list[LabeledFile]] = {name: [] for name in SIZES}
    with (root / TABLE).open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                file = root / PICTURES / f"{row['image']}.jpg"
                centre = tuple(SIZES)[_number(row["center"], len(SIZES))]
                entry = LabeledFile(
                    file, _number(row["target"], len(CLASSES)), test=PARTS[row["fold"]]
                )
            except (LookupError, TypeError, ValueError):
                told = "not a line of FLamby's table; get the file anew"
                raise DataError(f"{root / TABLE}, line {number}: {told}") from None
            if not file.is_file():
                told = "in the table, but not there; unpack all of ISIC_2019_Training_Input.zip"
                raise DataError(f"{file}: {told}")
            files[centre].append(entry)
    return read_files(root / PICTURES, files, IMAGE, reading)


def _number(text: str, below: int) -> int:
    """The number in a cell of the table, if there are so many centres or classes."""
    number = int(text)
    if number not in range(below):
        raise ValueError(text)
    return number


fed_isic = DomainSet(
    name="fed_isic",
    domains=tuple(SIZES),
    classes=CLASSES,
    reader=_read,
    training=DOMAINBED_DEFAULTS,
    modality=IMAGE,
    needs=(TABLE, PICTURES),
    download=Download(
        instructions="accept the terms at https://challenge.isic-archive.com/data/#2019, unpack "
        "its "
        "ISIC_2019_Training_Input.zip (9 GB) in fed_isic in the data root, and put "
        "https://raw.githubusercontent.com/owkin/FLamby/main/flamby/datasets/fed_isic2019/"
        "dataset_creation_scripts/train_test_split beside it",
        license="CC BY-NC 4.0",
    ),
    sizes=SIZES,
)
