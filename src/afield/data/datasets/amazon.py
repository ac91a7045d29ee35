"""Amazon: reviews of products with one to five stars; unseen reviewers are the shift.

Ni, Li and McAuley, *Justifying recommendations using distantly-labeled reviews and fine-grained
aspects*, EMNLP 2019, in the version and with the official splits of WILDS (Koh, Sagawa, Marklund et
al., ICML 2021). The domains are the 626 reviewers of the training split who have reviews in the
split id_val, ``others`` (all other reviewers of the training split), ``val`` and ``test`` (1,334
other reviewers each). A reviewer trains on the split train and validates on the split id_val. This
is the task of WILDS, which ranks by the 10th percentile of the accuracies on the reviewers:

    afield bench amazon --metric p10_group

It stands for ``--targets test --validate-on val --report whole --group user`` as well. The split
id_test, which WILDS reports beside the others, is left out. For research use only.

Differs from WILDS: the number of steps is not that of three epochs, a step has samples of eight
reviewers, and texts are cut at 128 tokens instead of 512 unless ``--set tokens=512``. An empty text
is read as a full stop.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from afield.data.domains import DomainSet
from afield.data.modalities.text import Text
from afield.data.sources.wilds import OTHERS, OUTSIDE, WildsSet, row_names
from afield.data.training_settings import WILDS_TEXT_DEFAULTS

__all__ = ["amazon"]

WILDS = WildsSet(
    name="amazon",
    version="2.1",
    field="user",
    image_paths=row_names,
    table="reviews.csv",
    groups=("user", "category"),
    texts=lambda dataset: dataset._input_array,
)


def amazon(root: Path) -> DomainSet:
    """Dataset with the reviewers of the tables in this data root."""
    there = all((root / name).is_file() for name in WILDS.needs)
    domains = _domains(root) if there else (OTHERS, *OUTSIDE)
    return DomainSet(
        name="amazon",
        domains=domains,
        classes=("1", "2", "3", "4", "5"),
        reader=WILDS.official_reader(domains),
        training=replace(WILDS_TEXT_DEFAULTS, batch=1, domains_per_step=8, group="user"),
        modality=Text(),
        needs=WILDS.needs,
        download=WILDS.download("2.0 GB", license_name="research use only"),
        test_domains=("test",),
        validation_domains=("val",),
    )


@lru_cache(maxsize=1)
def _domains(root: Path) -> tuple[str, ...]:
    """The reviewers with training and validation reviews in order, then others, val and test."""
    found = WILDS.official_files(root)
    reviewers = sorted(name for name in found if name not in (OTHERS, *OUTSIDE))
    return (*reviewers, *(name for name in (OTHERS, *OUTSIDE) if name in found))
