"""iWildCam: 203,029 images of animals from 323 camera traps.

Beery, Cole, Gjoka, *The iWildCam 2020 Competition Dataset*, arXiv 2004.10340, in version 2.0 of
Koh, Sagawa, Marklund et al., *WILDS*, ICML 2021. The domains are the locations of the traps; the
classes are species, by their numbers in WILDS. The data are in ``iwildcam_v2.0`` in the data root,
where the package wilds puts them. License: CDLA-Permissive 1.0.

Locations with a single image are left out, because training and validation need one each. There
are many domains, so hold out a share of them (``afield bench --hold-out``) instead of each in turn.
A step takes four images from each of 16 locations.

Differs from WILDS: its splits, which hold out 48 locations for testing and 32 for validation, are
not used; `iwildcam_wilds` uses them. WILDS ranks by macro F1 (``--metric macro_f1``).
"""

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

from afield.data.domains import DomainSet
from afield.data.modalities.image import Image
from afield.data.sources.wilds import WildsSet
from afield.data.training_settings import DOMAINBED_DEFAULTS
from afield.errors import DataError

__all__ = ["iwildcam"]

LOCATIONS = 323
WILDS = WildsSet(
    name="iwildcam",
    version="2.0",
    field="location",
    image_paths=lambda dataset: (f"train/{name}" for name in dataset._input_array),
    groups=("location",),
)


def iwildcam(root: Path) -> DomainSet:
    """Dataset with the locations and classes of the table in this data root."""
    table = root / WILDS.folder / WILDS.table
    locations, classes = _read_table(table) if table.is_file() else (list(range(LOCATIONS)), 0)
    domains = tuple(f"location_{number}" for number in locations)
    return DomainSet(
        name="iwildcam",
        domains=domains,
        classes=tuple(str(number) for number in range(classes)),
        reader=WILDS.reader(domains),
        training=replace(DOMAINBED_DEFAULTS, batch=4, domains_per_step=16),
        modality=Image(),
        needs=WILDS.needs,
        download=WILDS.download("12 GB", license_name="CDLA-Permissive 1.0"),
    )


def _read_table(table: Path) -> tuple[list[int], int]:
    """Numbers of the locations with at least two images, and the number of classes."""
    with table.open(newline="", encoding="utf-8") as lines:
        try:
            rows = [(int(r["location_remapped"]), int(r["y"])) for r in csv.DictReader(lines)]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{table}: not the table of iWildCam 2.0 ({error}); download the data again"
            ) from None
    counts = Counter(location for location, _ in rows)
    locations = sorted(location for location, count in counts.items() if count > 1)
    return locations, max((label for _, label in rows), default=-1) + 1
