"""Terra Incognita: 24,788 or 24,330 images of nine animals, or empty, from four camera traps.

Beery, Van Horn, Perona, *Recognition in Terra Incognita*, ECCV 2018; the choice of four locations
and ten classes is DomainBed's. The domains are the locations of the traps. An image with two labels
is in two classes.

In the data root: ``terra_incognita/<domain>/<class>/<file>``, as in DomainBed.

Two versions exist. Both can be read, so sizes are not checked. Most published results are on 24,788
images (4,879 at location_100, 9,767 at location_38, 4,020 at location_43 and 6,122 at location_46);
the annotations of 2021 give 24,330. State which version you used.
"""

from afield.data.domains import DomainSet, Download, Published
from afield.data.modalities.image import Image
from afield.data.sources.folders import folder_reader
from afield.data.training_settings import DOMAINBED_AVERAGES, DOMAINBED_DEFAULTS

__all__ = ["terra_incognita"]

# Of the version that most published results are on.
SIZES = {"location_100": 4879, "location_38": 9767, "location_43": 4020, "location_46": 6122}
DOMAINS = tuple(SIZES)
CLASSES = (
    *("bird", "bobcat", "cat", "coyote", "dog"),
    *("empty", "opossum", "rabbit", "raccoon", "squirrel"),
)

TEMPLATES = (
    "a camera trap photo of a {}.",
    "a photo of a {} taken by a camera trap.",
    "a photo of a {} in the wild at night.",
    "a photo of a {} in the wild.",
)

terra_incognita = DomainSet(
    name="terra_incognita",
    domains=DOMAINS,
    classes=CLASSES,
    reader=folder_reader("terra_incognita", DOMAINS, CLASSES),
    training=DOMAINBED_DEFAULTS,
    class_names={"empty": "scene without animals"},
    templates=TEMPLATES,
    averages=DOMAINBED_AVERAGES,
    modality=Image(),
    needs=tuple(f"terra_incognita/{domain}" for domain in DOMAINS),
    download=Download(
        instructions="run DomainBed's scripts/download.py with the data root as its folder, after "
        "uncommenting its line for Terra Incognita; the images are the CCT20 subset of "
        "https://lila.science/datasets/caltech-camera-traps",
        license="see https://lila.science/datasets/caltech-camera-traps",
    ),
    published=Published(SIZES),
)
