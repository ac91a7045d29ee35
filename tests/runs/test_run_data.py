"""What a run trains on and is examined on: nothing of an unseen domain, and no more than asked."""

import json
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import afield as package
from afield.data.domains import Domain, DomainSet, parts
from afield.data.lookup import find_dataset
from afield.data.modalities.image import Image
from afield.errors import AfieldError, SpecError
from afield.runs.record import Record
from afield.runs.run import Run
from afield.runs.run_data import (
    CHEAP_CURVE_SAMPLES,
    RunData,
    split_domains,
    training_rows,
)
from afield.runs.run_setup import load_domains
from afield.runs.selection import RULES
from afield.studies.planning import plan_run
from afield.training.evaluation import Evaluator, combine_scores
from afield.training.scores import PARTS, Checkpoint, Score, Scores
from tests.stores import score

NAMES = ("art", "photo", "sketch")
CPU = torch.device("cpu")


def domains(names=NAMES, *, size: int = 30) -> dict[str, Domain]:
    loaded = {}
    for i, name in enumerate(names):
        generator = torch.Generator().manual_seed(i)
        y = torch.arange(size + 5 * i) % 2
        x = (1 + i) * torch.randn(len(y), 2, generator=generator) + 3 * i
        loaded[name] = Domain(x, y)
    return loaded


def dataset(loaded: dict[str, Domain]) -> DomainSet:
    return DomainSet("things", tuple(loaded), ("cup", "pot"), reader=lambda root: loaded)


def run(sources=("art", "photo"), *, rules=tuple(RULES), trial: int = 0) -> Run:
    return Run(dataset="things", method="erm", sources=sources, rules=rules, trial=trial)


def material(asked: Run, loaded: dict[str, Domain]) -> RunData:
    return RunData.of(asked, dataset(loaded), loaded, CPU)


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


def numbers(score: Score) -> dict[str, float]:
    """All but the details, which curves do not have."""
    return {
        field.name: getattr(score, field.name)
        for field in fields(score)
        if field.name
        not in ("metrics", "confusion", "groups", "unseen_classes", "unseen_confidence")
    }


def unread_best() -> Checkpoint:
    return Checkpoint(7, {"art": Scores(probe=Score(0.5, 0.5, 1.0, 6))}, {"loss": 2.0})


def seen(samples) -> torch.Tensor:
    """All samples as a network sees them."""
    return samples.batch(torch.arange(len(samples))).x


@pytest.mark.parametrize("size", [40, 25])
@pytest.mark.parametrize("sources", [("art", "photo"), ("sketch",), ("photo", "sketch")])
def test_nothing_of_an_unseen_domain_is_in_the_samples(sources, size):
    loaded = domains()
    before = material(run(sources), loaded).samples
    wrecked = {name: d if name in sources else garbage(size) for name, d in loaded.items()}
    after = material(run(sources), wrecked).samples
    assert torch.equal(seen(after), seen(before))
    assert torch.equal(after.y, before.y)
    assert torch.equal(after.domain, before.domain)


@pytest.mark.parametrize("lists", [False, True])
def test_nothing_of_the_sources_probe_parts_is_in_the_samples(lists):
    loaded = listed(domains()) if lists else domains()
    before = seen(material(run(), loaded).samples)
    for name, domain in loaded.items():
        probe = domain.test if lists else parts(len(domain.y), trial=0, domain=name).probe
        domain.x[probe] = 1e6
    assert torch.equal(seen(material(run(), loaded).samples), before)


def test_a_further_unseen_domain_changes_no_sample():
    more = domains((*NAMES, "clipart"))
    fewer = {name: more[name] for name in NAMES}
    first, second = (seen(material(run(), each).samples) for each in (more, fewer))
    assert torch.equal(first, second)


def test_samples_are_the_scaled_main_parts_of_the_sources_in_their_order():
    loaded = domains()
    samples = material(run(("photo", "art"), trial=3), loaded).samples
    cuts = {name: parts(len(loaded[name].y), trial=3, domain=name).main for name in NAMES}
    raw = torch.cat([loaded[name].x[cuts[name]] for name in ("photo", "art")])
    expected = (raw - raw.mean(0)) / raw.std(0, correction=0)
    torch.testing.assert_close(seen(samples), expected)
    assert samples.y.tolist() == [
        int(loaded[name].y[i]) for name in ("photo", "art") for i in cuts[name]
    ]
    assert samples.domain.bincount().tolist() == [len(cuts["photo"]), len(cuts["art"])]


def test_another_trial_trains_on_other_samples():
    loaded = domains()
    first, second = (material(run(trial=trial), loaded).samples for trial in (0, 1))
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
    evaluations = material(run(rules=rules), domains()).evaluations

    def target(read_parts: set[str]) -> set[tuple[str, str]]:
        return {("sketch", part) for part in read_parts}

    assert read(evaluations.evaluate(model())) == PROBES | target(always)
    assert read(evaluations.last.evaluate(model())) == target(at_last)
    assert read(evaluations.best.evaluate(model())) == target(at_best)
    completed = evaluations.add_scores(unread_best(), model(), evaluations.best)
    assert read(completed.scores) == {("art", "probe")} | target(at_best)


def test_with_two_unseen_domains_both_are_read():
    evaluations = material(run(("photo",), rules=("left-out-source",)), domains()).evaluations
    expected = {("photo", "probe"), ("art", "main"), ("sketch", "main")}
    assert read(evaluations.evaluate(model())) == expected


def test_with_no_unseen_domain_the_sources_alone_are_read():
    evaluations = material(run(NAMES), domains()).evaluations
    assert read(evaluations.evaluate(model())) == {(name, "probe") for name in NAMES}
    assert evaluations.last.evaluate(model()) == evaluations.best.evaluate(model()) == {}


@pytest.mark.parametrize("rules", [("sources", "target"), ("left-out-source",), tuple(RULES)])
def test_scores_are_those_of_the_parts_cut_and_scaled_by_hand(rules):
    loaded = domains()
    prepared = material(run(rules=rules, trial=2), loaded)
    cuts = {name: parts(len(domain.y), trial=2, domain=name) for name, domain in loaded.items()}
    raw = torch.cat([loaded[name].x[cuts[name].main] for name in ("art", "photo")])
    mean, std = raw.mean(0), raw.std(0, correction=0)
    evaluations = prepared.evaluations
    taken = combine_scores(evaluations.evaluate(model()), evaluations.last.evaluate(model()), NAMES)
    for name, part in sorted(read(taken) - {("sketch", "sample")}):
        index = getattr(cuts[name], part)
        portion = Domain((loaded[name].x[index] - mean) / std, loaded[name].y[index])
        # The sources' probe parts are read at every checkpoint; their confidence is in no table.
        looked = name not in ("art", "photo") or "left-out-source" in rules
        expected = getattr(Evaluator({(name, part): portion}).evaluate(model())[name], part)
        score = numbers(getattr(taken[name], part))
        if not looked:
            assert score.pop("calibration_error") is score.pop("accuracy_at_90") is None
        assert score == pytest.approx({what: getattr(expected, what) for what in score}, rel=1e-5)


@pytest.mark.parametrize(("sources", "unseen"), [(("art", "photo"), 1), (("art",), 2)])
def test_curves_read_a_bounded_sample_of_the_unseen_domains(sources, unseen):
    evaluations = material(run(sources, rules=("sources",)), domains(size=6000)).evaluations
    taken = evaluations.evaluate(model())
    sizes = [scores.sample.size for scores in taken.values() if scores.sample]
    assert sizes == [CHEAP_CURVE_SAMPLES // unseen] * unseen


def test_a_completed_checkpoint_keeps_what_it_had():
    evaluations = material(run(rules=("sources",)), domains()).evaluations
    before = unread_best()
    after = evaluations.add_scores(before, model(), evaluations.best)
    assert replace(after, scores=before.scores) == before
    assert after.scores["art"] == before.scores["art"]
    assert after.score("sketch", "main").size == len(domains()["sketch"].y) - 8


def test_scores_come_in_the_order_of_the_dataset():
    evaluations = material(run(("sketch", "art")), domains()).evaluations
    assert tuple(evaluations.evaluate(model())) == NAMES


def listed(loaded: dict[str, Domain]) -> dict[str, Domain]:
    """The domains with official lists: every fifth sample is on the test list."""
    return {
        name: replace(domain, test=torch.arange(len(domain.y)) % 5 == 2)
        for name, domain in loaded.items()
    }


def in_samples(samples, loaded: dict[str, Domain], source: str) -> list[int]:
    """Which samples of a source are trained on, by their stored values."""
    number = list(loaded).index(source)
    stored = samples.x.take((samples.domain == number).nonzero().flatten())
    where = (stored[:, None] == loaded[source].x[None]).flatten(2).all(2)
    assert (where.sum(1) == 1).all()
    return where.nonzero()[:, 1].tolist()


def test_a_limit_leaves_so_many_samples_of_each_class_and_source():
    loaded = domains(size=40)
    loaded["photo"] = Domain(loaded["photo"].x, (torch.arange(45) % 15 == 0).long())
    plain, limited = (material(replace(run(), limit=limit), loaded).samples for limit in (0, 4))
    for domain in (0, 1):
        chosen, there = (each.y[each.domain == domain].bincount() for each in (limited, plain))
        assert torch.equal(chosen, there.clamp(max=4))
    assert there.min() < 4
    for source in ("art", "photo"):
        assert set(in_samples(limited, loaded, source)) <= set(in_samples(plain, loaded, source))


def test_a_limit_that_nothing_exceeds_changes_nothing():
    loaded = domains()
    plain, limited = (material(replace(run(), limit=limit), loaded) for limit in (0, 999))
    assert torch.equal(seen(limited.samples), seen(plain.samples))


def test_a_limit_changes_no_evaluation():
    loaded = domains()
    asked = run(rules=("sources", "target"))
    plain, limited = (material(replace(asked, limit=limit), loaded).evaluations for limit in (0, 2))
    for evaluation in ("regular", "last", "best"):
        before, after = getattr(plain, evaluation), getattr(limited, evaluation)
        assert after.keys == before.keys
        every = torch.arange(len(before.x))
        assert torch.equal(after.x.take(every), before.x.take(every))


@pytest.mark.parametrize("lists", [False, True])
def test_a_limit_keeps_other_samples_in_another_trial_and_the_same_in_the_same(lists):
    loaded = listed(domains()) if lists else domains()
    first, again, other = (
        in_samples(material(replace(run(trial=trial), limit=3), loaded).samples, loaded, "art")
        for trial in (0, 0, 1)
    )
    assert first == again != other


def test_sources_train_on_their_train_lists_and_validate_on_their_test_lists():
    loaded = listed(domains())
    prepared = material(run(rules=("sources",)), loaded)
    for source in ("art", "photo"):
        on_train = (~loaded[source].test).nonzero().flatten().tolist()
        assert sorted(in_samples(prepared.samples, loaded, source)) == on_train
    taken = prepared.evaluations.evaluate(model())
    for source in ("art", "photo"):
        assert taken[source].probe.size == int(loaded[source].test.sum())


def test_an_unseen_domain_reports_on_its_test_list():
    loaded = listed(domains())
    prepared = material(run(rules=("target",)), loaded)
    mean, std = prepared.scaling.mean, prepared.scaling.std
    (taken,) = prepared.evaluations.last.evaluate(model()).values()
    for part, index in (("main", loaded["sketch"].test), ("probe", ~loaded["sketch"].test)):
        portion = Domain((loaded["sketch"].x[index] - mean) / std, loaded["sketch"].y[index])
        expected = getattr(Evaluator({("sketch", part): portion}).evaluate(model())["sketch"], part)
        assert numbers(getattr(taken, part)) == pytest.approx(numbers(expected), rel=1e-5)


def test_lists_are_the_same_in_every_trial():
    loaded = listed(domains())
    first, second = (seen(material(run(trial=trial), loaded).samples) for trial in (0, 1))
    assert torch.equal(first, second)


def test_with_lists_too_nothing_of_an_unseen_domain_is_in_the_samples():
    loaded = listed(domains())
    before = material(run(), loaded)
    wrecked = {**loaded, "sketch": replace(garbage(50), test=torch.arange(50) % 2 == 0)}
    after = material(run(), wrecked)
    assert torch.equal(seen(after.samples), seen(before.samples))
    assert torch.equal(after.scaling.mean, before.scaling.mean)


def test_curves_read_all_classes_of_an_unseen_domain_whose_files_lie_by_class():
    loaded = domains(size=1000)
    loaded["sketch"] = Domain(loaded["sketch"].x, (torch.arange(1010) >= 505).long())
    evaluation = material(run(rules=("sources",)), listed(loaded)).evaluations.regular
    (number,) = [i for i, key in enumerate(evaluation.keys) if key == ("sketch", "sample")]
    assert set(evaluation.labels[evaluation.split_index == number].tolist()) == {0, 1}


def curve_samples(loaded, **fields):
    """How many samples of the unseen domain a curve reads at a checkpoint."""
    scores = material(replace(run(rules=("sources",)), **fields), loaded).evaluations.regular
    number = scores.keys.index(("sketch", "sample"))
    return int((scores.split_index == number).sum()), len(loaded["sketch"].y)


def test_curves_read_the_whole_test_split_where_samples_are_small():
    read_samples, size = curve_samples(listed(domains(size=1000)))
    test_split = int(listed(domains(size=1000))["sketch"].test.sum())
    assert 64 < read_samples == test_split <= size


def test_curves_read_512_samples_where_images_are_large():
    shape = (3, 40, 40)
    loaded = {
        name: replace(domain, x=torch.zeros(len(domain.y), *shape))
        for name, domain in domains(size=1000).items()
    }
    assert curve_samples(loaded)[0] == 512


MANY = tuple("abcdefgh")


def held_out(*, rules=("validation", "target"), tested=("g", "h")) -> Run:
    """Trained on the first four, validated on two, tested on two."""
    return replace(run(MANY[:4], rules=rules), tested=tested)


def test_validation_domains_are_read_whole_at_every_checkpoint_and_test_domains_are_not():
    evaluations = material(held_out(), domains(MANY)).evaluations
    sources = {(name, "probe") for name in MANY[:4]}
    validated = {(name, part) for name in "ef" for part in ("main", "probe")}
    sampled = {(name, "sample") for name in "gh"}
    assert read(evaluations.evaluate(model())) == sources | validated | sampled
    tests = {(name, part) for name in "gh" for part in ("main", "probe")}
    assert read(evaluations.last.evaluate(model())) == tests
    assert read(evaluations.best.evaluate(model())) == {("g", "main"), ("h", "main")}
    sizes = {name: len(domain.y) for name, domain in domains(MANY).items()}
    for name, scores in evaluations.evaluate(model()).items():
        if name in "ef":
            assert scores.main.size + scores.probe.size == sizes[name]


def test_of_validation_and_test_domains_nothing_is_in_the_samples():
    loaded = domains(MANY)
    before = material(held_out(), loaded)
    wrecked = {name: d if name in MANY[:4] else garbage(40) for name, d in loaded.items()}
    after = material(held_out(), wrecked)
    assert torch.equal(seen(after.samples), seen(before.samples))
    assert torch.equal(after.scaling.std, before.scaling.std)


def pictures(names=NAMES, *, shape=(3, 18, 18)) -> dict[str, Domain]:
    loaded = {}
    for i, name in enumerate(names):
        generator = torch.Generator().manual_seed(i)
        x = torch.randint(256, (24 + i, *shape), dtype=torch.uint8, generator=generator)
        loaded[name] = Domain(x, torch.arange(24 + i) % 2)
    return loaded


@pytest.mark.parametrize("size", [0, 18, 16])
def test_pictures_are_brought_to_the_size_that_is_asked_for(size):
    prepared = material(replace(run(), size=size), pictures())
    side = size or 18
    assert prepared.shape == (3, side, side)
    assert seen(prepared.samples).shape[1:] == prepared.shape
    evaluation = prepared.evaluations.regular
    assert evaluation.prepare(evaluation.x.take(torch.arange(4))).shape == (4, *prepared.shape)


def test_features_have_no_size():
    assert material(replace(run(), size=64), domains()).shape == (2,)


def test_training_batches_alone_are_augmented_and_both_have_one_size():
    prepared = material(replace(run(), size=16, augment="light"), pictures())
    samples, index = prepared.samples, torch.arange(6)
    plain = samples.batch(index).x
    varied = [samples.batch(index, torch.Generator().manual_seed(i)).x for i in (0, 0, 1)]
    assert plain.shape == varied[0].shape == (6, 3, 16, 16)
    assert torch.equal(varied[0], varied[1])
    assert not torch.equal(varied[0], varied[2])
    assert not torch.equal(varied[0], plain)
    without = material(replace(run(), size=16), pictures())
    assert torch.equal(without.samples.batch(index, torch.Generator()).x, plain)
    evaluation = without.evaluations.regular
    some = evaluation.x.take(index)
    assert torch.equal(prepared.evaluations.regular.prepare(some), evaluation.prepare(some))


@pytest.mark.parametrize(
    "loaded",
    [
        domains(),
        pictures(shape=(3, 18, 12)),
        {n: Domain(d.x.float(), d.y) for n, d in pictures().items()},
    ],
    ids=["features", "not square", "numbers"],
)
def test_augmentation_of_what_is_no_square_picture_is_refused(loaded):
    with pytest.raises(SpecError, match="augment=light: things has no square images; use none"):
        material(replace(run(), augment="light"), loaded)


def test_an_unknown_augmentation_is_answered_with_a_guess():
    with pytest.raises(SpecError, match="no augmentation level 'ful'; did you mean 'full'"):
        material(replace(run(), augment="ful"), pictures())


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "mean"), [(3, [0.485, 0.456, 0.406]), (1, [0.449])])
def test_pictures_are_scaled_as_the_network_was_made_for_and_numbers_as_the_sources_are(
    channels, mean
):
    asked = replace(run(), backbone="timm:resnet18")
    loaded = pictures(shape=(channels, 18, 18))
    assert material(asked, loaded).scaling.to_dict()["mean"] == pytest.approx(
        [255 * m for m in mean]
    )
    assert material(run(), loaded).scaling.to_dict() == {"mean": [127.5], "std": [127.5]}
    numbers = {name: Domain(d.x.float() * 7, d.y) for name, d in loaded.items()}
    scaling = material(asked, numbers).scaling.to_dict()
    assert scaling == material(run(), numbers).scaling.to_dict()
    assert scaling["mean"][0] > 500


def test_files_that_were_left_out_are_counted():
    loaded = domains()
    loaded["sketch"] = replace(loaded["sketch"], broken={"a.png": "cut off", "b.png": "empty"})
    loaded["art"] = replace(loaded["art"], broken={"c.png": "empty"})
    assert material(run(), loaded).dropped == 3


def some_unused(**fields) -> Run:
    """As `held_out`, but trained on two of the four."""
    return replace(held_out(**fields), sources=MANY[:2], unused=MANY[2:4])


@pytest.mark.parametrize("rules", [("validation", "target"), ("target",)])
def test_nothing_of_an_unused_domain_is_read(rules):
    evaluations = material(some_unused(rules=rules), domains(MANY)).evaluations
    sources = {(name, "probe") for name in MANY[:2]}
    validated = {(name, part) for name in "ef" for part in ("main", "probe")}
    assert read(evaluations.evaluate(model())) == sources | validated | {
        ("g", "sample"),
        ("h", "sample"),
    }
    for evaluation in (evaluations.regular, evaluations.last, evaluations.best):
        assert not {name for name, _ in evaluation.keys} & set(MANY[2:4])


@pytest.mark.parametrize("asked", [held_out, some_unused])
def test_where_no_domain_validates_all_unseen_ones_are_tested_but_for_unused_ones(asked):
    whole = asked(rules=("sources",), tested=MANY[4:])
    evaluations = material(whole, domains(MANY)).evaluations
    assert read(evaluations.evaluate(model())) == {(name, "probe") for name in whole.sources} | {
        (name, "sample") for name in MANY[4:]
    }
    assert read(evaluations.best.evaluate(model())) == {(name, "main") for name in MANY[4:]}


def test_unused_domains_change_neither_samples_nor_scaling_nor_scores():
    loaded = domains(MANY)
    wrecked = {**loaded, **{name: garbage(50) for name in MANY[2:4]}}
    before, after = (material(some_unused(), each) for each in (loaded, wrecked))
    assert torch.equal(seen(before.samples), seen(after.samples))
    assert torch.equal(before.scaling.mean, after.scaling.mean)
    for evaluation in ("regular", "last", "best"):
        first, second = (
            getattr(each.evaluations, evaluation).evaluate(model()) for each in (before, after)
        )
        assert first == second


def test_unused_domains_leave_room_on_the_curves_to_others():
    evaluations = material(some_unused(rules=("target",)), domains(MANY, size=1500)).evaluations
    taken = evaluations.evaluate(model())
    # Two are tested and two validate.
    assert [taken[name].sample.size for name in "gh"] == [CHEAP_CURVE_SAMPLES // 4] * 2


def listed_in_three() -> dict[str, Domain]:
    """Of every domain, the first 20 samples train, the next 4 validate, and the rest test."""
    loaded = domains()
    for name, domain in loaded.items():
        order = torch.arange(len(domain.y))
        lists = {"test": order >= 24, "validation": (order >= 20) & (order < 24)}
        loaded[name] = replace(domain, **lists)
    return loaded


def test_with_three_lists_a_source_has_a_test_split_that_selects_nothing():
    loaded = listed_in_three()
    data = material(run(rules=("sources", "target")), loaded)
    assert len(data.samples) == 2 * 20
    scores = data.evaluations.evaluate(model())
    assert {name: scores[name].probe.size for name in ("art", "photo")} == {"art": 4, "photo": 4}
    assert scores["art"].test is None
    completed = data.evaluations.add_scores(unread_best(), model(), data.evaluations.best)
    sizes = {name: completed.scores[name].test.size for name in ("art", "photo")}
    assert sizes == {"art": 6, "photo": 11}
    assert completed.scores["sketch"].main.size == 16
    by_hand = (
        model()(data.evaluations.best.prepare(loaded["art"].x[24:])).argmax(1)
        == loaded["art"].y[24:]
    )
    assert completed.scores["art"].test.accuracy == pytest.approx(by_hand.float().mean().item())


def test_in_domain_is_the_accuracy_on_test_lists_where_there_are_some():
    sources = {"art": Scores(probe=score(0.9), test=score(0.5))}
    sources["photo"] = Scores(probe=score(0.7), test=score(0.6))
    last = Checkpoint(5, {**sources, "sketch": Scores(main=score(0.4))}, {})
    record = Record(run(rules=("sources",)), (last,), 1.0, {}, "cpu")
    pick = RULES["sources"].pick([record], "sketch")
    assert (pick.value, pick.in_domain) == (pytest.approx(0.8), pytest.approx(0.55))
    two = {**last.scores, "art": Scores(probe=score(0.9))}
    record = replace(record, checkpoints=(replace(last, scores=two),))
    assert RULES["sources"].pick([record], "sketch").in_domain == pytest.approx(0.8)


def test_random_splits_ignore_the_lists():
    loaded = listed_in_three()
    data = material(replace(run(rules=("sources",)), split="random"), loaded)
    plain = material(run(rules=("sources",)), domains())
    assert torch.equal(seen(data.samples), seen(plain.samples))
    assert not [key for key in data.evaluations.best.keys if key[1] == "test"]


X = torch.randint(256, (8, 3, 40, 40), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def data(backbone: str, size: int = 0) -> RunData:
    """The data of a run on images of noise."""
    result = {name: Domain(X, torch.arange(8) % 2) for name in NAMES}
    dataset = DomainSet("shades", NAMES, ("cup", "pot"), lambda _: result, modality=Image())
    run = Run("shades", "erm", NAMES[:2], backbone=backbone, size=size)
    return RunData.of(run, dataset, result, torch.device("cpu"))


def test_a_pretrained_network_receives_the_scaling_of_its_pretraining():
    x = data("timm:resnet18").scaling(X)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(x[0, :, 0, 0], (X[0, :, 0, 0] / 255 - mean) / std)


def test_a_small_network_receives_pixels_between_minus_one_and_one():
    torch.testing.assert_close(data("small:cnn").scaling(X), X / 127.5 - 1)


def test_images_are_resized_when_a_size_is_given():
    assert data("timm:resnet18", size=32).shape == (3, 32, 32)
    assert data("timm:resnet18").shape == (3, 40, 40)


@pytest.fixture
def patients(tmp_path):
    """Three hospitals; the dose separates the classes, and the south has its own treatment."""
    generator = np.random.default_rng(0)
    rows = 90
    ill = np.arange(rows) % 2 == 0
    hospital = np.repeat(["east", "north", "south"], rows // 3)
    frame = pd.DataFrame(
        {
            "dose": np.where(ill, 3.0, -3.0) + generator.normal(0, 0.5, rows),
            "treatment": np.where(
                hospital == "south", "c", np.where(np.arange(rows) % 3 == 0, "a", "b")
            ),
            "diagnosis": np.where(ill, "ill", "well"),
            "hospital": hospital,
        }
    )
    frame.loc[[1, 40, 70], "dose"] = np.nan
    frame.loc[[2, 41], "treatment"] = None
    path = tmp_path / "patients.csv"
    frame.to_csv(path, index=False)
    return path


def test_the_preprocessing_of_a_fold_comes_from_its_sources(patients):
    spec = f"{patients}?label=diagnosis&domain=hospital"
    dataset = find_dataset(spec)
    run = plan_run(spec, "erm", target="south", settings={"steps": 2})
    domains = load_domains(dataset, run)
    before = RunData.of(run, dataset, domains, torch.device("cpu"))
    # The dose, the treatments a and b of the sources, and whether each is missing.
    assert before.shape == (5,)
    domains["south"].x.mul_(100)
    after = RunData.of(run, dataset, domains, torch.device("cpu"))
    assert after.scaling == before.scaling


@pytest.mark.slow
def test_a_table_goes_from_the_command_line_to_a_prediction(patients, tmp_path, afield):
    store, columns = str(tmp_path / "runs"), ["--label", "diagnosis", "--domain", "hospital"]
    short = ["--trials", "1", "--steps", "60", "--store", store]
    code, out, _ = afield(
        "bench", str(patients), *columns, "--methods", "erm", "--workers", "2", *short
    )
    assert code == 0
    assert "patients" in out
    spec = f"{patients}?label=diagnosis&domain=hospital"
    options = {"store": store, "settings": {"steps": 60}}
    model = package.fit(spec, "erm", tmp_path / "model", **options)
    assert model.about.estimate.domains["north"] > 0.9
    described = json.loads((tmp_path / "model" / "model.json").read_text())["inputs"]["table"]
    assert [column["name"] for column in described] == ["dose", "treatment"]
    new = pd.DataFrame({"treatment": ["a", None, "new"], "dose": [3.0, -3.0, None], "other": 1})
    loaded = package.load(tmp_path / "model")
    assert loaded.predict(new).tolist()[:2] == ["ill", "well"]
    file = tmp_path / "new.csv"
    new.to_csv(file, index=False)
    np.testing.assert_allclose(loaded.predict_proba(file), loaded.predict_proba(new), atol=1e-6)
    with pytest.raises(AfieldError, match="no column 'dose'"):
        loaded.predict(new.drop(columns="dose"))
    with pytest.raises(AfieldError, match="takes tables"):
        package.export(tmp_path / "model", out=tmp_path / "model.onnx")
    merged = package.bench(spec, [], merges="average", trials=1, steps=20, store=store)
    assert {record.run.method for record in merged} >= {"average"}


@pytest.mark.parametrize("tested", [(), ("sketch",)])
def test_whole_domains_are_reported_on_without_training_on_validation_splits(
    tested,
):
    loaded = domains(size=40)
    usual = replace(run(), tested=tested)
    whole = replace(usual, report="whole")
    for name, rows in training_rows(whole, loaded).items():
        assert torch.equal(rows, training_rows(usual, loaded)[name])
        assert not set(rows.tolist()) & set(split_domains(whole, loaded)[name].probe.tolist())
    assert len(split_domains(whole, loaded)["sketch"].main) == len(loaded["sketch"].y)


def test_other_metrics_read_all_samples_of_validation_domains_and_the_test_split_of_targets():
    loaded = domains(("art", "photo", "sketch", "clip"))
    asked = replace(run(rules=("validation",)), tested=("sketch",), metric="balanced_accuracy")
    evaluations = material(asked, loaded).evaluations
    scores = evaluations.regular.evaluate(model()) | evaluations.best.evaluate(model())
    split = parts(len(loaded["sketch"].y), trial=0, domain="sketch")
    assert scores["clip"].main.size == len(loaded["clip"].y)
    assert scores["sketch"].main.size == len(split.main)
