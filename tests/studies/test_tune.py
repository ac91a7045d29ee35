"""What is trained, spelled once: `tune` stands for other fields, and keys stay as they are."""

import pytest
import torch

from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.errors import SpecError
from afield.runs.run_setup import Machine, set_up
from afield.studies.features import spell_finetune
from afield.studies.planning import plan_run
from afield.studies.settings import resolve_run


def planned(**settings):
    return plan_run("spirals", "erm", target="turn0", settings={"steps": 5, **settings})


@pytest.mark.parametrize(
    ("tune", "settings"),
    [("full", {}), ("body", {"freeze_head": True}), ("", {})],
)
def test_a_spelling_gives_the_run_of_the_fields_that_it_stands_for(tune, settings):
    spelled, plain = planned(tune=tune), planned(**settings)
    assert spelled == plain
    assert spelled.key == plain.key
    assert spelled.tune is None


def test_blocks_are_counted_after_a_colon():
    dataset = find_dataset("spirals")
    runs = [
        resolve_run(dataset, "erm", dataset.domains, settings=settings)
        for settings in ({"tune": "after:2"}, {"freeze_blocks": 2})
    ]
    assert runs[0] == runs[1]


def test_only_the_last_layer_is_trained_with_head():
    run = planned(tune="head")
    assert run.tune == "head"
    assert run.key != planned().key
    model = set_up(run, Machine(torch.device("cpu"), 1, data_root())).learner.model
    assert not any(p.requires_grad for p in model.features.parameters())
    assert all(p.requires_grad for p in model.head.parameters())


def test_all_but_the_last_layer_is_trained_with_body():
    model = set_up(planned(tune="body"), Machine(torch.device("cpu"), 1, data_root())).learner.model
    assert all(p.requires_grad for p in model.features.parameters())
    assert not any(p.requires_grad for p in model.head.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tune": "after:0"}, "tune=after:0: give frozen, head, body, after:N"),
        ({"tune": "after:x"}, "tune=after:x: give frozen"),
        ({"tune": "heads"}, "tune=heads: give frozen"),
        ({"tune": "body", "freeze_head": True}, "tune=body and freeze_head=True: give only one"),
        ({"tune": "head", "freeze_blocks": 1}, "tune=head and freeze_blocks=1: give only one"),
        ({"tune": "frozen"}, "spirals: --no-finetune needs images"),
    ],
)
def test_what_cannot_be_is_one_line(settings, message):
    with pytest.raises(SpecError, match=message):
        planned(**settings)


def test_frozen_and_full_are_what_finetune_says():
    assert spell_finetune({"tune": "frozen", "lr": 0.1}) == ({"lr": 0.1}, False)
    assert spell_finetune({"tune": "head"}) == ({"tune": "head"}, True)
    assert spell_finetune({"lr": 0.1}, finetune=None) == ({"lr": 0.1}, None)
    for tune, finetune in (("frozen", True), ("full", False)):
        with pytest.raises(SpecError, match=f"tune={tune} and --"):
            spell_finetune({"tune": tune}, finetune=finetune)
