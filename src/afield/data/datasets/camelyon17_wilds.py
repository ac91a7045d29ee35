"""Camelyon17 with the official splits of WILDS: train on three hospitals, test on a fourth.

Koh, Sagawa, Marklund et al., *WILDS*, ICML 2021; see `camelyon17` for the data, which both share.
The domains are the three training hospitals, ``val`` (hospital 1, 34,904 patches) and ``test``
(hospital 2, 85,054 patches). A training hospital trains on its part of the split train and
validates on its part of the split id_val. This is the task of WILDS:

    afield bench camelyon17_wilds

It stands for ``--targets test --validate-on val --report whole --group slide``: the rule
`validation` selects on ``val``, as WILDS does, and the table has the accuracy on all patches, by
which WILDS ranks, and on the slides. License: CC0.

Differs from WILDS: network and hyperparameters are those of `camelyon17`, instead of a DenseNet-121
from scratch.
"""

from dataclasses import replace

from afield.data.datasets.camelyon17 import SIZES as HOSPITALS
from afield.data.datasets.camelyon17 import WILDS, camelyon17

__all__ = ["camelyon17_wilds"]

# What WILDS calls them: the hospitals of the splits val and test.
OUTSIDE = {"val": "hospital_1", "test": "hospital_2"}
SIZES = {name: size for name, size in HOSPITALS.items() if name not in OUTSIDE.values()}
SIZES |= {name: HOSPITALS[hospital] for name, hospital in OUTSIDE.items()}

camelyon17_wilds = replace(
    camelyon17,
    name="camelyon17_wilds",
    domains=tuple(SIZES),
    reader=WILDS.official_reader(tuple(SIZES)),
    sizes=SIZES,
    training=replace(camelyon17.training, group="slide"),
    test_domains=("test",),
    validation_domains=("val",),
)
