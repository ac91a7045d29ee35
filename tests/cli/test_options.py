"""Help texts of options: they name what exists, and nothing else."""

import re
from dataclasses import fields

from afield.cli.options import FORMATS, SetOption
from afield.data.domains import Training
from afield.reporting import formats
from afield.runs.selection import RULES
from afield.studies.benchmark import OPTIONS


def help_of(option):
    return option.__metadata__[0].help


def test_the_help_of_rules_explains_every_rule():
    assert re.findall(r" ([a-z-]+):", OPTIONS["rules"].help) == list(RULES)


def test_the_help_of_set_names_every_setting_that_has_no_option_of_its_own():
    own_option = {"steps", "backbone", "weights", "domains_per_step", "skip_broken"}
    for field in fields(Training):
        if field.name not in own_option:
            assert re.search(rf"\b{field.name}\b", help_of(SetOption)), field.name


def test_the_formats_are_those_of_the_tables_and_the_console():
    assert set(FORMATS) == {"console", *formats.FORMATS}
