"""iWildCam with the official splits of WILDS: train on 243 camera traps, test on 48 others.

Koh, Sagawa, Marklund et al., *WILDS*, ICML 2021; see `iwildcam` for the data, which both share. The
domains are the locations of the training split, ``val`` (the 32 locations of the split val) and
``test`` (the 48 locations of the split test). A location trains on its part of the split train and
validates on its part of the split id_val; locations without both are joined in the domain
``others``. This is the task of WILDS, which ranks by macro F1 over all test images:

    afield bench iwildcam_wilds --metric macro_f1

It stands for ``--targets test --validate-on val --report whole`` as well.
The split id_test, which WILDS reports beside the others, is left out. License: CDLA-Permissive 1.0.

Differs from WILDS: network and hyperparameters are those of `iwildcam`.
"""

import csv
from dataclasses import replace
from pathlib import Path

from afield.data.datasets.iwildcam import WILDS, iwildcam
from afield.data.domains import DomainSet
from afield.data.sources.folders import LabeledFile
from afield.data.sources.wilds import OUTSIDE, join_incomplete

__all__ = ["iwildcam_wilds"]


def iwildcam_wilds(root: Path) -> DomainSet:
    """Dataset with the locations and classes of the table in this data root."""
    plain = iwildcam(root)
    table = root / WILDS.folder / WILDS.table
    domains = _domains(table) if table.is_file() else (*plain.domains, *OUTSIDE)
    return replace(
        plain,
        name="iwildcam_wilds",
        domains=domains,
        reader=WILDS.official_reader(domains),
        test_domains=("test",),
        validation_domains=("val",),
    )


def _domains(table: Path) -> tuple[str, ...]:
    """The training locations in order, then others, val and test."""
    files: dict[str, list[LabeledFile]] = {}
    with table.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["split"] in ("train", "id_val"):
                entry = LabeledFile(table, 0, test=row["split"] == "id_val")
                files.setdefault(f"location_{row['location_remapped']}", []).append(entry)
    joined = join_incomplete(files)
    numbered = sorted((name for name in joined if name in files), key=_number)
    return (*numbered, *(name for name in joined if name not in files), *OUTSIDE)


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])
