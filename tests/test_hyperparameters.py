"""Hyperparameters: ranges are kept, draws repeat themselves, and values are checked strictly."""

import math
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated

import numpy as np
import pytest
from pydantic import Field

from afield import registry
from afield.data.training_settings import Training
from afield.errors import SpecError
from afield.hyperparameters import (
    Added,
    Around,
    Choice,
    LogUniform,
    Uniform,
    Variant,
    build,
    defaults,
    draw_values,
    extremes,
    ranges,
    validate_values,
    with_neutral,
    without_neutral,
)
from afield.training.methods.arith import Arith


@dataclass(frozen=True)
class Recipe:
    weight: Annotated[float, Uniform(0.0, 2.0)] = 0.5
    penalty: Annotated[float, LogUniform(0.1, 1e5)] = 10.0
    warmup: Annotated[int, LogUniform(1, 1e4)] = 500
    layers: Annotated[int, Uniform(1, 4)] = 2
    decay: Annotated[float, Choice((0.9, 0.99, 0.999))] = 0.99
    batch: Annotated[int, Around(0.25, 2.0)] = 3
    lr: Annotated[float, Around(0.1, 3.0)] = 1e-3
    every: int | None = None
    shape: tuple[float, ...] = (1.0, 2.0)
    name: str = "plain"


@dataclass(frozen=True)
class Limited:
    x: Annotated[float, Uniform(0.0, 0.5), Field(le=1)] = 0.0


def merged(x: float, *, tau: Annotated[float, Uniform(0.5, 3.0)] = 1.96, times: int = 2) -> float:
    return x * tau * times


def many_draws(kind, count=300, **options):
    return [draw_values(kind, draw=draw, trial=0, **options) for draw in range(1, count + 1)]


def test_draw_zero_is_the_defaults():
    assert draw_values(Recipe, draw=0, trial=5) == vars(Recipe())


def test_what_is_given_as_a_start_takes_the_place_of_the_defaults():
    start = {"batch": 32, "name": "other"}
    assert draw_values(Recipe, draw=0, trial=0, start=start) == vars(Recipe(**start))
    assert draw_values(Recipe, draw=1, trial=0, start=start)["name"] == "other"


@pytest.mark.parametrize("name", list(ranges(Recipe)))
def test_draws_lie_within_their_range_and_keep_their_type(name):
    default = defaults(Recipe)[name]
    low, high = extremes(Recipe, name)
    for values in many_draws(Recipe):
        assert low <= values[name] <= high
        assert type(values[name]) is type(default)
    assert type(low) is type(high) is type(default)


def test_what_has_no_range_is_never_drawn():
    undrawn = {"every": None, "shape": (1.0, 2.0), "name": "plain"}
    assert set(ranges(Recipe)) == set(defaults(Recipe)) - set(undrawn)
    for values in many_draws(Recipe, 20):
        assert {name: values[name] for name in undrawn} == undrawn


def test_the_same_draw_of_the_same_trial_is_the_same():
    assert draw_values(Recipe, draw=3, trial=1) == draw_values(Recipe, draw=3, trial=1)


def test_every_draw_and_every_trial_has_its_own_values():
    result = {
        (draw, trial): draw_values(Recipe, draw=draw, trial=trial)["penalty"]
        for draw in range(1, 6)
        for trial in range(5)
    }
    assert len(set(result.values())) == len(result)


def test_two_hyperparameters_with_one_range_are_drawn_apart():
    kind = make_dataclass(
        "Twins", [(n, Annotated[float, Uniform(0, 1)], field(default=0.5)) for n in ("one", "two")]
    )
    assert all(values["one"] != values["two"] for values in many_draws(kind, 20))


def test_another_hyperparameter_changes_no_draw_of_the_others():
    first = ("first", Annotated[float, LogUniform(1e-3, 1.0)], field(default=0.1))
    last = ("last", Annotated[int, Choice((1, 2, 3, 4))], field(default=1))
    new = ("new", Annotated[float, Uniform(0, 1)], field(default=0.0))
    before = make_dataclass("Growing", [first, last])
    after = make_dataclass("Growing", [new, last, first])
    for old, grown in zip(many_draws(before, 30), many_draws(after, 30), strict=True):
        assert grown.pop("new") > 0
        assert grown == old


def test_uniform_is_even_and_log_uniform_is_even_over_orders_of_magnitude():
    values = many_draws(Recipe, 400)
    # Four standard deviations of a share of one half among 400.
    slack = 4 * 0.5 / math.sqrt(400)
    middles = {"weight": 1.0, "penalty": math.sqrt(0.1 * 1e5), "lr": 1e-3 * math.sqrt(0.1 * 3.0)}
    for name, middle in middles.items():
        assert np.mean([v[name] < middle for v in values]) == pytest.approx(0.5, abs=slack)


def test_every_option_of_a_choice_and_every_whole_number_of_a_range_comes():
    values = many_draws(Recipe)
    assert {v["decay"] for v in values} == {0.9, 0.99, 0.999}
    assert {v["layers"] for v in values} == {1, 2, 3, 4}


@pytest.mark.parametrize("factor", [2, 10])
def test_around_scales_with_what_it_starts_from(factor):
    plain = many_draws(Recipe, 50, start={"lr": 1e-3})
    scaled = many_draws(Recipe, 50, start={"lr": factor * 1e-3})
    for one, other in zip(plain, scaled, strict=True):
        assert other["lr"] == pytest.approx(factor * one["lr"])
        assert other["penalty"] == one["penalty"]


def test_a_batch_around_a_small_default_is_never_empty():
    drawn = [values["batch"] for values in many_draws(Training, start={"batch": 1})]
    assert set(drawn) == {1, 2}


def test_the_keywords_of_a_function_are_hyperparameters_too():
    assert ranges(merged) == {"tau": Uniform(0.5, 3.0)}
    assert defaults(merged) == {"tau": 1.96, "times": 2}
    values = draw_values(merged, draw=1, trial=0)
    assert 0.5 <= values["tau"] <= 3.0
    assert values["tau"] != 1.96
    assert values["times"] == 2


def test_the_defaults_and_every_draw_can_be_built():
    assert build(Recipe, {}) == Recipe()
    for values in many_draws(Recipe, 50):
        assert vars(build(Recipe, values)) == values


@pytest.mark.parametrize(
    ("name", "written", "meant"),
    [
        ("warmup", "3", 3),
        ("warmup", 3.0, 3),
        ("penalty", "1e-3", 1e-3),
        ("penalty", 2, 2.0),
        ("every", "none", None),
        ("every", "7", 7),
        ("shape", [1, "2"], (1.0, 2.0)),
        ("name", "3", "3"),
    ],
)
def test_values_are_read_in_the_declared_type(name, written, meant):
    result = getattr(build(Recipe, {name: written}), name)
    assert result == meant
    assert type(result) is type(meant)


NOT_FINITE = [math.nan, math.inf, -math.inf, "nan", "inf"]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        *(
            (Recipe, {name: wrong}, rf"^Recipe\.{name}=")
            for name, wrong in [
                ("warmup", "many"),
                ("warmup", 3.5),
                ("warmup", "none"),
                ("warmup", None),
                ("penalty", "much"),
                ("penalty", [1.0]),
                ("every", "sometimes"),
                ("name", 3),
                ("shape", 1.0),
            ]
        ),
        *((Recipe, {"penalty": x}, r"^Recipe\.penalty=.*not a finite number") for x in NOT_FINITE),
        *(
            (Recipe, {"shape": (1.0, x)}, r"^Recipe\.shape=.*not a finite number")
            for x in NOT_FINITE
        ),
        (Recipe, {"penalti": 1.0}, "Recipe has no setting 'penalti'; did you mean 'penalty'"),
        (merged, {"taw": 1.0}, "merged has no setting 'taw'; did you mean 'tau'"),
        *(
            (Arith, {"shares": x}, r"^Arith\.shares=")
            for x in ("0.5;0.5", "a,b", "0.5,nan", "0.5,inf", 0.5)
        ),
        *(
            (Recipe, {name: "-1"}, rf"^Recipe\.{name}=-1: must not be below 0$")
            for name in ("weight", "penalty", "warmup", "decay", "batch", "lr")
        ),
        (Limited, {"x": "2"}, r"^Limited\.x='2': should be less than or equal to 1$"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(kind, values, message):
    with pytest.raises(SpecError, match=message):
        validate_values(kind, values)


def test_a_refusal_names_the_owner_of_the_setting():
    with pytest.raises(SpecError, match=r"^vrex\.lr=-1: must not be below 0$"):
        validate_values(Recipe, {"lr": "-1"}, "vrex")
    with pytest.raises(SpecError, match=r"^Recipe\.warmup="):
        build(Recipe, {"warmup": "many"})


def test_an_unknown_setting_like_no_other_is_answered_with_all_there_are():
    with pytest.raises(SpecError) as caught:
        validate_values(Recipe, {"zzzzzz": 1.0})
    assert all(name in str(caught.value) for name in defaults(Recipe))


def test_whole_numbers_do_not_exceed_a_range_that_ends_between_them():
    @dataclass
    class Kind:
        n: Annotated[int, Uniform(1, 2.6)] = 1

    assert max(draw_values(Kind, draw=d, trial=0)["n"] for d in range(1, 100)) <= 2


def test_an_optional_whole_number_is_drawn_whole():
    @dataclass
    class Kind:
        n: Annotated[int | None, Uniform(1, 5)] = None

    assert isinstance(draw_values(Kind, draw=1, trial=0)["n"], int)


@dataclass(frozen=True)
class Forms:
    form: Annotated[str, Variant(("plain", "raw", "divided"))] = "raw"
    tests: Annotated[int, Variant((0, 1, 2))] = 1
    own: Annotated[tuple[float, ...], Variant(((), (0.2, 0.8)))] = ()
    rate: Annotated[float, Uniform(0.0, 1.0)] = 0.5


def test_a_variant_keeps_its_default_in_every_draw():
    for values in many_draws(Forms, 50):
        assert (values["form"], values["tests"], values["own"]) == ("raw", 1, ())
    assert len({values["rate"] for values in many_draws(Forms, 50)}) == 50


def test_a_variant_keeps_in_every_draw_what_it_was_started_from():
    for values in many_draws(Forms, 20, start={"form": "divided", "own": (0.5, 0.5)}):
        assert (values["form"], values["own"]) == ("divided", (0.5, 0.5))


def test_the_ends_of_a_variant_are_its_first_and_last_form():
    assert extremes(Forms, "form") == ("plain", "divided")
    assert extremes(Forms, "tests") == (0, 2)
    assert extremes(Forms, "own") == ((), (0.2, 0.8))
    assert ranges(Forms)["tests"] == Variant((0, 1, 2))


def test_a_variant_is_no_limit_to_what_can_be_asked_for():
    assert build(Forms, {"tests": "5"}).tests == 5


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("0.75, 0.5,0.25", (0.75, 0.5, 0.25)),
        ("1", (1.0,)),
        ("1,2,", (1.0, 2.0)),
        ("", ()),
        ([0.5, "0.5"], (0.5, 0.5)),
        ((), ()),
    ],
    ids=str,
)
def test_several_numbers_are_written_with_commas(written, meant):
    result = validate_values(Arith, {"shares": written})["shares"]
    assert result == meant
    assert type(result) is tuple
    assert all(type(each) is float for each in result)


@dataclass(frozen=True)
class Grown:
    """A kind to which a hyperparameter was added; the default has changed since."""

    first: Annotated[float, Uniform(0.0, 1.0)] = 0.5
    later: Annotated[int, Choice((0, 1)), Added(neutral=0)] = 1


def test_a_later_hyperparameter_is_not_kept_at_its_neutral_value_which_is_not_the_default():
    for value, kept in ((0, {"first": 0.1}), (1, {"first": 0.1, "later": 1})):
        values = {"first": 0.1, "later": value}
        assert without_neutral(Grown, values) == kept
        assert with_neutral(Grown, kept) == values


def test_values_outside_the_range_are_valid_if_no_limit_is_declared():
    values = {"weight": 7.0, "penalty": 0.0, "warmup": 0, "decay": 0.5, "lr": 100.0}
    assert validate_values(Recipe, values) == values


def test_a_range_with_numbers_below_0_has_no_limit_at_0():
    kind = make_dataclass("Kind", [("x", Annotated[float, Uniform(-1.0, 1.0)], 0.0)])
    assert validate_values(kind, {"x": -5}) == {"x": -5.0}


def test_a_declared_limit_holds_beside_the_range():
    assert validate_values(Limited, {"x": 0.75}) == {"x": 0.75}


@pytest.mark.parametrize("kind", ["methods", "averages", "adaptations", "merges", "diagnostics"])
def test_no_setting_accepts_a_number_below_0_that_its_range_does_not_have(kind):
    for name in registry.names(kind):
        instance = registry.find(kind, name)
        for setting in ranges(instance):
            low, high = extremes(instance, setting)
            if {type(low), type(high)} <= {int, float} and low >= 0:
                with pytest.raises(SpecError, match=rf"{name}\.{setting}=-1"):
                    validate_values(instance, {setting: -1}, name)
