"""`afield list` and `afield explain`: every method, merge, average, dataset and diagnostic."""

import pytest

from afield import registry
from afield.cli.explain import MAX_NAMES, describe_range, explanation_text
from afield.data.lookup import find_dataset
from afield.errors import UnknownNameError
from afield.hyperparameters import defaults, ranges, validate_values

EVERYTHING = [(kind, name) for kind in registry.KINDS for name in registry.names(kind)]


def test_list_has_a_line_on_everything(afield):
    code, out, _ = afield("list")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    for kind, name in EVERYTHING:
        assert registry.summary(kind, name) in lines[name]
    assert "rotated_digits" not in afield("list", "methods")[1]


def test_explain_prints_formula_settings_and_ranges(afield):
    code, out, _ = afield("explain", "vrex")
    assert code == 0
    penalty = "penalty = 10.0    (draws: 0.1 to 100000, on a log scale)"
    for words in ("vrex (methods)", penalty, "Differs from"):
        assert words in out
    assert afield("explain", "erm")[1].endswith("\nsettings: none\n")


def test_an_explanation_fits_a_narrow_terminal(afield):
    code, out, _ = afield("explain", "vrex", width=60)
    assert code == 0
    assert max(len(line) for line in out.splitlines() if not line.startswith(" ")) <= 60
    assert "    loss = mean(risks) + penalty · var(risks)" in out.splitlines()


def test_an_explanation_has_the_whole_docstring_and_every_setting():
    for kind, name in EVERYTHING:
        text = explanation_text(name)
        assert text.startswith(f"{name} ({kind})\n\n{registry.docstring(kind, name)}")
        instance = registry.find(kind, name)
        for setting, default in defaults(instance).items() if kind != "datasets" else ():
            (line,) = [x for x in text.splitlines() if x.startswith(f"  {setting} = ")]
            shown = line.partition(" = ")[2].partition("    ")[0].strip("'")
            assert validate_values(instance, {setting: shown}, owner=name) == {setting: default}
            if setting in ranges(instance):
                assert line.endswith(f"({describe_range(ranges(instance)[setting])})")


def test_a_dataset_is_explained_with_its_domains_classes_and_defaults():
    for name in registry.names("datasets"):
        dataset, lines = find_dataset(name), explanation_text(name).splitlines()
        facts = dict(line.split(": ", 1) for line in lines if ": " in line)
        for names, fact in ((dataset.domains, "domains"), (dataset.classes, "classes")):
            assert facts[fact].startswith(", ".join(names[:MAX_NAMES]))
            hidden = len(names) - MAX_NAMES
            assert (f"{hidden} more" in facts[fact]) == (hidden > 0)
        assert f"steps {dataset.training.steps}," in facts["training"]
        assert f"backbone {dataset.training.backbone}" in facts["training"]
        assert facts["here"] == "yes" or facts["here"].startswith("no; ")


def test_an_unknown_name_is_answered_with_a_guess_among_all_kinds():
    for wrong, right in (("verx", "vrex"), ("emma", "ema"), ("spirls", "spirals")):
        with pytest.raises(UnknownNameError, match=f"'{wrong}'; did you mean '{right}'"):
            explanation_text(wrong)


def test_values_are_shown_as_one_types_them():
    lines = explanation_text("dmg").splitlines()
    schedules = "one of none, constant, exponential, inverse; draws keep the default"
    assert f"  mask_schedule = none    ({schedules})" in lines
    assert "  layers = ''    (one of '' or features; draws keep the default)" in lines
