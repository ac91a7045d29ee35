"""DomainNet: 586,575 pictures of 345 things in six styles, with official training and test lists.

Peng, Bai, Xia, Huang, Saenko, Wang, *Moment Matching for Multi-Source Domain Adaptation*, ICCV
2019, in the cleaned version. The domains are clip art, infographics, paintings, quick drawings,
photographs and sketches: ``domain_net/<domain>/<class>/<file>`` under the data root, and the lists
``domain_net/<domain>_train.txt`` and ``_test.txt`` beside them, which are required. Files on no
list are left out. For non-commercial research and education only.

Classes are in the order of their folders' names, which is not that of the numbers in the lists:
these numbers are not used.

Differs from DomainBed: it uses no lists, but removes duplicates and cuts each domain in two.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from afield.data.domains import DOMAINBED_DEFAULTS, Domain, DomainSet, Download, ReadOptions
from afield.data.modality import IMAGE
from afield.data.sources.folders import folder_reader
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
CLASSES = 345
NEEDS = [needed for name in SIZES for needed in (name, f"{name}_train.txt", f"{name}_test.txt")]
WEB = "http://csr.bu.edu/ftp/visda/2019/multi-source"


def domain_net(root: Path) -> DomainSet:
    """The dataset under this root, with the classes that it has there."""
    folders = (path for name in SIZES for path in (root / "domain_net" / name).glob("[!.]*"))
    classes = tuple(sorted({path.name for path in folders if path.is_dir()}))
    return DomainSet(
        name="domain_net",
        domains=tuple(SIZES),
        classes=classes,
        reader=partial(_read, classes),
        training=replace(DOMAINBED_DEFAULTS, every=1000),
        modality=IMAGE,
        needs=tuple(f"domain_net/{needed}" for needed in NEEDS),
        download=Download(
            instructions=f"unpack clipart.zip and painting.zip of {WEB}/groundtruth/ and "
            "infograph.zip, "
            f"quickdraw.zip, real.zip and sketch.zip of {WEB}/ in domain_net in the data root, and "
            f"put the 12 lists <domain>_train.txt, _test.txt of {WEB}/domainnet/txt/ beside them",
            license="non-commercial research and education (http://ai.bu.edu/M3SDA/)",
        ),
        sizes=SIZES,
    )


def _read(classes: tuple[str, ...], reading: ReadOptions) -> dict[str, Domain]:
    if len(classes) != CLASSES:
        told = f"class folders have {len(classes)} different names, not {CLASSES}"
        raise DataError(f"{reading.root / 'domain_net'}: {told}; unpack the zips anew")
    return dict(folder_reader("domain_net", tuple(SIZES), classes)(reading))
