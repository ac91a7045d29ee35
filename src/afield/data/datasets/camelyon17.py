"""Camelyon17: 455,954 images of lymph node tissue from five hospitals, with or without a tumor.

Bándi et al., *From Detection of Individual Metastases to Classification of Lymph Node Status at the
Patient Level: the CAMELYON17 Challenge*, IEEE TMI 2018, as patches of 96 × 96 by Koh, Sagawa,
Marklund et al., *WILDS*, ICML 2021. The domains are the hospitals. A patch has the class tumor if
its center contains any tumor tissue. The data are in ``camelyon17_v1.0`` in the data root, where
the package wilds puts them. License: CC0.

``--group slide`` also shows the accuracy on the slides.

Differs from WILDS: its splits are not used; every hospital is a domain and is split in two. The
official task of WILDS is `camelyon17_wilds`.

Differs from DomainBed: patches keep their size; DomainBed enlarges them to 224 × 224.
"""

from dataclasses import replace

from afield.data.domains import DomainSet
from afield.data.modalities.image import Image
from afield.data.sources.wilds import WildsSet
from afield.data.training_settings import DOMAINBED_DEFAULTS

__all__ = ["camelyon17"]

WILDS = WildsSet(
    "camelyon17",
    "1.0",
    field="hospital",
    image_paths=lambda dataset: dataset._input_array,
    groups=("slide",),
)
SIZES = {
    "hospital_0": 59_436,
    "hospital_1": 34_904,
    "hospital_2": 85_054,
    "hospital_3": 129_838,
    "hospital_4": 146_722,
}

camelyon17 = DomainSet(
    name="camelyon17",
    domains=tuple(SIZES),
    classes=("normal", "tumor"),
    reader=WILDS.reader(tuple(SIZES)),
    training=replace(DOMAINBED_DEFAULTS, every=100, size=96),
    modality=Image(),
    needs=WILDS.needs,
    download=WILDS.download("11 GB", license_name="CC0 1.0"),
    sizes=SIZES,
)
