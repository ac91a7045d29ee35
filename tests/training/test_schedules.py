"""Schedules: the factor at every step by hand, and one spelling for each."""

import math

import pytest

from afield.errors import SpecError
from afield.training.optimizers import canonical_schedule, make_schedule, schedule_in_steps


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("", ""),
        ("constant", ""),
        ("None", ""),
        ("Cosine", "cosine"),
        ("cosine:warmup=0", "cosine"),
        ("cosine:warmup=0.0", "cosine"),
        (" Cosine : warmup = 500.0", "cosine:warmup=500"),
        ("cosine:warmup=.10", "cosine:warmup=0.1"),
        ("cosine:warmup=1", "cosine:warmup=1"),
        # In all their digits.
        ("cosine:warmup=1234567", "cosine:warmup=1234567"),
        ("cosine:warmup=0.12345678", "cosine:warmup=0.12345678"),
        ("cosine:warmup=0.00001", "cosine:warmup=1e-05"),
        ("constant:warmup=5", "constant:warmup=5"),
        ("exponential", "exponential:every=epoch,rate=0.99"),
        ("Exponential: rate=.940, every=2epochs", "exponential:every=2epochs,rate=0.94"),
        ("exponential:every=1epoch", "exponential:every=epoch,rate=0.99"),
        ("inverse", "inverse:every=1,gamma=0.0001,power=0.75"),
        ("inverse:every=epoch,warmup=3", "inverse:every=epoch,gamma=0.0001,power=0.75,warmup=3"),
        ("inverse:gamma=0,power=0", "inverse:every=1,gamma=0.0,power=0.0"),
        ("step", "step:at=[0.8],rate=0.1"),
        ("step:rate=0.5,at=[0.9,15]", "step:at=[0.9,15],rate=0.5"),
        ("step:at=15.0", "step:at=[15],rate=0.1"),
    ],
)
def test_there_is_one_way_to_write_a_schedule(text, plain):
    assert canonical_schedule(text) == plain
    assert canonical_schedule(plain) == plain


@pytest.mark.parametrize(
    "text",
    [
        *("linear", "cosinee", "cosine:", "cosine:500", "cosine:rise=5", "cosine:warmup="),
        *("cosine:warmup=-1", "cosine:warmup=nan", "cosine:warmup=2.5", "cosine:warmup=5,6"),
        *("cosine:rate=0.1", "exponential:rate=2", "exponential:rate=0", "step:at=0", "step:at=[]"),
        *("exponential:every=0", "exponential:every=0epochs", "exponential:every=0.5"),
        *("inverse:gamma=-1", "inverse:power=[1,2]", "step:at=1.5", "inverse:every=epochal"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_one_line(text):
    with pytest.raises(SpecError) as error:
        canonical_schedule(text)
    assert str(error.value).startswith(f"lr_schedule={text}: ")
    assert "\n" not in str(error.value)


def test_without_a_schedule_nothing_is_to_be_kept():
    assert make_schedule("", 10) is None


def test_a_cosine_falls_from_all_to_almost_nothing():
    share = make_schedule("cosine", 100)
    assert share(0) == 1.0
    assert share(50) == pytest.approx(0.5)
    # At the step after the last one it would be 0.
    assert share(99) == pytest.approx(0.5 * (1 + math.cos(0.99 * math.pi)))
    assert share(100) == pytest.approx(0.0)


@pytest.mark.parametrize("text", ["cosine:warmup=20", "cosine:warmup=0.2"])
def test_a_warm_up_rises_in_equal_steps_to_all_of_it(text):
    share = make_schedule(text, 100)
    assert [share(step) for step in range(20)] == [(step + 1) / 20 for step in range(20)]
    assert share(20) == 1.0
    assert share(60) == pytest.approx(0.5)
    assert 0 < share(99) < 0.001


@pytest.mark.parametrize("warmup", [5, 50])
def test_a_warm_up_as_long_as_the_run_or_longer_only_rises(warmup):
    shares = [make_schedule(f"cosine:warmup={warmup}", 5)(step) for step in range(5)]
    assert shares == [(step + 1) / warmup for step in range(5)]


def test_an_exponential_falls_once_in_each_period():
    factor = make_schedule("exponential:every=3,rate=0.5", 9)
    assert [factor(step) for step in range(9)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]


def test_the_inverse_schedule_is_dmgs_with_its_first_step_at_the_full_rate():
    factor = make_schedule("inverse:gamma=0.0001,power=0.75", 5000)
    for t in (1, 2, 1000, 5000):
        assert factor(t - 1) == pytest.approx(1 / (1 + 1e-4 * (t - 1)) ** 0.75)
    per_epoch = make_schedule("inverse:gamma=1,power=1,every=10", 40)
    assert [per_epoch(step) for step in (0, 9, 10, 20, 39)] == [1, 1, 1 / 2, 1 / 3, 1 / 4]


def test_steps_multiply_the_rate_at_steps_or_at_shares_of_the_run():
    factor = make_schedule("step:at=[0.5,8],rate=0.1", 10)
    assert [round(factor(step), 6) for step in range(10)] == 5 * [1] + 3 * [0.1] + 2 * [0.01]


def test_after_a_warm_up_every_schedule_starts_at_the_full_rate():
    for text in ("constant", "cosine", "exponential:every=4", "inverse:gamma=1", "step:at=8"):
        separator = "," if ":" in text else ":"
        factor = make_schedule(f"{text}{separator}warmup=4", 20)
        assert [factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert make_schedule("exponential:every=4,rate=0.5,warmup=4", 20)(8) == 0.5


def test_epochs_become_steps_when_their_length_is_known():
    assert schedule_in_steps("exponential:every=epoch,rate=0.99", 25) == (
        "exponential:every=25,rate=0.99"
    )
    assert schedule_in_steps("inverse:every=2epochs,gamma=0.1,power=1.0,warmup=5", 25) == (
        "inverse:every=50,gamma=0.1,power=1.0,warmup=5"
    )
    assert schedule_in_steps("cosine", 25) == "cosine"
