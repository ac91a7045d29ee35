"""What a run trains on and is examined on: nothing of an unseen domain, and no more than asked."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from afield.domains import Domain, DomainSet, parts
from afield.evaluation import PARTS, Checkpoint, Exam, Score, Scores, merged_scores
from afield.material import CURVE_SAMPLES, Material
from afield.record import Run
from afield.selection import RULES

NAMES = ("art", "photo", "sketch")
CPU = torch.device("cpu")


def domains(names=NAMES, *, size: int = 30) -> dict[str, Domain]:
    found = {}
    for i, name in enumerate(names):
        generator = torch.Generator().manual_seed(i)
        y = torch.arange(size + 5 * i) % 2
        x = (1 + i) * torch.randn(len(y), 2, generator=generator) + 3 * i
        found[name] = Domain(x, y)
    return found


def dataset(found: dict[str, Domain]) -> DomainSet:
    return DomainSet("things", tuple(found), ("cup", "pot"), reader=lambda root: found)


def run(sources=("art", "photo"), *, rules=tuple(RULES), trial: int = 0) -> Run:
    return Run(dataset="things", method="erm", sources=sources, rules=rules, trial=trial)


def material(asked: Run, found: dict[str, Domain]) -> Material:
    return Material.of(asked, dataset(found), found, CPU)


def garbage(n: int) -> Domain:
    generator = torch.Generator().manual_seed(99)
    x = 1e6 * torch.randn(n, 2, generator=generator)
    return Domain(x, torch.randint(2, (n,), generator=generator))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 2)


def read(scores) -> set[tuple[str, str]]:
    """Which parts of which domains were read."""
    pairs = ((name, part) for name in scores for part in PARTS)
    return {(name, part) for name, part in pairs if getattr(scores[name], part) is not None}


def unread_best() -> Checkpoint:
    return Checkpoint(7, {"art": Scores(probe=Score(0.5, 0.5, 1.0, 6))}, {"loss": 2.0})


def seen(samples) -> torch.Tensor:
    """All samples as a network sees them."""
    return samples.batch(torch.arange(len(samples))).x


@pytest.mark.parametrize("size", [40, 25])
@pytest.mark.parametrize("sources", [("art", "photo"), ("sketch",), ("photo", "sketch")])
def test_nothing_of_an_unseen_domain_is_in_the_samples(sources, size):
    found = domains()
    before = material(run(sources), found).samples
    wrecked = {name: d if name in sources else garbage(size) for name, d in found.items()}
    after = material(run(sources), wrecked).samples
    assert torch.equal(seen(after), seen(before))
    assert torch.equal(after.y, before.y)
    assert torch.equal(after.domain, before.domain)


def test_nothing_of_the_sources_probe_parts_is_in_the_samples():
    found = domains()
    before = seen(material(run(), found).samples)
    for name, domain in found.items():
        domain.x[parts(len(domain.y), trial=0, domain=name).probe] = 1e6
    assert torch.equal(seen(material(run(), found).samples), before)


def test_a_further_unseen_domain_changes_no_sample():
    more = domains((*NAMES, "clipart"))
    fewer = {name: more[name] for name in NAMES}
    first, second = (seen(material(run(), each).samples) for each in (more, fewer))
    assert torch.equal(first, second)


def test_samples_are_the_scaled_main_parts_of_the_sources_in_their_order():
    found = domains()
    samples = material(run(("photo", "art"), trial=3), found).samples
    cuts = {name: parts(len(found[name].y), trial=3, domain=name).main for name in NAMES}
    raw = torch.cat([found[name].x[cuts[name]] for name in ("photo", "art")])
    expected = (raw - raw.mean(0)) / raw.std(0, correction=0)
    torch.testing.assert_close(seen(samples), expected)
    assert samples.y.tolist() == [
        int(found[name].y[i]) for name in ("photo", "art") for i in cuts[name]
    ]
    assert samples.domain.bincount().tolist() == [len(cuts["photo"]), len(cuts["art"])]


def test_another_trial_trains_on_other_samples():
    found = domains()
    first, second = (material(run(trial=trial), found).samples for trial in (0, 1))
    assert not torch.equal(first.y, second.y) or not torch.equal(first.x, second.x)
    assert len(first) == len(second)


PROBES = {("art", "probe"), ("photo", "probe")}


@pytest.mark.parametrize(
    ("rules", "always", "at_last", "at_best"),
    [
        (("sources",), {"sample"}, set(), {"main"}),
        (("target",), {"sample"}, {"main", "probe"}, set()),
        (("sources", "target"), {"sample"}, {"main", "probe"}, {"main"}),
        (("left-out-source",), {"main"}, set(), set()),
        (("sources", "left-out-source"), {"main"}, set(), set()),
        (tuple(RULES), {"main"}, {"probe"}, set()),
    ],
)
def test_of_the_target_is_read_what_the_rules_ask_and_no_more(rules, always, at_last, at_best):
    exams = material(run(rules=rules), domains()).exams

    def target(read_parts: set[str]) -> set[tuple[str, str]]:
        return {("sketch", part) for part in read_parts}

    assert read(exams.take(model())) == PROBES | target(always)
    assert read(exams.last.take(model())) == target(at_last)
    assert read(exams.best.take(model())) == target(at_best)
    completed = exams.completed(unread_best(), model(), exams.best)
    assert read(completed.scores) == {("art", "probe")} | target(at_best)


def test_with_two_unseen_domains_both_are_read():
    exams = material(run(("photo",), rules=("left-out-source",)), domains()).exams
    expected = {("photo", "probe"), ("art", "main"), ("sketch", "main")}
    assert read(exams.take(model())) == expected


def test_with_no_unseen_domain_the_sources_alone_are_read():
    exams = material(run(NAMES), domains()).exams
    assert read(exams.take(model())) == {(name, "probe") for name in NAMES}
    assert exams.last.take(model()) == exams.best.take(model()) == {}


@pytest.mark.parametrize("rules", [("sources", "target"), ("left-out-source",), tuple(RULES)])
def test_scores_are_those_of_the_parts_cut_and_scaled_by_hand(rules):
    found = domains()
    prepared = material(run(rules=rules, trial=2), found)
    cuts = {name: parts(len(domain.y), trial=2, domain=name) for name, domain in found.items()}
    raw = torch.cat([found[name].x[cuts[name].main] for name in ("art", "photo")])
    mean, std = raw.mean(0), raw.std(0, correction=0)
    exams = prepared.exams
    taken = merged_scores(exams.take(model()), exams.last.take(model()), NAMES)
    for name, part in sorted(read(taken) - {("sketch", "sample")}):
        index = getattr(cuts[name], part)
        portion = Domain((found[name].x[index] - mean) / std, found[name].y[index])
        expected = getattr(Exam({(name, part): portion}).take(model())[name], part)
        assert vars(getattr(taken[name], part)) == pytest.approx(vars(expected), rel=1e-5)


@pytest.mark.parametrize(("sources", "unseen"), [(("art", "photo"), 1), (("art",), 2)])
def test_curves_read_a_bounded_sample_of_the_unseen_domains(sources, unseen):
    exams = material(run(sources, rules=("sources",)), domains(size=300)).exams
    taken = exams.take(model())
    sizes = [scores.sample.size for scores in taken.values() if scores.sample]
    assert sizes == [CURVE_SAMPLES // unseen] * unseen


def test_a_completed_checkpoint_keeps_what_it_had():
    exams = material(run(rules=("sources",)), domains()).exams
    before = unread_best()
    after = exams.completed(before, model(), exams.best)
    assert replace(after, scores=before.scores) == before
    assert after.scores["art"] == before.scores["art"]
    assert after.score("sketch", "main").size == len(domains()["sketch"].y) - 8


def test_scores_come_in_the_order_of_the_dataset():
    exams = material(run(("sketch", "art")), domains()).exams
    assert tuple(exams.take(model())) == NAMES
