"""The linear problem on which the reference numbers were made, and its replay."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from afield.data.samples import Batch
from afield.training.learner import Learner, Task
from afield.training.method import Method
from tests.files import GOLDEN

REFERENCE = np.load(GOLDEN / "baseline_updates.npz")
ARITH = np.load(GOLDEN / "arith.npz")

agree = partial(torch.testing.assert_close, rtol=0, atol=1e-10)


def begun(method: Method) -> Learner:
    """The linear model at its start, in float64, with Adam at rate 0.05."""
    model = nn.Linear(*reversed(REFERENCE["W0"].shape)).double()
    model.load_state_dict({"weight": _tensor("W0"), "bias": _tensor("b0")})
    optimizer = partial(torch.optim.Adam, lr=0.05)
    return method.setup(model, Task(("a", "b", "c"), ("0", "1", "2"), 3, nn.Linear, optimizer))


def batch_of(x: torch.Tensor, y: torch.Tensor, domain: int) -> Batch:
    """A batch of samples of one domain."""
    origin = torch.full_like(y, domain)
    return Batch(x, y, origin, origin)


def batches(update: int) -> list[Batch]:
    """The batches of one update, one a domain."""
    x, y = _tensor("X")[update], _tensor("Y")[update]
    return [batch_of(x[d], y[d], d) for d in range(len(x))]


def expected(name: str, update: int, what: str) -> torch.Tensor:
    """What the reference has after so many updates."""
    return _tensor(f"f64/lr0.05/{name}/{what}{update}")


def assert_equals_the_reference(
    method: Method,
    name: str,
    *,
    before_update: Callable[[int], None] = lambda _: None,
    further: Callable[[Learner], dict[str, torch.Tensor]] = lambda _: {},
) -> None:
    """Three updates give the weights, losses and further values of the reference."""
    learner = begun(method)
    for update in (1, 2, 3):
        before_update(update)
        logs = method.update(learner, batches(update - 1))
        linear = learner.model
        actual = {"W": linear.weight.detach(), "b": linear.bias.detach(), "loss": logs["loss"]}
        for what, value in (actual | further(learner)).items():
            agree(value, expected(name, update, what).reshape(value.shape))


def _tensor(name: str) -> torch.Tensor:
    array = REFERENCE[name]
    return torch.from_numpy(array.astype(np.float64) if array.dtype.kind == "f" else array)


def arith(name: str) -> torch.Tensor:
    """An array of the reference numbers for inner loops."""
    return torch.from_numpy(ARITH[name])


def arith_begun(method: Method, optimizer: Callable[..., torch.optim.Optimizer]) -> Learner:
    """The linear model at the start of the reference inner loops."""
    model = nn.Linear(*reversed(ARITH["W0"].shape)).double()
    model.load_state_dict({"weight": arith("W0"), "bias": arith("b0")})
    return method.setup(model, Task(("a", "b", "c"), ("0", "1", "2"), 2, nn.Linear, optimizer))


def arith_batches(update: int) -> list[Batch]:
    """The batches of one reference update: the first inner step of every domain."""
    x, y = arith("X")[update, :, 0], arith("Y")[update, :, 0]
    return [batch_of(x[d], y[d], d) for d in range(len(x))]


def fix_order(monkeypatch: pytest.MonkeyPatch, order: Sequence[int]) -> None:
    """From now on, domains come in this order."""
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.tensor(order[:n]))


def seeded_order(seed: int, n: int) -> list[int]:
    """Seed torch, and tell the order that it will draw first."""
    torch.manual_seed(seed)
    order = torch.randperm(n).tolist()
    torch.manual_seed(seed)
    return order


def precise(batches: Sequence[Batch]) -> list[Batch]:
    """Batches in float64."""
    return [batch._replace(x=batch.x.double()) for batch in batches]


def random_batches(n: int, *, size: int = 12, features: int = 6, classes: int = 4) -> list[Batch]:
    """A batch for each of n domains, in float64, and no two samples alike."""
    generator = torch.Generator().manual_seed(n)
    return [
        batch_of(
            torch.randn(size, features, generator=generator, dtype=torch.float64) + 0.5 * domain,
            torch.randint(classes, (size,), generator=generator),
            domain,
        )
        for domain in range(n)
    ]


def theta(model: nn.Module) -> torch.Tensor:
    """All weights of a network as one vector, a copy."""
    return parameters_to_vector(model.parameters()).detach().clone()


def followed(model: nn.Module) -> torch.Tensor:
    """The gradient that the optimiser was given last, as one vector."""
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


def risk(model: nn.Module, weights: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The mean loss of a batch at weights that are given as one vector."""
    sizes = [parameter.numel() for parameter in model.parameters()]
    named = zip(model.named_parameters(), weights.split(sizes), strict=True)
    values = {name: piece.view_as(old) for (name, old), piece in named}
    return F.cross_entropy(functional_call(model, values, (batch.x,)), batch.y)


def slope(model: nn.Module, weights: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The gradient of a batch at weights that are given as one vector."""
    return torch.func.grad(lambda at: risk(model, at, batch))(weights)
