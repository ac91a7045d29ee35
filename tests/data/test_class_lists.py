"""Which classes a training knows."""

from dataclasses import replace

import pytest
import torch

from afield.data.domains import (
    UNKNOWN,
    Domain,
    DomainSet,
    classes_by_domain,
    missing_class_warnings,
    relabel,
    source_classes,
    uses_all_classes,
)

CLASSES = ("cup", "jug", "owl", "pot")
DOMAINS = {
    "photo": Domain(torch.zeros(4, 1), torch.tensor([0, 1, 3, 3])),
    "sketch": Domain(torch.zeros(3, 1), torch.tensor([1, 3, 1])),
    "zoo": Domain(torch.zeros(3, 1), torch.tensor([2, 0, 1])),
}
SET = DomainSet("things", tuple(DOMAINS), CLASSES, reader=lambda _: DOMAINS)


def test_every_domain_has_the_classes_of_its_samples():
    found = classes_by_domain(DOMAINS, CLASSES)
    assert found == {
        "photo": {"cup", "jug", "pot"},
        "sketch": {"jug", "pot"},
        "zoo": {"owl", "cup", "jug"},
    }


@pytest.mark.parametrize(
    ("sources", "kept"),
    [
        (("photo", "sketch"), ("cup", "jug", "pot")),
        (("sketch",), ("jug", "pot")),
        (("sketch", "zoo"), ()),
        (("photo", "sketch", "zoo"), ()),
    ],
)
def test_sources_have_the_classes_of_any_of_them_and_all_is_empty(sources, kept):
    known = classes_by_domain(DOMAINS, CLASSES)
    assert source_classes(SET, known, sources) == kept
    assert source_classes(SET, None, sources) == ()


def test_labels_are_numbered_by_the_shorter_list():
    found = relabel(DOMAINS, CLASSES, ("jug", "pot"))
    assert found["photo"].y.tolist() == [UNKNOWN, 0, 1, 1]
    assert found["zoo"].y.tolist() == [UNKNOWN, UNKNOWN, 0]
    assert found["photo"].x is DOMAINS["photo"].x
    assert relabel(DOMAINS, CLASSES, ()) == DOMAINS


def test_own_data_use_the_classes_of_the_sources_and_named_datasets_all():
    own = replace(SET, origin="/somewhere")
    assert uses_all_classes(SET)
    assert not uses_all_classes(own)
    assert uses_all_classes(own, "all")
    assert not uses_all_classes(SET, "sources")


def test_a_gap_names_the_domain_and_the_classes_that_it_lacks():
    gaps = missing_class_warnings({name: DOMAINS[name] for name in ("sketch", "photo")}, CLASSES)
    assert gaps == [
        "domain 'sketch' has no sample of class 'cup', 'owl'",
        "domain 'photo' has no sample of class 'owl'",
    ]


def test_complete_domains_have_no_gaps():
    assert missing_class_warnings({"sketch": DOMAINS["photo"]}, ("cup", "jug", "x", "pot")) == [
        "domain 'sketch' has no sample of class 'x'"
    ]
    whole = Domain(torch.zeros(2, 1), torch.tensor([1, 0]))
    assert missing_class_warnings({"photo": whole}, ("cup", "pot")) == []
