"""Terra Incognita: 24,788 or 24,330 pictures of nine animals, or none, from four camera traps.

Beery, Van Horn, Perona, *Recognition in Terra Incognita*, ECCV 2018; the choice of four places and
ten classes is DomainBed's, as is the layout: ``terra_incognita/<domain>/<class>/<file>`` under the
data root. The domains are the traps' places. A picture with two labels is in two classes.

Two versions are around, and both are read, so that sizes are not checked. Published results are
mostly on 24,788 pictures (4,879 at location_100, 9,767 at location_38, 4,020 at location_43 and
6,122 at location_46); annotations of 2021 give 24,330. Say which one was used.
"""

from afield.data.domains import DOMAINBED_DEFAULTS, DomainSet, Download
from afield.data.modality import IMAGE
from afield.data.sources.folders import folder_reader

__all__ = ["terra_incognita"]

DOMAINS = ("location_100", "location_38", "location_43", "location_46")
CLASSES = (
    *("bird", "bobcat", "cat", "coyote", "dog"),
    *("empty", "opossum", "rabbit", "raccoon", "squirrel"),
)

terra_incognita = DomainSet(
    name="terra_incognita",
    domains=DOMAINS,
    classes=CLASSES,
    reader=folder_reader("terra_incognita", DOMAINS, CLASSES),
    training=DOMAINBED_DEFAULTS,
    modality=IMAGE,
    needs=tuple(f"terra_incognita/{domain}" for domain in DOMAINS),
    download=Download(
        instructions="let DomainBed's scripts/download.py make it in the data root (take the "
        "comment "
        "sign off its line for Terra Incognita); the pictures are the CCT20 subset of "
        "https://lila.science/datasets/caltech-camera-traps",
        license="see https://lila.science/datasets/caltech-camera-traps",
    ),
)
