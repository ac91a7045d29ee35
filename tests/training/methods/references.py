"""Reference numbers of the baselines: a file each in tests/golden/baselines, and their replay.

Every file has two or more consecutive updates of a tiny network in float64. `replay` does the
same updates with a method of ours, gives it the recorded draws, and compares weights, gradients,
parts, memory and logs after each.
"""

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from afield.data.samples import Batch
from afield.data.stream import Stream
from afield.networks.backbone import Classifier
from afield.training.learner import Learner, Task
from afield.training.method import Method
from afield.training.methods.erm import ERM
from tests.files import GOLDEN

# The longest run of all files has four updates; a share of the run is a multiple of a quarter.
STEPS = 4


class Reference:
    """The arrays of one file."""

    def __init__(self, name: str) -> None:
        with np.load(GOLDEN / "baselines" / f"{name}.npz") as file:
            self.arrays = {key: file[key] for key in file.files}

    def __getitem__(self, key: str) -> Tensor:
        """One array as a tensor."""
        return torch.from_numpy(np.array(self.arrays[key]))

    def below(self, prefix: str) -> dict[str, Tensor]:
        """All arrays whose key starts like this, by the rest of the key."""
        return {
            key.removeprefix(prefix): self[key] for key in self.arrays if key.startswith(prefix)
        }

    @cached_property
    def settings(self) -> dict[str, float]:
        """Settings in the words of DomainBed."""
        return json.loads(str(self.arrays["hp"]))

    @cached_property
    def updates(self) -> range:
        """Numbers of the updates, from 1."""
        return range(1, 1 + len({key.split("/")[1] for key in self.arrays if key[:2] == "x/"}))

    def batches(self, update: int) -> list[Batch]:
        """The batches of one update, one for each domain."""
        labels = self.below(f"y/step{update}/")
        origins = {domain: torch.full_like(y, int(domain)) for domain, y in labels.items()}
        return [
            Batch(self[f"x/step{update}/{domain}"], y, origins[domain], origins[domain])
            for domain, y in labels.items()
        ]

    def network(self, outputs: int = 3, channels: int = 1) -> Classifier:
        """A network of the kind that the file has: for rows of six numbers, or for pictures."""
        if self["x/step1/0"].ndim == 2:
            layers: list[nn.Module] = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)]
        else:
            layers = [nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(4, 5, 3, stride=2, padding=1), nn.ReLU()]
            layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return Classifier(nn.Sequential(*layers), 5, outputs).double()

    def task(self, **optimizer: float) -> Task:
        """The task of a run of four steps, with Adam at the file's learning rate."""
        options = {"lr": self.settings["lr"], "weight_decay": self.settings["weight_decay"]}
        return Task(
            sources=tuple(f"domain{i}" for i in range(len(self.batches(1)))),
            classes=("a", "b", "c"),
            steps=STEPS,
            network=self.network,
            optimizer=partial(torch.optim.Adam, **options | optimizer),
            shape=tuple(self["x/step1/0"].shape[1:]),
        )

    def learner(
        self, method: Method, model: nn.Module | None = None, **optimizer: float
    ) -> Learner:
        """A learner with the file's first weights in its model, its parts and its memory."""
        learner = method.setup(model or self.network(), self.task(**optimizer))
        learner.parts.double()
        first, own = self.below("init/"), learner.model.state_dict()
        # A part that is deployed belongs to the model.
        named = {name: name if name in first else f"parts.{name}" for name in own}
        learner.model.load_state_dict({name: first[key] for name, key in named.items()})
        learner.parts.load_state_dict(self.below("init/parts."), strict=False)
        for name, value in (first | self.below("init/memory.")).items():
            if name in learner.memory:
                learner.memory[name] = value.view_as(learner.memory[name])
        learner.train()
        return learner

    def give_draws(self, method: Method, update: int) -> None:
        """From now on, the method draws what this update of the file drew.

        The draw NAME is what `method.NAME(...)` returns; NAME.KEY is what `method.NAME(KEY, ...)`
        returns.
        """
        draws = self.below(f"draw/step{update}/")
        for name in {name.partition(".")[0] for name in draws}:
            keyed = {key.removeprefix(f"{name}."): value for key, value in draws.items()}
            object.__setattr__(method, name, partial(_recorded, name, keyed))


def unequal(batches: Sequence[Batch]) -> list[Batch]:
    """The same batches with fewer samples: one, two, three … fewer than before."""
    return [
        Batch(*(column[: len(column) - i] for column in batch))
        for i, batch in enumerate(batches, start=1)
    ]


def loss_of(method: Method, learner: Learner, batches: Sequence[Batch]) -> Tensor:
    """The loss that a method minimizes, with the warm-up over."""
    learner.step = learner.task.steps
    return method.loss(learner, batches)[0]


def assert_trains_as_erm(method: Method, model: nn.Module, task: Task, stream: Stream) -> Learner:
    """Three updates give the weights of ERM, bit for bit; returns the learner of the method."""
    ours, plain = (each.setup(copy.deepcopy(model), task) for each in (method, ERM()))
    for _ in range(3):
        batches = next(stream)
        method.update(ours, batches)
        ERM().update(plain, batches)
    for mine, its in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, its)
    return ours


def _recorded(name: str, draws: Mapping[str, Tensor], *arguments: object, **_: object) -> Tensor:
    return draws[name] if name in draws else draws[str(arguments[0])]


def memory(learner: Learner) -> dict[str, Tensor]:
    """The memory under the names of the files, where it may be called memory.NAME or NAME."""
    own = learner.memory
    return {**own, **{f"memory.{name}": value for name, value in own.items()}}


def replay(
    name: str,
    method: Method,
    *,
    logs: Mapping[str, str] | None = None,
    state: Callable[[Learner], Mapping[str, Tensor]] = memory,
    skip: Collection[str] = (),
    gradients: Collection[int] = range(1, 1 + STEPS),
    model: nn.Module | None = None,
    **optimizer: float,
) -> Learner:
    """Do all updates of a file, compare everything after each, and return the learner.

    Parameters
    ----------
    name, method
        Name of the file, and the method with the file's settings.
    logs
        Our name of what the file logs, by the file's name; ``{"loss": "loss"}`` by default.
    state
        Values beyond weights and parts, under the names that the file has for them.
    skip
        How the names of values begin that are not compared.
    gradients
        Updates after which to compare the gradients that the parameters have.
    model
        Another network than the usual one.
    optimizer
        Settings of Adam other than those of the file.
    """
    reference = Reference(name)
    learner = reference.learner(method, model, **optimizer)
    for update in reference.updates:
        reference.give_draws(method, update)
        result = method.update(learner, reference.batches(update))
        learner.step += 1
        parts = {f"parts.{key}": value for key, value in learner.parts.state_dict().items()}
        inside = {f"parts.{key}": value for key, value in learner.model.state_dict().items()}
        ours = {**learner.model.state_dict(), **inside, **parts, **state(learner)}
        for key, value in reference.below(f"step{update}/").items():
            if not key.startswith(tuple(skip)):
                _same(ours[key].detach().reshape(value.shape), value, f"{key}, update {update}")
        if update in gradients:
            _compare_gradients(reference, learner, update)
        for theirs, mine in ({"loss": "loss"} if logs is None else logs).items():
            value = reference[f"log/{theirs}"][update - 1]
            if not value.isnan():
                _near(result[mine], value, f"log {theirs}, update {update}")
    return learner


def _compare_gradients(reference: Reference, learner: Learner, update: int) -> None:
    own = dict(learner.model.named_parameters())
    for key, value in reference.below(f"grad/step{update}/").items():
        result = own[key].grad
        _near(torch.zeros_like(value) if result is None else result, value, f"∇ {key}, {update}")


def _same(result: Tensor, value: Tensor, what: str) -> None:
    """Equal to 1e-10."""
    torch.testing.assert_close(result, value, rtol=0, atol=1e-10, msg=lambda m: f"{what}: {m}")


def _near(result: Tensor, value: Tensor, what: str) -> None:
    """Equal to 1e-9 of the largest entry."""
    largest = float(value.abs().max())
    torch.testing.assert_close(
        result, value, rtol=1e-9, atol=1e-9 * largest, msg=lambda m: f"{what}: {m}"
    )
