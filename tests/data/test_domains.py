"""A dataset of domains: how it is read and checked, and how a domain is cut in two."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from afield.data.domains import (
    UNKNOWN,
    Domain,
    DomainSet,
    ReadOptions,
    classes_by_domain,
    data_root,
    missing_class_warnings,
    parts,
    relabel,
    source_classes,
    uses_all_classes,
)
from afield.errors import DataError, SpecError, UnknownNameError


def domain(n: int = 6, classes: int = 2) -> Domain:
    return Domain(x=torch.arange(2.0 * n).view(n, 2), y=torch.arange(n) % classes)


def dataset(result: dict[str, Domain], *, names: tuple[str, ...] | None = None) -> DomainSet:
    return DomainSet(
        name="things",
        domains=names or tuple(result),
        classes=("cup", "pot"),
        reader=lambda root: result,
    )


def as_lists(cut) -> list[list[int]]:
    return [part.tolist() for part in cut]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 9, 10, 11, 100, 997])
def test_a_cut_is_80_to_20_disjoint_and_complete(size):
    main, probe = parts(size, trial=0, domain="sketch")
    assert sorted([*main.tolist(), *probe.tolist()]) == list(range(size))
    assert len(probe) == max(1, size * 20 // 100)


def test_a_cut_is_the_same_for_the_same_trial_and_domain_whatever_happens_in_between():
    before = as_lists(parts(50, trial=1, domain="photo"))
    torch.manual_seed(3)
    for other in ("art", "sketch"):
        parts(80, trial=1, domain=other)
    assert as_lists(parts(50, trial=1, domain="photo")) == before


def test_another_trial_or_domain_is_cut_otherwise():
    cuts = [
        tuple(parts(50, trial=trial, domain=name).probe.tolist())
        for trial in range(5)
        for name in ("photo", "sketch")
    ]
    assert len(set(cuts)) == len(cuts)


def test_over_trials_every_sample_is_in_the_probe_part_about_equally_often():
    trials, size = 400, 20
    counts = torch.zeros(size)
    for trial in range(trials):
        counts[parts(size, trial=trial, domain="photo").probe] += 1
    # Five standard deviations of a binomial count.
    assert (counts - 0.2 * trials).abs().max() < 5 * (trials * 0.2 * 0.8) ** 0.5


def changed(**values: torch.Tensor) -> DomainSet:
    """A dataset whose second domain has other samples or labels."""
    plain = domain()
    return dataset({"a": plain, "b": Domain(values.get("x", plain.x), values.get("y", plain.y))})


def with_value(value: float) -> torch.Tensor:
    x = domain().x
    x[4, 1] = value
    return x


NO_NUMBER = "things: domain 'b': NaN or infinity in sample 4"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: parts(0, trial=0, domain="sketch"), SpecError, "'sketch' has 0 sample"),
        (lambda: parts(1, trial=0, domain="sketch"), SpecError, "'sketch' has 1 sample"),
        (
            lambda: dataset({"photo": domain(), "sketch": domain()}).without("photo", "skech"),
            UnknownNameError,
            "things has no domain 'skech'; did you mean 'sket",
        ),
        (lambda: changed(x=with_value(float("nan"))).load(), DataError, NO_NUMBER),
        (lambda: changed(x=with_value(float("inf"))).load(), DataError, NO_NUMBER),
        (lambda: changed(x=with_value(-float("inf"))).load(), DataError, NO_NUMBER),
        (lambda: changed(y=domain().y[:5]).load(), DataError, "domain 'b': 6 samples but 5 labels"),
        # No domain may have the name of a column of tables.
        (lambda: dataset({"mean": domain(), "b": domain()}), SpecError, "named 'mean'"),
        (lambda: dataset({"worst": domain(), "b": domain()}), SpecError, "named 'worst'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_without_leaves_out_what_is_named_and_keeps_the_order():
    things = dataset({name: domain() for name in ("c", "a", "b")})
    assert things.without() == ("c", "a", "b")
    assert things.without("a") == ("c", "b")
    assert things.without("b", "c") == ("a",)


def test_domains_are_loaded_in_the_declared_order():
    things = dataset({"b": domain(), "a": domain()}, names=("a", "b"))
    assert list(things.load()) == ["a", "b"]


def test_the_reader_gets_the_given_root_or_that_of_the_environment(tmp_path, monkeypatch):
    roots = []
    things = DomainSet(
        "things", ("a",), ("cup",), reader=lambda r: roots.append(r) or {"a": domain()}
    )
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "env"))
    things.load()
    things.load(ReadOptions(tmp_path / "given", side=7))
    assert roots == [ReadOptions(tmp_path / "env"), ReadOptions(tmp_path / "given", side=7)]


def test_the_data_root_may_begin_at_home_and_is_there_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AFIELD_DATA", "~/data")
    assert data_root() == tmp_path / "data"
    monkeypatch.setenv("AFIELD_DATA", "")
    assert data_root().is_relative_to(Path.home())


def test_one_gets_a_dataset_again_by_its_origin_or_else_by_its_name():
    things = dataset({"a": domain()})
    own = DomainSet("mine", ("a",), ("cup",), reader=things.reader, origin="/data/mine.npz")
    assert things.spec == "things"
    assert own.spec == "/data/mine.npz"


CLASSES = ("cup", "jug", "owl", "pot")
DOMAINS = {
    "photo": Domain(torch.zeros(4, 1), torch.tensor([0, 1, 3, 3])),
    "sketch": Domain(torch.zeros(3, 1), torch.tensor([1, 3, 1])),
    "zoo": Domain(torch.zeros(3, 1), torch.tensor([2, 0, 1])),
}
SET = DomainSet("things", tuple(DOMAINS), CLASSES, reader=lambda _: DOMAINS)


def test_every_domain_has_the_classes_of_its_samples():
    classes = classes_by_domain(DOMAINS, CLASSES)
    assert classes == {
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
    assert source_classes(SET, classes_by_domain(DOMAINS, CLASSES), sources) == kept
    assert source_classes(SET, None, sources) == ()


def test_labels_are_numbered_by_the_shorter_list():
    relabeled = relabel(DOMAINS, CLASSES, ("jug", "pot"))
    assert relabeled["photo"].y.tolist() == [UNKNOWN, 0, 1, 1]
    assert relabeled["zoo"].y.tolist() == [UNKNOWN, UNKNOWN, 0]
    assert relabeled["photo"].x is DOMAINS["photo"].x
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
