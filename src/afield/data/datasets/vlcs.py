"""VLCS: 10,729 photographs of five classes from four older datasets.

Fang, Xu, Rockmore, *Unbiased Metric Learning*, ICCV 2013; the choice of datasets and classes goes
back to Torralba, Efros, *Unbiased Look at Dataset Bias*, CVPR 2011. The domains are these datasets.
License: each of the four has its own terms; there is no license for the whole.

In the data root: ``VLCS/<domain>/<class>/<file>``, as in DomainBed. Copies with the folders
CALTECH, LABELME, PASCAL and SUN, split into train, crossval and test, have another layout and
cannot be read.
"""

from afield.data.domains import DomainSet, Download
from afield.data.modalities.image import Image
from afield.data.sources.folders import folder_reader
from afield.data.training_settings import DOMAINBED_DEFAULTS

__all__ = ["vlcs"]

SIZES = {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376}
CLASSES = ("bird", "car", "chair", "dog", "person")

vlcs = DomainSet(
    name="vlcs",
    domains=tuple(SIZES),
    classes=CLASSES,
    reader=folder_reader("VLCS", tuple(SIZES), CLASSES),
    training=DOMAINBED_DEFAULTS,
    # As in the code of SWAD's authors.
    averages={"swad": {"every": 50, "swad.slack": 0.2}},
    modality=Image(),
    needs=tuple(f"VLCS/{domain}" for domain in SIZES),
    download=Download(
        instructions="download VLCS.tar.gz from "
        "https://drive.google.com/uc?id=1skwblH1_okBwxWxmRsp9_qi15hyPpxg8 (as DomainBed does) and "
        "unpack it in the data root",
        license="none for the whole; the terms of Caltech101, LabelMe, SUN09 and VOC2007",
    ),
    sizes=SIZES,
)
