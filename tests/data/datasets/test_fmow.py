import sys

import pytest

from afield.data.datasets.fmow import REGIONS, fmow
from afield.errors import DataError
from tests.data.datasets.trees import assert_labels_fit, loaded, needs_wilds, painted

pytestmark = needs_wilds

COUNTRIES = {"EGY": "Africa", "PER": "Americas", "JPN": "Asia", "FIN": "Europe", "FJI": "Oceania"}


def table(root, countries):
    """Four pictures of each country, one of them kept back by the challenge and not there."""
    folder = root / "fmow_v1.1"
    lines = ["category,country_code,split,timestamp\n"]
    # The regions' numbers in the metadata are in the order in which they come.
    for i, country in enumerate(sorted(countries, reverse=True) * 4):
        label = i * 5 % len(fmow.classes)
        part = ("train", "val", "test", "seq")[i % 4]
        if part != "seq":
            region = REGIONS.index(COUNTRIES.get(country, "Other"))
            painted(folder / "images" / f"rgb_img_{i}.png", label=label, domain=region)
        year = 2002 + i % 16
        lines.append(f"{fmow.classes[label]},{country},{part},{year}-03-01T10:00:00Z\n")
    (folder / "rgb_metadata.csv").write_text("".join(lines))
    mapping = "".join(f"{code},{region}\n" for code, region in COUNTRIES.items())
    (folder / "country_code_mapping.csv").write_text(f"alpha-3,region\n{mapping}")
    (folder / "RELEASE_v1.1.txt").touch()
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))


def test_regions_and_labels_are_those_of_the_metadata(tmp_path):
    found = loaded(fmow, table(tmp_path, [*COUNTRIES, "XXX"]))
    assert tuple(found) == REGIONS
    assert_labels_fit(found)
    assert sum(len(domain.y) for domain in found.values()) == 18
    assert list(fmow.classes) == sys.modules["wilds.datasets.fmow_dataset"].categories


def test_metadata_without_a_region_are_reported(tmp_path):
    with pytest.raises(DataError, match="region 'Other' is not in the metadata"):
        loaded(fmow, table(tmp_path, list(COUNTRIES)))
