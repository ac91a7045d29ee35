"""PACS: 9,991 pictures of seven things in four styles.

Li, Yang, Song, Hospedales, *Deeper, Broader and Artier Domain Generalization*, ICCV 2017. The
domains are paintings, cartoons, photographs and sketches: ``PACS/<domain>/<class>/<file>`` under
the data root, as in DomainBed. The authors state no licence; it is used for research.

Differs from the original: its lists of training and validation files are not used, each domain is
cut in two like any other.
"""

from afield.data.domains import DOMAINBED_DEFAULTS, DomainSet, Download
from afield.data.modality import IMAGE
from afield.data.sources.folders import folder_reader

__all__ = ["pacs"]

SIZES = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")

pacs = DomainSet(
    name="pacs",
    domains=tuple(SIZES),
    classes=CLASSES,
    reader=folder_reader("PACS", tuple(SIZES), CLASSES),
    training=DOMAINBED_DEFAULTS,
    modality=IMAGE,
    needs=tuple(f"PACS/{domain}" for domain in SIZES),
    download=Download(
        instructions="get PACS.zip "
        "(https://drive.google.com/uc?id=1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd, "
        "as DomainBed does), unpack it in the data root and rename its folder kfold to PACS",
        license="none stated; research use",
    ),
    sizes=SIZES,
)
