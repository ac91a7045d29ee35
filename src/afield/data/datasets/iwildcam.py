"""iWildCam: 203,029 pictures of animals from 323 camera traps.

Beery, Cole, Gjoka, *The iWildCam 2020 Competition Dataset*, arXiv 2004.10340, in the version 2.0 of
Koh, Sagawa, Marklund et al., *WILDS*, ICML 2021. The domains are the traps' places, the classes are
species by their numbers there. It lies in ``iwildcam_v2.0`` under the data root, where the package
wilds puts it. CDLA-Permissive 1.0.

Places with a single picture are left out: it takes two to train and to validate. With so many
domains, hold a share of them out (``afield bench --hold-out``), not each in turn; a step takes
four pictures of each of 16 places.

Differs from WILDS: its parts are not used, which hold out 48 places for the test and 32 for
validation; it ranks by macro F1.
"""

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path

from afield.data.domains import DOMAINBED_DEFAULTS, DomainSet
from afield.data.modality import IMAGE
from afield.data.sources.wilds import WildsSet
from afield.errors import DataError

__all__ = ["iwildcam"]

PLACES = 323
WILDS = WildsSet(
    name="iwildcam",
    version="2.0",
    field="location",
    pictures=lambda whole: (f"train/{name}" for name in whole._input_array),
)


def iwildcam(root: Path) -> DomainSet:
    """The dataset under this root, with the places and classes of its table."""
    table = root / WILDS.folder / WILDS.table
    places, classes = _listed(table) if table.is_file() else (list(range(PLACES)), 0)
    domains = tuple(f"location_{number}" for number in places)
    return DomainSet(
        name="iwildcam",
        domains=domains,
        classes=tuple(str(number) for number in range(classes)),
        reader=WILDS.reader(domains),
        training=replace(DOMAINBED_DEFAULTS, batch=4, domains_per_step=16),
        modality=IMAGE,
        needs=WILDS.needs,
        download=WILDS.source("12 GB", license_name="CDLA-Permissive 1.0"),
    )


def _listed(table: Path) -> tuple[list[int], int]:
    """The numbers of the places with two pictures or more, and how many classes there are."""
    with table.open(newline="", encoding="utf-8") as lines:
        try:
            rows = [(int(r["location_remapped"]), int(r["y"])) for r in csv.DictReader(lines)]
        except (KeyError, TypeError, ValueError) as error:
            told = f"not the table of iWildCam 2.0 ({error})"
            raise DataError(f"{table}: {told}; get the data anew") from None
    counts = Counter(place for place, _ in rows)
    places = sorted(place for place, count in counts.items() if count > 1)
    return places, max((label for _, label in rows), default=-1) + 1
