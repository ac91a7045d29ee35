"""What is told of a method, average or dataset."""

from importlib import import_module

import pytest

from afield import registry
from afield.cli.explain import explanation_text
from afield.data.lookup import find_dataset
from afield.errors import UnknownNameError
from afield.hyperparameters import defaults, ranges
from afield.registry import ROOMS

EVERYTHING = [(kind, name) for kind in registry.KINDS for name in registry.names(kind)]


@pytest.mark.parametrize(("kind", "name"), EVERYTHING)
def test_an_explanation_begins_with_the_name_and_has_the_whole_docstring(kind, name):
    told = explanation_text(name)
    assert told.splitlines()[0] == f"{name} ({kind})"
    assert import_module(f"afield.{ROOMS[kind]}.{kind}.{name}").__doc__.strip() in told


@pytest.mark.parametrize(("kind", "name"), [e for e in EVERYTHING if e[0] != "datasets"])
def test_every_setting_is_told_with_its_default_and_range(kind, name):
    found = registry.find(kind, name)
    lines = explanation_text(name).splitlines()
    for setting, default in defaults(found).items():
        (line,) = [line for line in lines if line.startswith(f"  {setting} = {default}")]
        assert line.endswith(str(ranges(found)[setting]))


def test_what_has_no_settings_says_so():
    assert explanation_text("erm").splitlines()[-1] == "settings: none"


@pytest.mark.parametrize("name", registry.names("datasets"))
def test_a_dataset_is_told_with_its_domains_classes_and_defaults(name):
    found = find_dataset(name)
    told = dict(line.split(": ", 1) for line in explanation_text(name).splitlines() if ": " in line)
    for names, listed in ((found.domains, told["domains"]), (found.classes, told["classes"])):
        assert listed.startswith(", ".join(names[:20]))
        assert (f"{len(names) - 20} more" in listed) == (len(names) > 20)
    assert f"steps {found.training.steps}," in told["training"]
    assert f"backbone {found.training.backbone}" in told["training"]
    assert told["here"] == "yes" or told["here"].startswith("no; ")


def test_an_unknown_name_is_answered_with_a_guess_among_all_kinds():
    for wrong, right in (("verx", "vrex"), ("emma", "ema"), ("spirls", "spirals")):
        with pytest.raises(UnknownNameError, match=f"'{wrong}'; did you mean '{right}'"):
            explanation_text(wrong)
