"""Optimisers and schedules by name: what fits, with its options, and clear refusals."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from afield.errors import SpecError, UnknownNameError
from afield.training.optimizers import (
    DEFAULT_OPTIMIZER,
    canonical_optimizer,
    canonical_schedule,
    make_schedule,
    optimizer_factory,
    schedule_in_steps,
)
from tests.files import GOLDEN

make = partial(optimizer_factory, lr=0.1, weight_decay=0.0)


def parameters():
    return [torch.zeros(2, requires_grad=True)]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("adam", torch.optim.Adam),
        ("Adam", torch.optim.Adam),
        ("ADAMW", torch.optim.AdamW),
        ("sgd", torch.optim.SGD),
        ("SGD", torch.optim.SGD),
        ("rmsprop", torch.optim.RMSprop),
        ("RMSProp", torch.optim.RMSprop),
        ("adagrad", torch.optim.Adagrad),
        ("", torch.optim.Adam),
    ],
)
def test_every_optimiser_of_torch_is_known_by_its_name_in_any_case(text, kind):
    assert type(make(text)(parameters())).__bases__ == (kind,)


def test_the_usual_one_is_adam():
    assert DEFAULT_OPTIMIZER == "adam"
    assert make("")(parameters()).defaults == make(DEFAULT_OPTIMIZER)(parameters()).defaults


@pytest.mark.parametrize("text", ["", "sgd", "adamw:eps=0.01", "rmsprop"])
def test_settings_are_those_of_the_run_unless_others_are_given(text):
    made = optimizer_factory(text, lr=0.3, weight_decay=0.02)
    own = made(parameters()).defaults
    assert (own["lr"], own["weight_decay"]) == (0.3, 0.02)
    other = made(parameters(), lr=0.7).defaults
    assert (other["lr"], other["weight_decay"]) == (0.7, 0.02)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sgd:momentum=0.9", {"momentum": 0.9, "nesterov": False}),
        ("SGD:momentum=0.9,nesterov=true", {"momentum": 0.9, "nesterov": True}),
        ("sgd: momentum = 0.5 , nesterov = false ", {"momentum": 0.5, "nesterov": False}),
        ("sgd:", {"momentum": 0}),
        ("adam:amsgrad=true,eps=1e-3", {"amsgrad": True, "eps": 1e-3}),
        ("adam:betas=[0.5,0.9],eps=0.1", {"betas": (0.5, 0.9), "eps": 0.1}),
        ("adam:fused=null,foreach=false", {"fused": None, "foreach": False}),
    ],
)
def test_options_are_given_after_the_name(text, expected):
    result = make(text)(parameters()).defaults
    assert {name: result[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["adam", "AdamW", "sgd"])
def test_where_one_call_can_do_for_all_parameters_it_does_by_default(name):
    assert make(name)(parameters()).defaults["fused"] is True
    assert make(f"{name}:fused=false")(parameters()).defaults["fused"] is False


@pytest.mark.parametrize("name", ["rmsprop", "nadam"])
def test_others_are_as_torch_makes_them(name):
    kinds = {kind.lower(): getattr(torch.optim, kind) for kind in ("RMSprop", "NAdam")}
    plain = kinds[name](parameters(), lr=0.1, weight_decay=0.0)
    assert make(name)(parameters()).defaults == plain.defaults


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adamm", "no optimizer 'adamm'; did you mean 'adam'"),
        ("SDG", "no optimizer 'sdg'; did you mean 'sgd'"),
        ("sgdd:momentum=0.9", "no optimizer 'sgdd'; did you mean 'sgd'"),
        ("qqqq", "no optimizer 'qqqq'; known: .*adam, .*sgd"),
        # Neither takes a weight decay.
        ("lbfgs", "no optimizer 'lbfgs'; "),
        ("sparseadam", "no optimizer 'sparseadam'; "),
        # What else is in torch.optim.
        ("optimizer", "no optimizer 'optimizer'; "),
        ("lr_scheduler", "no optimizer 'lr_scheduler'; "),
        (":momentum=0.9", "no optimizer ''; "),
    ],
)
def test_an_unknown_name_is_answered_with_a_guess(text, message):
    with pytest.raises(UnknownNameError, match=f"^{message}") as error:
        canonical_optimizer(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sgd:momentun=0.9", "unexpected keyword argument 'momentun'"),
        ("adam:momentum=0.9", "unexpected keyword argument 'momentum'"),
        ("sgd:momentum=-1", "momentum"),
        ("sgd:nesterov=true", "[Nn]esterov"),
        ("sgd:momentum", "write name:option=value"),
        ("sgd:momentum=", "'' is neither a number, a list of numbers, true nor false"),
        ("sgd:momentum=much", "'much' is neither a number, a list of numbers, true nor false"),
        ("sgd:nesterov=True", "'True' is neither a number, a list of numbers, true nor false"),
        ("sgd:lr=0.1", "lr and weight_decay are settings of their own"),
        ("sgd:momentum=0.9, lr =0.1", "lr and weight_decay are settings of their own"),
        ("sgd:weight_decay=0.1", "write name:option=value"),
        ("sgd:params=3", "write name:option=value"),
        ("sgd:momentum=[0.9]", "momentum"),
        ("sgd:momentum=NaN", "'NaN' is neither a number"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(text, message):
    with pytest.raises(SpecError, match=message) as error:
        canonical_optimizer(text)
    assert str(error.value).startswith(f"optimizer={text}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "adamw", "sgd:momentum=0.9", "rmsprop", "adagrad", "nadam"])
def test_each_of_them_descends(text):
    (x,) = weights = [torch.full((3,), 2.0, requires_grad=True)]
    optimizer = optimizer_factory(text, lr=0.05, weight_decay=0.0)(weights)
    for _ in range(30):
        optimizer.zero_grad()
        x.square().sum().backward()
        optimizer.step()
    assert x.abs().max() < 2.0


@pytest.mark.parametrize("fused", ["true", "false"])
def test_sgd_with_momentum_and_decay_is_the_formula(fused):
    weights = [torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)]
    made = optimizer_factory(f"sgd:momentum=0.5,fused={fused}", lr=0.1, weight_decay=0.2)(weights)
    expected, speed = weights[0].detach().clone(), torch.zeros(2, dtype=torch.float64)
    for _ in range(4):
        made.zero_grad()
        (3 * weights[0].square() / 2).sum().backward()
        made.step()
        speed = 0.5 * speed + 3 * expected + 0.2 * expected
        expected = expected - 0.1 * speed
    torch.testing.assert_close(weights[0].detach(), expected)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("", ""),
        ("adam", ""),
        (" Adam:", ""),
        ("SGD", "sgd"),
        ("SGD: nesterov=true ,momentum=0.90", "sgd:momentum=0.9,nesterov=true"),
        ("adam:betas=[0.5, 0.90]", "adam:betas=[0.5,0.9]"),
    ],
)
def test_there_is_one_way_to_write_it(text, plain):
    assert canonical_optimizer(text) == plain
    assert canonical_optimizer(plain) == plain
    assert make(plain)(parameters()).defaults == make(text)(parameters()).defaults


def test_tensorflows_rmsprop_agrees_with_the_reference():
    """CrossGrad's: ε of 1 inside the root, the mean square starting at 1, gradients clipped."""
    numbers = np.load(GOLDEN / "crossgrad.npz")
    w = torch.tensor(numbers["rmsprop_tf1/w0"], requires_grad=True)
    made = optimizer_factory("rmsproptf:alpha=0.9,eps=1.0,momentum=0.9", lr=0.02, weight_decay=0.0)
    optimizer = made([w])
    for slope, after in zip(
        numbers["rmsprop_tf1/grads_before_clip"], numbers["rmsprop_tf1/w"], strict=True
    ):
        w.grad = torch.tensor(slope).clamp(-0.1, 0.1)
        optimizer.step()
        torch.testing.assert_close(w.detach(), torch.tensor(after), rtol=0, atol=1e-10)


def test_steps_have_the_same_bytes_as_those_of_torch_and_call_its_hooks():
    for name, kind, options in (
        ("", torch.optim.Adam, {"fused": True}),
        ("sgd:momentum=0.9", torch.optim.SGD, {"momentum": 0.9, "fused": True}),
        ("rmsprop", torch.optim.RMSprop, {}),
    ):
        weights = [torch.linspace(-1, 1, 7).requires_grad_() for _ in range(2)]
        make = optimizer_factory(name, lr=0.1, weight_decay=0.01)
        theirs = kind([weights[0]], lr=0.1, weight_decay=0.01, **options)
        ours, called = make([weights[1]]), []
        ours.register_step_post_hook(lambda *_, called=called: called.append(1))
        for step in range(6):
            for optimizer, weight in zip((theirs, ours), weights, strict=True):
                optimizer.zero_grad()
                (weight.square().sum() + step * weight.sum()).backward()
                optimizer.step()
            if step == 3:
                state, ours = ours.state_dict(), make([weights[1]])
                ours.load_state_dict(state)
        assert torch.equal(*weights)
        assert len(called) == 4
        assert not ours.state[weights[1]].get("exp_avg", weights[1].detach()).requires_grad


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
