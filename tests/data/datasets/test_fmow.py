import sys

import pytest

from afield.data.datasets.fmow import REGIONS, fmow
from afield.errors import DataError
from tests.data.datasets.trees import COUNTRIES, assert_labels_fit, fmow_files, loaded, needs_wilds

pytestmark = [needs_wilds, pytest.mark.usefixtures("own_cache")]


def files(root, countries):
    """Four pictures of each country, one of them kept back by the challenge and not there."""
    # The regions' numbers in the metadata are in the order in which they come.
    images = [
        (i * 5 % len(fmow.classes), country, ("train", "val", "test", "seq")[i % 4], 2002 + i % 16)
        for i, country in enumerate(sorted(countries, reverse=True) * 4)
    ]
    return fmow_files(root, images)


def test_regions_and_labels_are_those_of_the_metadata(tmp_path):
    domains = loaded(fmow, files(tmp_path, [*COUNTRIES, "XXX"]))
    assert tuple(domains) == REGIONS
    assert_labels_fit(domains)
    assert sum(len(domain.y) for domain in domains.values()) == 18
    assert list(fmow.classes) == sys.modules["wilds.datasets.fmow_dataset"].categories


def test_metadata_without_a_region_are_reported(tmp_path):
    with pytest.raises(DataError, match="region 'Other' is not in the metadata"):
        loaded(fmow, files(tmp_path, list(COUNTRIES)))
