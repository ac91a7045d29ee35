from types import SimpleNamespace

import torch
from torch import nn

from afield.merging.merges.greedy_soup import greedy_soup
from afield.runs.merged import _greedy
from afield.runs.run import Run
from afield.training.scores import Score, Scores
from tests.merging.merges.numbers import random

RUN = Run("toy", "greedy_soup", ("a", "b"))


def soup(*weights: float) -> tuple[float, int]:
    """The soup of networks with one weight, and how many networks it has.

    The closer a weight is to 1, the better it validates. The target says the opposite, which must
    not matter.
    """

    def evaluate(network: nn.Module) -> dict[str, Scores]:
        distance = abs(network.weight.item() - 1)
        score = Score(accuracy=1 - distance / 10, balanced_accuracy=0, loss=0, size=1)
        other = Score(accuracy=distance / 10, balanced_accuracy=0, loss=0, size=1)
        return {"a": Scores(probe=score), "b": Scores(probe=score), "new": Scores(main=other)}

    network = nn.Linear(1, 1, bias=False)
    work = SimpleNamespace(
        learner=SimpleNamespace(model=network), evaluations=SimpleNamespace(evaluate=evaluate)
    )

    def merged(states):
        result = nn.Linear(1, 1, bias=False)
        result.weight.data = greedy_soup(torch.stack([state["weight"] for state in states]))
        return result

    experts = [{"weight": torch.full((1, 1), weight)} for weight in weights]
    model, logs = _greedy(RUN, work, experts, merged)
    return model.weight.item(), logs["kept experts"]


def test_it_is_the_mean_of_what_it_is_given():
    deltas = random(3, 5, 4)
    torch.testing.assert_close(greedy_soup(deltas), deltas.mean(0))


def test_an_expert_is_kept_if_validation_does_not_fall():
    assert soup(1.5, 0.5, 4.0) == (1.0, 2)  # both of equal distance help, the third does not
    assert soup(4.0, 1.0, 3.0) == (1.0, 1)  # the best alone
    assert soup(2.0, 0.0, 1.0, 1.0) == (1.0, 2)  # what changes nothing is kept, but 2 and 0 do harm


def test_the_best_expert_comes_first():
    # In the order given, 0 and then 2.5 would be kept: their mean is nearer to 1 than 0 is.
    assert soup(-2.0, 0.9, 2.5) == soup(2.5, 0.9, -2.0) == (float(torch.tensor(0.9)), 1)
