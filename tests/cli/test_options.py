"""Help texts of options: they name what exists, and nothing else."""

import inspect
import re
from dataclasses import fields

import pytest

from afield.cli.bench import bench
from afield.cli.data import check
from afield.cli.diagnose import diagnose
from afield.cli.embed import embed
from afield.cli.model import fit
from afield.cli.options import FORMATS, HEADINGS, SETTINGS, SetOption, read_options
from afield.cli.train import train
from afield.data.training_settings import Training
from afield.reporting import formats
from afield.runs.selection import RULES
from afield.studies.benchmark import OPTIONS


def help_of(option):
    return option.__metadata__[0].help


def test_the_help_of_rules_explains_every_rule():
    assert re.findall(r" ([a-z-]+):", OPTIONS["rules"].help) == list(RULES)


def test_the_help_of_set_names_every_setting_that_has_no_option_of_its_own():
    own_option = {"steps", "backbone", "weights", "domains_per_step", "skip_broken", "tune"}
    for field in fields(Training):
        if field.name not in own_option:
            assert re.search(rf"\b{field.name}\b", help_of(SetOption)), field.name


def test_the_formats_are_those_of_the_tables_and_the_console():
    assert set(FORMATS) == {"console", *formats.FORMATS}


# The options that another command has with another meaning.
OTHER = {
    fit: {"dataset", "adapt", "trials", "hold_out"},
    train: {"dataset"},
    embed: {"dataset", "backbone", "threads"},
    check: {"dataset"},
    diagnose: {"set_"},
}


@pytest.mark.parametrize("command", OTHER, ids=lambda command: command.__name__)
def test_an_option_is_the_same_in_every_command(command):
    of_bench, of_command = (inspect.signature(each).parameters for each in (bench, command))
    for name in (of_bench.keys() & of_command.keys()) - OTHER[command]:
        here, there = of_command[name], of_bench[name]
        assert help_of(here.annotation) == help_of(there.annotation), name
        assert (here.default or None) == (there.default or None), name


def test_every_heading_has_options():
    names = [name for listed in HEADINGS.values() for name in listed]
    assert len(names) == len(set(names))
    assert set(names) <= {*OPTIONS, *SETTINGS}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, {"settings": {}}),
        ({"steps": None, "skip_broken": False, "set_": None}, {"settings": {}}),
        ({"store": "runs", "steps": 3}, {"store": "runs", "settings": {"steps": 3}}),
        ({"skip_broken": True}, {"settings": {"skip_broken": True}}),
        ({"steps": 3, "set_": ["steps=4", "lr=1"]}, {"settings": {"steps": "4", "lr": "1"}}),
    ],
)
def test_settings_are_one_mapping(options, words):
    assert read_options(options) == words
