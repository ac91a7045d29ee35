"""A dataset of domains: how it is read and checked, and how a domain is cut in two."""

from pathlib import Path

import pytest
import torch

from afield.data.domains import Domain, DomainSet, ReadOptions, data_root, parts
from afield.errors import DataError, SpecError, UnknownNameError


def domain(n: int = 6, classes: int = 2) -> Domain:
    return Domain(x=torch.arange(2.0 * n).view(n, 2), y=torch.arange(n) % classes)


def dataset(found: dict[str, Domain], *, names: tuple[str, ...] | None = None) -> DomainSet:
    return DomainSet(
        name="things",
        domains=names or tuple(found),
        classes=("cup", "pot"),
        reader=lambda root: found,
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
        (
            lambda: changed(y=domain().y[:5]).load(),
            DataError,
            "domain 'b': 6 samples but 5 labels",
        ),
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
