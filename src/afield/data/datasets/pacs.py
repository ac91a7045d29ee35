"""PACS: 9,991 images of seven classes in four styles.

Li, Yang, Song, Hospedales, *Deeper, Broader and Artier Domain Generalization*, ICCV 2017. The
domains are paintings, cartoons, photographs and sketches. License: none stated; the dataset is used
for research.

`afield data get pacs` takes the images from the hub (flwrlabs/pacs). In the data root:
``PACS/<domain>/<class>/<file>``, as in DomainBed.

Differs from the original: its lists of training and validation files are not used; each domain is
split in two, like those of all datasets.
"""

from afield.data.domains import DomainSet, Download
from afield.data.modalities.image import Image
from afield.data.sources.folders import folder_reader
from afield.data.training_settings import DOMAINBED_AVERAGES, DOMAINBED_DEFAULTS

__all__ = ["pacs"]

SIZES = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")

pacs = DomainSet(
    name="pacs",
    domains=tuple(SIZES),
    classes=CLASSES,
    reader=folder_reader("PACS", tuple(SIZES), CLASSES),
    training=DOMAINBED_DEFAULTS,
    averages=DOMAINBED_AVERAGES,
    modality=Image(),
    needs=tuple(f"PACS/{domain}" for domain in SIZES),
    download=Download(
        hub="hf:flwrlabs/pacs@9c6f80edcd5320a55a39b1e84120dcfa25c8ce9b",
        folder="PACS",
        instructions="download PACS.zip from "
        "https://drive.google.com/uc?id=1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd (as DomainBed does), "
        "unpack it in the data root and rename its folder kfold to PACS",
        license="none stated; research use",
    ),
    sizes=SIZES,
)
