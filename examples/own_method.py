"""A new method without a package: minimize only the risk of the worst domain.

    python examples/own_method.py

To use it on the command line, see "Add a method" in CONTRIBUTING.md.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from afield import find
from afield.data import Stream, find_dataset, pool_domains
from afield.networks import network
from afield.training import Batches, Evaluator, Learner, Logs, Method, Task, checkpoints, risks


@dataclass(frozen=True)
class Worst(Method):
    """Minimize the greatest risk among the source domains."""

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Return the greatest risk."""
        return risks(learner.model, batches).max(), {}


def main() -> None:
    """Train on all domains but one with the components that `afield train` uses."""
    torch.manual_seed(0)
    dataset = find_dataset("spirals")
    domains = dataset.load()
    target = domains.pop("turn20")
    task = Task(
        sources=tuple(domains),
        classes=dataset.classes,
        steps=200,
        network=lambda outputs: network("small:mlp", (2,), outputs),
        optimizer=partial(torch.optim.Adam, lr=3e-3),
    )
    method, average = Worst(), find("averages", "last")()
    learner = method.setup(task.network(len(dataset.classes)), task)
    average.setup(learner.model, steps=task.steps)
    stream = Stream(pool_domains(domains), batch=32, seed=0)
    evaluator = Evaluator({("turn20", "main"): target})
    for checkpoint in checkpoints(
        method, learner, average, stream, evaluator.evaluate, steps=200, every=50
    ):
        score = checkpoint.score("turn20", "main")
        if score is not None:
            print(f"step {checkpoint.step}: {100 * score.accuracy:.1f} % on the unseen domain")


if __name__ == "__main__":
    main()
