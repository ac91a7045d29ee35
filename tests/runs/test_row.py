"""What a row is: its label, its family, and what its models have seen of the target."""

import pytest

from afield.runs.row import Row, common_settings
from afield.runs.run import Run
from tests.stores import record

PLAIN = record("art", [0.5]).run
USUAL = ("backbone", "steps")


def row(method="erm", **fields):
    return Row.of(Run("d", method, ("a",), **fields))


def test_a_label_has_what_was_chosen_by_hand_unless_all_share_it():
    runs = [
        record("art", [0.5], method="vrex", given={"vrex.penalty": 2.0}, backbone="small:mlp").run,
        record("art", [0.5], backbone="small:mlp").run,
    ]
    common = common_settings(runs)
    assert common == {"backbone", "steps"}
    assert [Row.of(run).without(common).label for run in runs] == ["vrex penalty=2.0", "erm"]
    assert Row.of(runs[1]).settings == {"backbone": "small:mlp", "steps": 10}


def test_labels_have_the_parts_of_a_row_and_short_names_of_their_settings():
    assert row("vrex").without(USUAL).label == "vrex"
    chosen = row("vrex", given={"vrex.penalty": 3.0, "lr": 0.1}, average="ema").without(USUAL)
    assert chosen.label == "vrex + ema penalty=3.0 lr=0.1"
    assert chosen.label_as("VREx") == "VREx + ema penalty=3.0 lr=0.1"
    assert chosen.without(["lr"]).label == "vrex + ema penalty=3.0"
    assert chosen.with_all_classes().label == "vrex + ema penalty=3.0 lr=0.1 classes=all"


def test_labels_omit_targets_and_the_choice_of_features_and_classes():
    given = {"targets": [["a"]], "classes": "all", "finetune": False, "start": "linear_probe"}
    assert row(given=given).without(USUAL).label == "erm start=linear_probe"
    assert row(given=given).start == "linear_probe"


def test_epochs_take_the_place_of_steps():
    assert row(epochs=2.0, steps=7).without(["backbone"]).label == "erm epochs=2"


def test_a_file_of_weights_is_identified_by_its_name_and_contents():
    given = {"weights": "/far/away/net.safetensors"}
    own = row(given=given, weights=given["weights"], start="123456789a")
    assert own.without(USUAL).label == "erm weights=net.safetensors [123456]"


@pytest.mark.parametrize(
    ("fields", "family"),
    [
        ({}, "training"),
        ({"average": "ema"}, "averages"),
        ({"method": "score", "role": "merged", "experts": ("x",)}, "merges"),
        ({"adaptation": "tent"}, "adaptations"),
        ({"method": "base", "role": "merged", "experts": ("x",)}, "references"),
        ({"method": "target_expert", "role": "merged", "experts": ("x",)}, "references"),
    ],
)
def test_every_row_has_the_family_of_what_made_its_models(fields, family):
    assert row(**fields).family == family


@pytest.mark.parametrize(
    ("fields", "sees"),
    [
        ({"method": "arm"}, "samples"),
        ({"method": "mtl", "given": {"mtl.ema": 0.5}}, "samples"),
        ({"adaptation": "t3a"}, "samples"),
        ({"average": "swa"}, ""),
        ({"method": "mixstyle"}, ""),
        ({"method": "average", "experts": ("x",)}, ""),
        ({"method": "base", "experts": ("x",)}, ""),
        ({"method": "target_expert", "experts": ("x",)}, "labels"),
    ],
)
def test_it_is_known_what_of_the_target_the_models_of_a_row_have_seen(fields, sees):
    assert row(**fields).sees == sees


def test_plain_training_is_the_reference_with_any_settings():
    assert row().is_reference
    assert row(average="swad", adaptation="t3a", given={"lr": 0.1}).is_reference
    # The name of a method that begins in the same way decides nothing.
    assert not row("erm_plus_plus").is_reference
    assert not row("target_expert", experts=("x",)).is_reference


def test_features_of_a_folder_keep_its_name_and_the_network():
    own = Run("/cache/features/a1/Kliniken", "erm", ("a",), folder="Kliniken", encoder="timm:x")
    assert (own.data_name, Row.of(own).encoder) == ("Kliniken", "timm:x")
    plain = Run("/data/vectors.npz", "erm", ("a",))
    assert (plain.data_name, Row.of(plain).encoder) == ("vectors", "")
    # Neither is in the key: the features themselves are.
    assert own.key == Run("/cache/features/a1/Kliniken", "erm", ("a",)).key
