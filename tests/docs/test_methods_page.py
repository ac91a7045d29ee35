"""The page from which a method is chosen has all of them, in the words of the registry."""

import re
from pathlib import Path

from afield import registry

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
FAMILIES, DOMAINBED = PAGE.split("## Names in DomainBed")
# What DomainBed's list of algorithms had in 2024.
ALGORITHMS = [
    "ERM", "ERMPlusPlus", "URM", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN",
    "CDANN", "MTL", "SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg",
    "Fishr", "TRM", "IB_ERM", "IB_IRM", "CAD", "CondCAD", "Transfer", "CausIRL_CORAL",
    "CausIRL_MMD", "EQRM", "RDM", "ADRMX",
]  # fmt: skip


def test_every_method_is_in_one_family_with_its_sentence():
    rows = re.findall(r"^\| \[`(\w+)`\]\(reference/methods\.md#(\w+)\) \| (.+?) \|", FAMILIES, re.M)
    names = [name for name, _, _ in rows]
    assert sorted(names) == sorted(registry.names("methods"))
    for name, anchor, sentence in rows:
        assert anchor == name
        assert sentence == registry.summary("methods", name), name
    assert f"afield has {len(names)} methods" in PAGE


def test_every_algorithm_of_domainbed_has_a_name_here():
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \|", DOMAINBED, re.M)
    assert [theirs for theirs, _ in rows] == ALGORITHMS
    assert {ours for _, ours in rows} <= set(registry.names("methods"))
