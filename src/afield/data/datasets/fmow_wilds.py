"""FMoW with the official splits of WILDS: train on images before 2013, test on those from 2016 on.

Koh, Sagawa, Marklund et al., *WILDS*, ICML 2021; see `fmow` for the data, which both share. The
domains are the regions, ``val`` (images from 2013 to 2015) and ``test`` (from 2016 on). A region
trains on its part of the split train and validates on its part of the split id_val. This is the
task of WILDS, which ranks by the accuracy on the worst region, without ``Other``:

    afield bench fmow_wilds --metric worst_group

It stands for ``--targets test --validate-on val --report whole --group region`` as well.

The split id_test, which WILDS reports beside the others, is left out. License: FMoW Challenge
Public License.

Differs from WILDS: there a domain is a region in a year, and network and hyperparameters are
others; here they are those of `fmow`.
"""

from dataclasses import replace

from afield.data.datasets.fmow import REGIONS, WILDS, fmow

__all__ = ["fmow_wilds"]

DOMAINS = (*REGIONS, "val", "test")

fmow_wilds = replace(
    fmow,
    name="fmow_wilds",
    domains=DOMAINS,
    reader=WILDS.official_reader(DOMAINS),
    training=replace(fmow.training, group="region"),
    test_domains=("test",),
    validation_domains=("val",),
)
