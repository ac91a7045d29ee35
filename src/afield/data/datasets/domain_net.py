"""DomainNet: 586,575 images of 345 classes in six styles, with official splits.

Peng, Bai, Xia, Huang, Saenko, Wang, *Moment Matching for Multi-Source Domain Adaptation*, ICCV
2019, in the cleaned version. The domains are clip art, infographics, paintings, quick drawings,
photographs and sketches. License: non-commercial research and education only.

`afield data get domain_net` takes images and splits from the hub (wltjr1007/DomainNet, 18.5 GB). In
the data root: ``domain_net/<domain>/<class>/<file>`` and, beside them, the required lists
``domain_net/<domain>_train.txt`` and ``_test.txt``. Files on neither list are left out. Classes are
in the order of the names of their folders. The numbers in the lists, which have another order, are
not used.

A source trains on its train list and validates on its test list. Lists ``_val.txt`` beside them, as
the authors of DMG publish them with train lists to match, give sources a validation split of their
own. Runs with these lists have other keys.

Differs from DomainBed: there the lists are not used, duplicates are removed and each domain is
split in two. ``--split random`` does the same with the files on the lists.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from afield.data.cache import contents_digest
from afield.data.domains import Domain, DomainSet, Download, Published, ReadOptions
from afield.data.modalities.image import Image
from afield.data.sources.folders import folder_reader
from afield.data.training_settings import DOMAINBED_DEFAULTS
from afield.errors import DataError

__all__ = ["domain_net"]

SIZES = {
    "clipart": 48_129,
    "infograph": 51_605,
    "painting": 72_266,
    "quickdraw": 172_500,
    "real": 172_947,
    "sketch": 69_128,
}
# The official test lists.
TESTED = {
    "clipart": 14_604,
    "infograph": 15_582,
    "painting": 21_850,
    "quickdraw": 51_750,
    "real": 52_041,
    "sketch": 20_916,
}
CLASSES = 345
NEEDS = [path for name in SIZES for path in (name, f"{name}_train.txt", f"{name}_test.txt")]
WEB = "http://csr.bu.edu/ftp/visda/2019/multi-source"


def domain_net(root: Path) -> DomainSet:
    """Dataset with the classes that are in this data root."""
    folders = (path for name in SIZES for path in (root / "domain_net" / name).glob("[!.]*"))
    classes = tuple(sorted({path.name for path in folders if path.is_dir()}))
    return DomainSet(
        name="domain_net",
        domains=tuple(SIZES),
        classes=classes,
        reader=partial(_read, classes),
        training=replace(DOMAINBED_DEFAULTS, every=1000),
        # As in the code of SWAD's authors.
        averages={"swad": {"every": 500}},
        modality=Image(),
        needs=tuple(f"domain_net/{path}" for path in NEEDS),
        download=Download(
            hub="hf:wltjr1007/DomainNet@ee20570ae7a29c51571e55a9a17983f7625295d6",
            hub_lists=True,
            folder="domain_net",
            instructions=f"download clipart.zip and painting.zip from {WEB}/groundtruth/, and "
            f"infograph.zip, quickdraw.zip, real.zip and sketch.zip from {WEB}/; unpack them in "
            "domain_net in the data root, and put the 12 lists <domain>_train.txt and "
            f"<domain>_test.txt from {WEB}/domainnet/txt/ beside them",
            license="non-commercial research and education (http://ai.bu.edu/M3SDA/)",
        ),
        sizes=SIZES,
        fingerprint=_validation_digest(root / "domain_net"),
        published=Published(tested=TESTED),
    )


def _validation_digest(folder: Path) -> str:
    """Digest of all lists if there are validation lists, which change what is trained on."""
    lists = [folder / f"{name}_{split}.txt" for name in SIZES for split in ("train", "val", "test")]
    existing = [path for path in lists if path.is_file()]
    validated = any(path.name.endswith("_val.txt") for path in existing)
    return contents_digest(folder, existing) if validated else ""


def _read(classes: tuple[str, ...], options: ReadOptions) -> dict[str, Domain]:
    if len(classes) != CLASSES:
        raise DataError(
            f"{options.root / 'domain_net'}: class folders have {len(classes)} different names, "
            f"not {CLASSES}; unpack the archives again"
        )
    return dict(folder_reader("domain_net", tuple(SIZES), classes)(options))
