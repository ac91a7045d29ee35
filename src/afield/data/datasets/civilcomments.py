"""CivilComments: is a comment toxic? Comments that mention some groups of people are the shift.

Borkan et al., *Nuanced metrics for measuring unintended bias*, 2019, in the version and with the
official splits of WILDS (Koh, Sagawa, Marklund et al., ICML 2021). The domains are ``black_0`` and
``black_1`` (the training comments without and with a mention of black people, as in the groups that
WILDS trains with), ``val`` and ``test``. This is the task of WILDS, which ranks by the accuracy on
the worst of 16 groups:

    afield bench civilcomments --metric worst_group

It stands for ``--targets test --validate-on val --report whole --group identity`` as well. The
groups are the toxic and the other comments that mention each of eight identities. A comment may
mention several, and counts in each of their groups. License: CC0.

Differs from WILDS: there is no split id_val, so the training domains validate on a random fifth;
the number of steps is not that of five epochs, and texts are cut at 128 tokens instead of 300
unless ``--set tokens=300``. An empty text is read as a full stop.
"""

from dataclasses import replace
from typing import Any

from afield.data.domains import DomainSet
from afield.data.groups import GROUP_SEPARATOR
from afield.data.modalities.text import Text
from afield.data.sources.wilds import WildsSet, row_names
from afield.data.training_settings import WILDS_TEXT_DEFAULTS

__all__ = ["civilcomments"]

CLASSES = ("not toxic", "toxic")
DOMAINS = ("black_0", "black_1", "val", "test")


def _identities(dataset: Any) -> list[str]:
    """The groups of every comment: each identity that it mentions, with its class."""
    names = dataset._identity_vars
    columns = [dataset.metadata_fields.index(name) for name in names]
    mentions = dataset.metadata_array[:, columns].tolist()
    return [
        GROUP_SEPARATOR.join(
            f"{n}, {CLASSES[y]}" for n, is_in in zip(names, row, strict=True) if is_in
        )
        for row, y in zip(mentions, dataset.y_array.tolist(), strict=True)
    ]


WILDS = WildsSet(
    name="civilcomments",
    version="1.0",
    field="black",
    image_paths=row_names,
    table="all_data_with_identities.csv",
    texts=lambda dataset: [str(text) for text in dataset._text_array],
    columns=(("identity", _identities),),
)

civilcomments = DomainSet(
    name="civilcomments",
    domains=DOMAINS,
    classes=CLASSES,
    reader=WILDS.official_reader(DOMAINS),
    training=replace(WILDS_TEXT_DEFAULTS, group="identity"),
    modality=Text(),
    needs=WILDS.needs,
    download=WILDS.download("90 MB", license_name="CC0"),
    test_domains=("test",),
    validation_domains=("val",),
)
