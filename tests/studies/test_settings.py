"""Every setting of a run, chosen by hand or by what fits."""

from dataclasses import replace

import pytest

from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.data.modalities.array import Array
from afield.data.modalities.image import Image
from afield.data.training_settings import Training
from afield.errors import DataError, IncompatibleMethodError, SpecError, UnknownNameError
from afield.runs.run import Run
from afield.studies.settings import CHECKPOINTS_PER_RUN, resolve_run, resolve_settings
from tests.protocols import hold_out, leave_one_out

DIGITS = find_dataset("rotated_digits")
MANY = DomainSet("many", tuple(f"w{i:02}" for i in range(20)), ("x", "y"), reader=lambda _: {})
PHOTOS = replace(MANY, name="photos", modality=Image())


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


def test_a_setting_labels_the_row_if_it_differs_from_the_default_of_the_dataset():
    assert planned(DIGITS).augment == "light"
    assert planned(DIGITS, augment="none").given == {"augment": "none"}
    assert planned(DIGITS, augment="light").given == {}
    assert planned(MANY, augment="none").given == {}


def test_the_weight_decay_of_adamw_is_no_default_of_other_optimizers():
    table = replace(MANY, training=Training(optimizer="adamw", weight_decay=3.0))
    assert planned(table).weight_decay == planned(table, optimizer="adamw").weight_decay == 3.0
    assert planned(table, optimizer="sgd").weight_decay == 0.0
    assert planned(table, optimizer="adam", weight_decay=0.1).weight_decay == 0.1


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
    dataset = replace(PHOTOS, training=Training(backbone="timm:resnet50", lr=3e-4))
    assert planned(dataset).lr == planned(dataset, backbone="timm:resnet18").lr == 3e-4
    assert planned(dataset).weights == "hub"
    # Pictures that are no files keep their size, and are not augmented.
    plain = planned(replace(dataset, modality=Array()))
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
def test_a_file_of_weights_that_is_missing_is_reported(tmp_path):
    with pytest.raises(DataError, match="give hub, none or a file"):
        planned(PHOTOS, backbone="timm:resnet18", weights=str(tmp_path / "none.pth"))


def test_what_is_settled_has_nothing_open():
    result = resolve_settings(vars(Training()), PHOTOS)
    assert None not in {**result, "tune": "", "columns": ""}.values()
    assert result["every"] == Training().steps // CHECKPOINTS_PER_RUN


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
    ("method", "sources", "settings", "message"),
    [
        ("mldg", DIGITS.domains[:1], {}, "mldg needs 2 or more source domains .* not 1"),
        (
            "mldg",
            TWO,
            {"mldg.tests": 2},
            "mldg needs 3 or more source domains .* not 2 .*use mldg.tests=0",
        ),
        ("mldg", THREE, {"domains_per_step": 1}, "mldg needs 2 or more source domains .* not 1"),
        ("mldg", THREE, {"mldg.second_order": True}, "needs mldg.inner=sgd"),
        ("arith", THREE, {"arith.shares": "0.5,0.5"}, "2 weights for 3 source domain"),
        (
            "arith",
            THREE,
            {"arith.shares": "1,0,0", "domains_per_step": 2},
            "3 weights for 2 source domain",
        ),
        ("arith", TWO, {"arith.eps": -0.5}, "arith.eps=-0.5: must not be below 0"),
        ("fish", TWO, {"fish.momentum": 0.9}, "need fish.inner=sgd"),
        ("fish", TWO, {"fish.outer": "raw"}, "need fish.inner=sgd"),
    ],
    ids=str,
)
@pytest.mark.parametrize("draw", [0, 1])
def test_a_method_refuses_settings_when_a_run_is_planned(method, sources, settings, message, draw):
    with pytest.raises(SpecError, match=message):
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
    ("asked", "error", "message"),
    [
        ("sgdd", UnknownNameError, "no optimizer 'sgdd'; did you mean 'sgd'"),
        ("sgd:momentun=0.9", SpecError, "optimizer=sgd:momentun=0.9: .*'momentun'"),
        ("sgd:momentum=-1", SpecError, "optimizer=sgd:momentum=-1: "),
        ("sgd:lr=0.1", SpecError, "lr and weight_decay are settings of their own"),
        ("sgd:momentum=lots", SpecError, "'lots' is neither a number"),
    ],
)
def test_an_optimiser_that_cannot_be_is_refused_before_anything_is_done(asked, error, message):
    for plan in (leave_one_out, hold_out):
        with pytest.raises(error, match=message):
            plan(MANY, ["erm"], settings={"optimizer": asked})


def test_a_checkpoint_comes_every_two_per_cent_of_the_steps():
    assert resolve_run(DIGITS, "erm", ("0deg",), settings={"steps": 5000}).every == 100
    assert resolve_run(DIGITS, "erm", ("0deg",), settings={"steps": 7}).every == 1


@pytest.mark.parametrize(
    ("name", "every", "slack"),
    [
        *[(name, 100, 0.3) for name in ("pacs", "office_home", "terra_incognita")],
        *[("vlcs", 50, 0.2), ("domain_net", 500, 0.3), ("spirals", 4, 0.3)],
    ],
)
def test_swad_has_the_intervals_of_its_authors_on_their_datasets(name, every, slack):
    dataset = find_dataset(name)
    sources = dataset.domains[1:]
    run = resolve_run(dataset, "erm", sources, average="swad")
    assert (run.every, run.average_params["slack"]) == (every, slack)
    assert not run.given
    asked = resolve_run(
        dataset, "erm", sources, average="swad", settings={"every": 25, "swad.slack": 0.5}
    )
    assert (asked.every, asked.average_params["slack"]) == (25, 0.5)
    assert asked.given == {"every": 25, "swad.slack": 0.5}
    assert resolve_run(dataset, "erm", sources).every == (dataset.training.every or 4)


SPIRALS = find_dataset("spirals")  # 200 samples in a domain: 160 to train on


def steps_of(method: str = "erm", *, sources: int = 3, **settings: object) -> tuple[int, int]:
    run = resolve_run(SPIRALS, method, SPIRALS.domains[:sources], settings=settings)
    return run.steps, run.every


def test_epochs_are_passes_over_the_training_samples_of_all_sources():
    assert steps_of(epochs=10, batch=32) == (50, 1)
    assert steps_of(epochs=10, batch=32, sources=1) == (50, 1)
    assert steps_of(epochs=10, batch=32, domains_per_step=1) == (150, 3)
    assert steps_of(epochs=10, batch_total=64) == (80, 1)
    assert steps_of(epochs=10, batch_total=64, sources=1) == (30, 1)
    assert steps_of(epochs=0.5, batch_total=100) == (2, 1)
    assert steps_of(epochs=10, batch_total=64, limit=20) == (20, 1)
    assert steps_of(epochs=10, batch_total=64, every=7) == (80, 7)
    # Two inner steps on each domain.
    assert steps_of("reptile", epochs=10, batch=16, **{"reptile.steps_per_domain": 2}) == (50, 1)


def test_epochs_label_the_run_and_twins_share_them():
    runs = leave_one_out(SPIRALS, ["erm"], trials=1, settings={"epochs": 2, "batch_total": 64})
    assert {run.steps for run in runs} == {16}
    two = resolve_run(SPIRALS, "erm", SPIRALS.domains[:2], settings={"epochs": 2})
    three = resolve_run(SPIRALS, "erm", SPIRALS.domains[:3], settings={"epochs": 2})
    assert two.recipe == three.recipe
    assert two.recipe != resolve_run(SPIRALS, "erm", two.sources, settings={"epochs": 3}).recipe
    assert two.given == {"epochs": 2}


def test_epochs_and_pooled_batches_replace_steps_and_batches_and_do_not_go_with_them():
    for settings, message in [
        ({"steps": 5, "epochs": 2}, "steps=5 and epochs=2: give only one"),
        ({"batch": 5, "batch_total": 20}, "batch=5 and batch_total=20: give only one"),
        ({"domains_per_step": 1, "batch_total": 20}, "domains_per_step=1 and batch_total=20"),
        ({"domains_per_step": -1}, "domains_per_step=-1: must not be below 0"),
        ({"epochs": -1}, "epochs=-1.0: must not be below 0"),
        ({"batch_total": -1}, "batch_total=-1: must not be below 0"),
    ]:
        with pytest.raises(SpecError, match=message):
            resolve_run(SPIRALS, "erm", SPIRALS.domains[:2], settings=settings)
    for method in ("mldg", "reptile"):
        with pytest.raises(
            IncompatibleMethodError, match=r"batch_total=20: a pooled batch .*; use batch"
        ):
            resolve_run(SPIRALS, method, SPIRALS.domains[:3], settings={"batch_total": 20})
    with pytest.raises(SpecError, match="epochs: the rule left-out-source compares runs"):
        leave_one_out(SPIRALS, ["erm"], rules=["all"], settings={"epochs": 2})


def test_draws_leave_a_pooled_batch_as_it_is():
    settings = {"batch_total": 20}
    runs = [
        resolve_run(SPIRALS, "erm", SPIRALS.domains[:2], draw=draw, settings=settings)
        for draw in range(3)
    ]
    assert {(run.batch, run.batch_total) for run in runs} == {(32, 20)}


def test_a_batch_of_all_is_written_all_and_stays_in_draws():
    dataset = find_dataset("spirals")
    for draw in (0, 2):
        run = resolve_run(dataset, "erm", dataset.domains, draw=draw, settings={"batch": "all"})
        assert run.batch == 0
    for other in ("batch_total", "domains_per_step"):
        settings = {"batch": "all", other: 2}
        with pytest.raises(SpecError, match=f"batch=all.*omit {other}"):
            resolve_run(dataset, "erm", dataset.domains, settings=settings)


def test_settings_of_a_dataset_for_a_method_are_its_defaults():
    dataset = replace(find_dataset("spirals"), methods={"vrex": {"vrex.penalty": 77.0, "lr": 0.5}})
    run = resolve_run(dataset, "vrex", dataset.domains)
    assert (run.params["penalty"], run.lr, run.given) == (77.0, 0.5, {})
    assert resolve_run(dataset, "erm", dataset.domains).lr != 0.5
    chosen = resolve_run(dataset, "vrex", dataset.domains, settings={"vrex.penalty": 3})
    assert chosen.params["penalty"] == 3


def drawn(draw: int, method: str = "vrex", **settings: object) -> Run:
    return resolve_run(DIGITS, method, DIGITS.domains[:2], draw=draw, settings=settings)


def test_a_range_given_by_hand_replaces_the_declared_one_and_labels_the_row():
    given = {"vrex.penalty": "3..4"}
    runs = [drawn(draw, **given) for draw in range(1, 6)]
    penalties = [run.params["penalty"] for run in runs]
    assert all(3 <= penalty <= 4 for penalty in penalties)
    assert len(set(penalties)) == 5
    assert all(run.given["vrex.penalty"] == "3..4" for run in runs)
    # Other hyperparameters are drawn as before, and the first draw has the defaults.
    assert [run.params["warmup"] for run in runs] == [
        drawn(draw).params["warmup"] for draw in range(1, 6)
    ]
    assert drawn(0, **given).params == drawn(0).params


def test_a_range_of_a_count_gives_whole_numbers():
    counts = {
        drawn(draw, "seed_category", **{"seed_category.count": "5..9"}).params["count"]
        for draw in range(1, 12)
    }
    assert counts <= {5, 6, 7, 8, 9}
    assert len(counts) > 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vrex.penalty": "4..3"}, "the smaller one first"),
        ({"vrex.penalty": "-3..3"}, "must not be below 0"),
        ({"vrex.penality": "1..3"}, "has no setting 'penality'"),
        ({"optimizer": "1..3"}, "optimizer"),
    ],
)
def test_a_range_that_cannot_be_drawn_from_is_refused(settings, message):
    with pytest.raises(SpecError, match=message):
        drawn(1, **settings)
