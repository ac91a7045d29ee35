import copy

import pytest
import torch
from torch import nn

from afield.errors import SpecError
from afield.training.averages.swa import SWA


def follow(average, steps):
    """After every step, what is trained and what is deployed; each step has weights of its own."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    average.setup(copy.deepcopy(model), steps=steps)
    result = []
    for _ in range(steps):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        average.after_step(model)
        both = (
            torch.cat([p.detach().flatten() for p in each.parameters()])
            for each in (model, average.model)
        )
        result.append(tuple(both))
    return result


@pytest.mark.parametrize(
    ("start", "period", "steps", "taken"),
    [
        (0.75, 1, 8, [6, 7]),
        (0.5, 1, 10, [5, 6, 7, 8, 9]),
        (0.5, 2, 10, [5, 7, 9]),
        (0.5, 3, 10, [5, 8]),
        (0.0, 1, 4, [0, 1, 2, 3]),
        (0.0, 10, 25, [0, 10, 20]),
        (0.3, 4, 20, [6, 10, 14, 18]),
        (0.9, 20, 10, [9]),
        # However short a training is, something of it is deployed.
        (0.9, 20, 1, [0]),
        (0.9, 20, 2, [1]),
        (0.9, 20, 3, [2]),
    ],
)
def test_it_is_the_mean_of_the_weights_from_the_start_on(start, period, steps, taken):
    weights, deployed = zip(*follow(SWA(start=start, period=period), steps), strict=True)
    for step in range(steps):
        so_far = [weights[i] for i in taken if i <= step]
        if so_far:
            expected = torch.stack(so_far).mean(dim=0)
            torch.testing.assert_close(deployed[step], expected, rtol=0, atol=1e-12)
        else:
            assert torch.equal(deployed[step], weights[step])


def test_every_checkpoint_of_it_may_be_deployed():
    assert not SWA().deploys_at_end
    assert not SWA().done


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"start": 1.0}, "swa.start=1: must be a share of the steps from 0 to below 1"),
        ({"start": -0.1}, "swa.start=-0.1: must be a share of the steps from 0 to below 1"),
        ({"start": 30.0}, "swa.start=30: must be a share of the steps from 0 to below 1"),
        ({"period": 0}, "swa.period=0: must be above 0"),
        ({"period": -5}, "swa.period=-5: must be above 0"),
    ],
)
def test_settings_without_a_meaning_are_refused(wrong, message):
    with pytest.raises(SpecError, match=f"^{message}$"):
        SWA(**wrong)


def test_however_late_it_starts_the_last_step_is_in_it(model):
    average = SWA(start=0.99)
    average.setup(model, steps=10)
    for _ in range(10):
        average.after_step(model)
    assert average.taken == 1
