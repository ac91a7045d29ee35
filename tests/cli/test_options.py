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
from afield.cli.options import (
    FORMATS,
    HEADINGS,
    SETTINGS,
    USUAL_OPTIONS,
    SetOption,
    read_options,
)
from afield.cli.train import train
from afield.data.training_settings import Training
from afield.reporting import formats
from afield.runs.selection import RULES
from afield.studies.benchmark import OPTIONS


def help_of(option):
    return option.__metadata__[0].help


def test_the_help_of_rules_explains_every_rule():
    assert re.findall(r" ([a-z-]+):", OPTIONS["rules"].help) == list(RULES)


def test_the_list_of_settings_describes_every_setting_once(afield):
    code, out, _ = afield("list", "settings", width=80)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    # Names stand in the first column.
    listed = [line.split()[0] for line in out.splitlines() if re.match(r" \w", line)]
    assert sorted(listed) == sorted(field.name for field in fields(Training))
    assert "afield list settings" in " ".join(help_of(SetOption).split())


@pytest.mark.parametrize("command", USUAL_OPTIONS)
def test_the_short_help_has_about_a_dozen_options_and_says_where_the_others_are(afield, command):
    _, short, _ = afield(command, "--help", width=80)
    _, long, _ = afield(command, "--help-all", width=80)
    shown, every = (
        set(re.findall(r"^│ (?:\*  |   )?--([a-z-]+)", out, re.M)) for out in (short, long)
    )
    assert 10 <= len(shown) <= 15
    # Every name of the list is one of an option.
    named = {name.strip("_").replace("_", "-") for name in USUAL_OPTIONS[command]}
    assert shown == named | {"help"}
    assert shown < every
    assert f"afield {command} --help-all shows all" in short
    assert len(short.splitlines()) < len(long.splitlines()) / 1.5


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
