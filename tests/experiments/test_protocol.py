import math
from dataclasses import replace
from itertools import combinations

import pytest

from afield.data.domains import DomainSet, Training
from afield.data.lookup import find_dataset
from afield.errors import DataError, SpecError, UnknownNameError
from afield.experiments.protocol import (
    CHECKPOINTS_PER_RUN,
    hold_out,
    leave_one_out,
    resolve_run,
    resolve_settings,
)
from afield.experiments.record import Run
from afield.experiments.selection import RULES

DIGITS = find_dataset("rotated_digits")


def test_every_domain_is_left_out_once_by_every_method_in_every_trial():
    runs = leave_one_out(DIGITS, ["erm", "vrex"], trials=2)
    assert len(runs) == len({run.key for run in runs}) == 6 * 2 * 2
    left_out = [DIGITS.without(*run.sources) for run in runs if run.method == "erm"]
    assert sorted(left_out) == sorted([(d,) for d in DIGITS.domains] * 2)


def test_the_second_rule_brings_every_pair_of_domains():
    runs = leave_one_out(DIGITS, ["erm"], trials=1, rules=list(RULES))
    pairs = [DIGITS.without(*run.sources) for run in runs if len(run.sources) == 4]
    assert pairs == list(combinations(DIGITS.domains, 2))
    assert {run.rules for run in runs if len(run.sources) == 4} == {("left-out-source",)}


def test_methods_take_turns_so_that_early_tables_are_useful():
    runs = leave_one_out(DIGITS, ["erm", "vrex"], trials=2)
    assert [run.method for run in runs[:4]] == ["erm", "vrex", "erm", "vrex"]
    assert [run.trial for run in runs] == sorted(run.trial for run in runs)


def test_draw_0_is_the_defaults_and_further_draws_are_the_same_for_all_targets():
    runs = leave_one_out(DIGITS, ["vrex"], trials=1, draws=3)
    assert {run.lr for run in runs if run.draw == 0} == {DIGITS.training.lr}
    assert {run.params["penalty"] for run in runs if run.draw == 0} == {10.0}
    for draw in (1, 2):
        assert len({run.recipe for run in runs if run.draw == draw}) == 1
    assert len({run.lr for run in runs}) == 3


def test_every_trial_has_its_own_draws():
    first, second = (resolve_run(DIGITS, "vrex", ("0deg",), trial=t, draw=1) for t in (0, 1))
    assert first.params != second.params


def test_settings_go_to_the_run_or_to_the_method_that_is_named():
    settings = {"steps": "40", "vrex.penalty": "3", "ema.decay": 0.9}
    runs = leave_one_out(DIGITS, ["erm", "vrex"], trials=1, average="ema", settings=settings)
    assert {(run.steps, run.every) for run in runs} == {(40, 1)}
    assert {run.params.get("penalty") for run in runs} == {None, 3.0}
    assert {run.average_params["decay"] for run in runs} == {0.9}
    assert {tuple(run.given) for run in runs} == {
        ("steps", "ema.decay"),
        ("steps", "vrex.penalty", "ema.decay"),
    }


def test_what_is_given_is_given_in_every_draw():
    runs = leave_one_out(
        DIGITS, ["vrex"], trials=1, draws=3, settings={"lr": 0.5, "vrex.penalty": 3}
    )
    assert {(run.lr, run.params["penalty"]) for run in runs} == {(0.5, 3.0)}
    assert len({run.params["warmup"] for run in runs}) == 3


def test_a_checkpoint_comes_every_two_per_cent_of_the_steps():
    assert resolve_run(DIGITS, "erm", ("0deg",), settings={"steps": 5000}).every == 100
    assert resolve_run(DIGITS, "erm", ("0deg",), settings={"steps": 7}).every == 1


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"stepz": 3}, SpecError, "did you mean 'steps'"),
        ({"steps": "many"}, SpecError, "Training.steps='many'"),
        ({"steps": -3}, SpecError, "steps=-3"),
        ({"lr": "nan"}, SpecError, "finite"),
        ({"groupdro.eta": 1}, UnknownNameError, "groupdro"),
        ({"vrex.penaltee": 1}, SpecError, "did you mean 'penalty'"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(settings, error, told):
    with pytest.raises(error, match=told):
        leave_one_out(DIGITS, ["vrex"], settings=settings)


@pytest.mark.parametrize("counts", [{"trials": 0}, {"draws": 0}])
def test_at_least_one_trial_and_one_draw(counts):
    with pytest.raises(SpecError, match="at least one"):
        leave_one_out(DIGITS, ["erm"], **counts)


def test_two_domains_are_too_few_for_twins():
    two = DomainSet("two", ("a", "b"), ("x", "y"), reader=lambda root: {})
    with pytest.raises(SpecError, match="two has 2 domains"):
        leave_one_out(two, ["erm"], rules=["left-out-source"])


MANY = DomainSet("many", tuple(f"w{i:02}" for i in range(20)), ("x", "y"), reader=lambda _: {})
PHOTOS = replace(MANY, name="photos", resizable=True)


def divided(runs: list[Run]) -> list[tuple[set[str], set[str], set[str]]]:
    """Sources, validation and test domains of every run."""
    return [
        (
            set(run.sources),
            set(MANY.domains) - set(run.sources) - set(run.tested),
            set(run.tested),
        )
        for run in runs
    ]


@pytest.mark.parametrize(
    ("shares", "sizes"),
    [
        ({}, (13, 2, 5)),
        ({"test": 0.5, "validate": 0.25}, (5, 5, 10)),
        ({"test": 0.05, "validate": 0.0}, (19, 0, 1)),
        ({"test": 0.9, "validate": 0.05}, (1, 1, 18)),
    ],
)
def test_shares_of_the_domains_are_held_out(shares, sizes):
    for sources, validated, tested in divided(hold_out(MANY, ["erm"], **shares)):
        assert (len(sources), len(validated), len(tested)) == sizes
        assert sources | validated | tested == set(MANY.domains)
        assert not sources & tested


def test_every_trial_holds_other_domains_out_and_all_methods_and_draws_the_same():
    runs = hold_out(MANY, ["erm", "vrex", "groupdro"], trials=4, draws=2)
    assert len(runs) == len({run.key for run in runs}) == 4 * 3 * 2
    of_trials = [
        {(run.sources, run.tested) for run in runs if run.trial == trial} for trial in range(4)
    ]
    assert all(len(found) == 1 for found in of_trials)
    assert len(set.union(*of_trials)) == 4


def test_domains_are_held_out_by_their_names_and_told_in_the_order_of_the_dataset():
    mixed = replace(MANY, domains=MANY.domains[7:] + MANY.domains[:7])
    for before, after in zip(hold_out(MANY, ["erm"]), hold_out(mixed, ["erm"]), strict=True):
        assert set(after.sources) == set(before.sources)
        assert set(after.tested) == set(before.tested)
        assert list(after.sources) == [d for d in mixed.domains if d in before.sources]
        assert list(after.tested) == [d for d in mixed.domains if d in before.tested]


def test_over_many_trials_every_domain_is_tested_on_and_trained_on():
    found = divided(hold_out(MANY, ["erm"], trials=30))
    assert set.union(*(tested for _, _, tested in found)) == set(MANY.domains)
    assert set.union(*(validated for _, validated, _ in found)) == set(MANY.domains)


@pytest.mark.parametrize(
    "shares",
    [
        {"test": 0.0},
        {"test": 1.0},
        {"test": -0.25},
        {"test": 1.25},
        {"test": 0.02},
        {"test": math.nan},
        {"test": math.inf},
        {"validate": -0.1},
        {"validate": 1.0},
        {"validate": math.nan},
        {"test": 0.5, "validate": 0.5},
        {"test": 0.97, "validate": 0.03},
    ],
    ids=str,
)
def test_shares_that_leave_nothing_to_do_are_refused(shares):
    with pytest.raises(SpecError, match=r"many: .* of 20 domains to test on .* leaves none"):
        hold_out(MANY, ["erm"], **shares)


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({}, ("validation", "target")),
        ({"validate": 0.0}, ("sources", "target")),
        ({"validate": 0.02}, ("sources", "target")),
        ({"rules": ["sources"], "validate": 0.0}, ("sources",)),
    ],
    ids=str,
)
def test_held_out_shares_are_read_by_rules_that_can_read_them(options, rules):
    assert {run.rules for run in hold_out(MANY, ["erm"], **options)} == {rules}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rules": ["left-out-source"]}, "left-out-source leaves one domain out"),
        ({"rules": ["sources", "left-out-source"]}, "left-out-source leaves one domain out"),
        ({"rules": ["sources"]}, "where no domain validates"),
        ({"rules": ["validation"], "validate": 0.0}, "no domain to validate on"),
        ({"trials": 0}, "at least one"),
        ({"settings": {"stepz": 3}}, "did you mean 'steps'"),
    ],
    ids=str,
)
def test_what_cannot_be_read_of_held_out_shares_is_refused(options, told):
    with pytest.raises((SpecError, UnknownNameError), match=told):
        hold_out(MANY, ["erm"], **options)


def test_leaving_one_out_tests_on_all_that_is_unseen():
    assert {run.tested for run in leave_one_out(DIGITS, ["erm"])} == {()}


def planned(dataset: DomainSet, **settings: object) -> Run:
    return resolve_run(dataset, "erm", dataset.domains[:2], settings=settings)


def test_a_small_network_on_arrays_starts_from_nothing_and_sees_them_as_they_are():
    run = planned(MANY)
    assert (run.weights, run.start, run.freeze_bn, run.size, run.augment) == ("", "", False, 0, "")
    assert run.lr == MANY.training.lr
    assert run.given == {}


@pytest.mark.parametrize(
    ("settings", "size", "augment"),
    [
        ({}, 64, "light"),
        ({"size": 95}, 95, "light"),
        ({"size": 96}, 96, "full"),
        ({"augment": "none"}, 64, ""),
        ({"augment": "full"}, 64, "full"),
        ({"size": 224, "augment": "light"}, 224, "light"),
    ],
    ids=str,
)
def test_pictures_in_files_have_a_size_and_the_augmentation_that_suits_it(settings, size, augment):
    run = planned(PHOTOS, **settings)
    assert (run.size, run.augment) == (size, augment)
    assert set(run.given) == set(settings)


def test_an_augmentation_that_there_is_not_is_refused():
    with pytest.raises(SpecError, match="augment"):
        planned(PHOTOS, augment="heavy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("hub", True, 224, "full", 5e-5)),
        ({"weights": "none"}, ("", False, 224, "full", 1e-3)),
        ({"weights": "none", "freeze_bn": True}, ("", True, 224, "full", 1e-3)),
        ({"freeze_bn": False, "size": 64}, ("hub", False, 64, "light", 5e-5)),
        ({"lr": 0.3}, ("hub", True, 224, "full", 0.3)),
    ],
    ids=str,
)
def test_a_pretrained_network_in_place_of_a_small_one_is_tuned_gently(settings, expected):
    run = planned(PHOTOS, backbone="timm:resnet18", **settings)
    assert (run.weights, run.freeze_bn, run.size, run.augment, run.lr) == expected
    assert set(run.given) == {"backbone", *settings}


@pytest.mark.slow
def test_the_rate_of_a_dataset_that_is_meant_for_a_pretrained_network_is_its_own():
    own = Training(backbone="timm:resnet50", lr=3e-4)
    dataset = replace(PHOTOS, training=own)
    assert planned(dataset).lr == planned(dataset, backbone="timm:resnet18").lr == 3e-4
    assert planned(dataset).weights == "hub"
    # Pictures that are no files keep their size, and are not augmented.
    plain = planned(replace(dataset, resizable=False))
    assert (plain.size, plain.augment, plain.weights) == (0, "", "hub")


@pytest.mark.slow
def test_draws_are_taken_around_the_gentle_rate():
    settings = {"backbone": "timm:resnet18"}
    runs = [
        resolve_run(PHOTOS, "erm", PHOTOS.domains[:2], draw=draw, settings=settings)
        for draw in range(1, 6)
    ]
    assert len({run.lr for run in runs}) == 5
    assert all(0.1 * 5e-5 <= run.lr <= 3 * 5e-5 for run in runs)


@pytest.mark.slow
def test_a_file_of_weights_is_known_by_its_contents_wherever_it_lies(tmp_path):
    for name, content in (("a.pth", b"one"), ("b.pth", b"one"), ("c.pth", b"two")):
        (tmp_path / name).write_bytes(content)
    first, second, other, hub = (
        planned(PHOTOS, backbone="timm:resnet18", weights=weights)
        for weights in (*(str(tmp_path / f"{name}.pth") for name in "abc"), "hub")
    )
    assert first.weights == str(tmp_path / "a.pth")
    assert first.freeze_bn
    assert first.start == second.start != ""
    assert first.key == second.key
    assert len({first.key, other.key, hub.key}) == 3
    assert hub.start == ""


@pytest.mark.slow
def test_a_file_of_weights_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match="give hub, none or a file"):
        planned(PHOTOS, backbone="timm:resnet18", weights=str(tmp_path / "none.pth"))


def test_what_is_settled_has_nothing_open():
    found = resolve_settings(vars(Training()), PHOTOS)
    assert None not in found.values()
    assert found["every"] == Training().steps // CHECKPOINTS_PER_RUN


def test_what_would_be_chosen_anyway_does_not_label_a_row():
    asked = planned(PHOTOS, backbone="timm:resnet18", weights="hub", size=224, freeze_bn=True)
    plain = planned(PHOTOS, backbone="timm:resnet18")
    assert asked == plain
    assert set(plain.given) == {"backbone"}


def test_weights_of_the_hub_are_named_in_full():
    assert planned(PHOTOS, backbone="timm:resnet18").backbone == "timm:resnet18.a1_in1k"
    tagged = planned(PHOTOS, backbone="timm:resnet50.tv_in1k")
    assert tagged.backbone == "timm:resnet50.tv_in1k"
    assert planned(PHOTOS, backbone="timm:resnet18", weights="none").backbone == "timm:resnet18"


TWO, THREE = DIGITS.domains[:2], DIGITS.domains[:3]


@pytest.mark.parametrize(
    ("method", "sources", "settings", "told"),
    [
        ("mldg", DIGITS.domains[:1], {}, "mldg takes 2 source domains .* not 1"),
        ("mldg", TWO, {"mldg.tests": 2}, "mldg takes 3 source domains .* not 2"),
        ("mldg", THREE, {"domains_per_step": 1}, "mldg takes 2 source domains .* not 1"),
        ("mldg", THREE, {"mldg.second_order": True}, "goes with mldg.inner=sgd"),
        ("arith", THREE, {"arith.shares": "0.5,0.5"}, "2 weights for 3 source domain"),
        (
            "arith",
            THREE,
            {"arith.shares": "1,0,0", "domains_per_step": 2},
            "3 weights for 2 source domain",
        ),
        ("arith", TWO, {"arith.eps": -0.5}, "arith.eps=-0.5: must not be below 0"),
        ("fish", TWO, {"fish.momentum": 0.9}, "go with fish.inner=sgd"),
        ("fish", TWO, {"fish.outer": "raw"}, "go with fish.inner=sgd"),
    ],
    ids=str,
)
@pytest.mark.parametrize("draw", [0, 1])
def test_what_a_method_refuses_is_told_when_a_run_is_planned(method, sources, settings, told, draw):
    with pytest.raises(SpecError, match=told):
        resolve_run(DIGITS, method, sources, draw=draw, settings=settings)


@pytest.mark.parametrize(
    ("sources", "per_step"), [(THREE, 0), (THREE, 3), (THREE, 9), (DIGITS.domains, 3)], ids=str
)
def test_a_method_is_asked_about_the_domains_of_a_step(sources, per_step):
    settings = {"arith.shares": "0.5,0.3,0.2", "domains_per_step": per_step}
    run = resolve_run(DIGITS, "arith", sources, settings=settings)
    assert run.params["shares"] == (0.5, 0.3, 0.2)
    assert run.given["arith.shares"] == (0.5, 0.3, 0.2)


@pytest.mark.parametrize("method", ["arith", "fish", "mldg", "maml", "reptile"])
def test_draws_keep_the_form_of_a_method(method):
    runs = [resolve_run(DIGITS, method, THREE, draw=draw) for draw in range(6)]
    forms = ("outer", "momentum", "by_domain", "shares", "inner", "tests", "second_order")
    assert len({tuple(run.params.get(form) for form in forms) for run in runs}) == 1
    drawn = "meta_lr" if method == "fish" else "inner_rate"
    assert len({run.params[drawn] for run in runs}) == 6


@pytest.mark.parametrize("asked", ["adam", ""])
def test_the_usual_optimiser_and_none_are_one_run(asked):
    run, plain = planned(MANY, optimizer=asked), planned(MANY)
    assert run == plain
    assert run.key == plain.key
    assert run.optimizer == ""
    assert run.given == {}


def test_another_optimiser_is_another_run_and_labels_its_row():
    run = planned(MANY, optimizer="sgd:momentum=0.9")
    assert run.optimizer == "sgd:momentum=0.9"
    assert run.key != planned(MANY).key
    assert run.given == {"optimizer": "sgd:momentum=0.9"}
    assert planned(MANY, optimizer="sgd").key not in (run.key, planned(MANY).key)


def test_a_dataset_may_have_an_optimiser_of_its_own():
    own = replace(MANY, training=Training(optimizer="sgd:momentum=0.9"))
    assert planned(own).optimizer == "sgd:momentum=0.9"
    assert planned(own).given == {}
    back = planned(own, optimizer="adam")
    assert back.optimizer == ""
    assert back.key == planned(MANY).key


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ("sgdd", UnknownNameError, "no optimizer 'sgdd'; did you mean 'sgd'"),
        ("sgd:momentun=0.9", SpecError, "optimizer=sgd:momentun=0.9: .*'momentun'"),
        ("sgd:momentum=-1", SpecError, "optimizer=sgd:momentum=-1: "),
        ("sgd:lr=0.1", SpecError, "lr has its own --set"),
        ("sgd:momentum=lots", SpecError, "'lots' is neither a number"),
    ],
)
def test_an_optimiser_that_cannot_be_is_refused_before_anything_is_done(asked, error, told):
    for plan in (leave_one_out, hold_out):
        with pytest.raises(error, match=told):
            plan(MANY, ["erm"], settings={"optimizer": asked})


def divisions(runs: list[Run]) -> dict[tuple[int, int], Run]:
    """The runs by their trials and numbers of sources."""
    return {(run.trial, len(run.sources)): run for run in runs}


def test_a_larger_number_of_domains_has_those_of_a_smaller_one():
    found = divisions(hold_out(MANY, ["erm"], train_on=[7, 3, None, 1]))
    assert sorted(found) == [(trial, n) for trial in range(3) for n in (1, 3, 7, 13)]
    for trial in range(3):
        sources = [set(found[trial, n].sources) for n in (1, 3, 7, 13)]
        assert sources[0] < sources[1] < sources[2] < sources[3]
    assert len({found[trial, 3].sources for trial in range(3)}) == 3


def test_whatever_is_trained_on_the_same_domains_validate_and_are_tested():
    for run in hold_out(MANY, ["erm", "vrex"], train_on=[2, 5, None], draws=2):
        (plain,) = (r for r in hold_out(MANY, ["erm"]) if r.trial == run.trial)
        assert run.tested == plain.tested
        assert set(run.sources) | set(run.unused) == set(plain.sources)
        assert not set(run.sources) & set(run.unused)
        # In the order of the dataset, as everywhere.
        for names in (run.sources, run.unused):
            assert list(names) == sorted(names)
        assert run.given["domains"] == len(run.sources)


def test_all_domains_are_the_run_that_there_is_without_a_number():
    plain, numbered = (hold_out(MANY, ["erm", "vrex"], **on) for on in ({}, {"train_on": [None]}))
    assert [run.key for run in numbered] == [run.key for run in plain]
    assert {run.unused for run in numbered} == {()}
    named = hold_out(MANY, ["erm", "vrex"], train_on=[13])
    assert [run.key for run in named] == [run.key for run in plain]
    assert not {run.key for run in hold_out(MANY, ["erm", "vrex"], train_on=[12])} & {
        run.key for run in plain
    }


def test_a_number_given_twice_is_run_once():
    runs = hold_out(MANY, ["erm"], train_on=[3, 5, 3])
    assert len(runs) == len({run.key for run in runs}) == 2 * 3


def test_all_domains_by_their_number_and_by_name_are_run_once():
    runs = hold_out(MANY, ["erm"], train_on=[13, None])
    assert len(runs) == len({run.key for run in runs}) == 3


def test_methods_take_turns_and_trials_come_one_after_the_other_for_all_numbers():
    runs = hold_out(MANY, ["erm", "vrex"], train_on=[3, None], trials=2)
    assert [run.method for run in runs] == ["erm", "vrex"] * 4
    assert [run.trial for run in runs] == [0] * 4 + [1] * 4


@pytest.mark.parametrize("number", [0, -1, 14, 20])
def test_a_number_of_domains_that_cannot_be_is_refused(number):
    told = f"many: cannot train on {number} domains; 13 are left beside those that are held out"
    with pytest.raises(SpecError, match=told):
        hold_out(MANY, ["erm"], train_on=[3, number])


def test_too_few_domains_for_a_method_are_refused_with_its_name():
    with pytest.raises(SpecError, match="mldg"):
        hold_out(MANY, ["erm", "mldg"], train_on=[1])


def test_domains_per_step_are_no_more_than_there_are():
    settings = {"domains_per_step": 4}
    for run in hold_out(MANY, ["erm"], train_on=[2, None], settings=settings):
        assert run.given == {"domains_per_step": 4, "domains": len(run.sources)}


def test_leaving_one_out_leaves_nothing_unused():
    runs = leave_one_out(DIGITS, ["erm"], trials=1)
    assert {run.unused for run in runs} == {()}
    assert all("domains" not in run.given for run in runs)
