import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from afield.data.stream import Stream
from afield.errors import DivergedError
from afield.networks.backbone import Classifier
from afield.training.averages.ema import EMA
from afield.training.averages.last import Last
from afield.training.averages.swa import SWA
from afield.training.averages.swad import SWAD
from afield.training.loop import checkpoints
from afield.training.method import pool
from afield.training.methods.erm import ERM
from afield.training.scores import Score, Scores


def begun(model, task):
    learner, average = ERM().setup(model, task), Last()
    average.setup(learner.model, steps=learner.task.steps)
    return learner, average


def test_a_checkpoint_comes_every_so_often_and_at_the_end(model, task, stream):
    learner, average = begun(model, task)
    result = list(checkpoints(ERM(), learner, average, stream, lambda _: {}, steps=11, every=4))
    assert [checkpoint.step for checkpoint in result] == [4, 8, 11]


def test_to_stop_early_is_to_stop_iterating(model, task, stream):
    learner, average = begun(model, task)
    for _ in checkpoints(ERM(), learner, average, stream, lambda _: {}, steps=100, every=5):
        break
    assert learner.step == 5


def test_a_trained_learner_goes_on_where_it_is(model, task, stream):
    learner, average = begun(model, task)
    list(checkpoints(ERM(), learner, average, stream, lambda _: {}, steps=6, every=3))
    result = list(checkpoints(ERM(), learner, average, stream, lambda _: {}, steps=9, every=3))
    assert [checkpoint.step for checkpoint in result] == [9]


def test_evaluation_gets_the_deployed_model_and_training_goes_on_in_training_mode(
    model, task, stream
):
    learner, average = begun(model, task)
    seen = []

    def evaluate(deployed):
        seen.append((deployed is average.model, learner.step))
        deployed.eval()
        return {}

    for _ in checkpoints(ERM(), learner, average, stream, evaluate, steps=4, every=2):
        assert learner.model.training
    assert seen == [(True, 2), (True, 4)]


def test_logs_are_means_since_the_last_checkpoint(model, task, stream):
    class Counting(ERM):
        def update(self, learner, batches):
            return {"n": torch.tensor(float(learner.step))}

    learner, average = begun(model, task)
    result = list(checkpoints(Counting(), learner, average, stream, lambda _: {}, steps=6, every=3))
    assert [checkpoint.logs["n"] for checkpoint in result] == [1.0, 4.0]


def test_divergence_is_an_error_that_names_method_and_step(model, task, stream):
    learner, average = begun(model, task)
    with torch.no_grad():
        learner.model.head.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="ERM at step 3"):
        list(checkpoints(ERM(), learner, average, stream, lambda _: {}, steps=6, every=3))


def test_a_method_may_regroup_the_samples(model, task, stream):
    class Halves(ERM):
        def regroup(self, learner, samples):
            if learner.step != 2:
                return None
            everything = list(range(len(samples)))
            return [everything[::2], everything[1::2]]

        def update(self, learner, batches):
            sizes.append([len(batch.y) for batch in batches])
            return super().update(learner, batches)

    sizes = []
    learner, average = begun(model, task)
    list(checkpoints(Halves(), learner, average, stream, lambda _: {}, steps=4, every=4))
    assert sizes == [[8, 8, 8], [8, 8, 8], [12, 12], [12, 12]]


def test_an_average_sees_nothing_of_unseen_domains(model, task, stream):
    class Watching(Last):
        def after_checkpoint(self, checkpoint):
            seen.append(set(checkpoint.scores))

    seen = []
    learner, average = ERM().setup(model, task), Watching()
    average.setup(learner.model, steps=learner.task.steps)
    score = Scores(probe=Score(0.5, 0.5, 1.0, 8))
    everything = dict.fromkeys((*task.sources, "target"), score)
    (checkpoint,) = checkpoints(
        ERM(), learner, average, stream, lambda _: everything, steps=3, every=3
    )
    assert set(checkpoint.scores) == {*task.sources, "target"}
    assert seen == [set(task.sources)]


def test_a_source_loss_that_is_not_finite_is_divergence(model, task, stream):
    learner, average = begun(model, task)
    scores = {task.sources[0]: Scores(probe=Score(0.1, 0.1, math.nan, 8))}
    with pytest.raises(DivergedError, match="ERM at step 1"):
        list(checkpoints(ERM(), learner, average, stream, lambda _: scores, steps=1, every=1))


def test_logs_may_have_other_names_at_other_steps(model, task, stream):
    class Alternating(ERM):
        def update(self, learner, batches):
            return {"even" if learner.step % 2 == 0 else "odd": torch.tensor(float(learner.step))}

    learner, average = begun(model, task)
    (result,) = checkpoints(Alternating(), learner, average, stream, lambda _: {}, steps=4, every=4)
    assert result.logs == {"even": 1.0, "odd": 2.0}


def shown(model):
    """A number that tells weights apart."""
    return model.head.weight.detach().double().square().sum().item()


def evaluation(learner, losses, *, every=2):
    """Gives prescribed losses, and as accuracy a number that tells which model was examined."""

    def evaluate(model):
        loss = losses[learner.step // every - 1]
        score = Scores(probe=Score(shown(model), 0.5, loss, 8), main=Score(0.5, 0.5, 7.0, 8))
        return dict.fromkeys((*learner.task.sources, "target"), score)

    return evaluate


def trained(average, model, task, stream, *, losses, steps=20):
    """All checkpoints of a training with an average, and its learner; every second step is one."""
    learner = ERM().setup(copy.deepcopy(model), task)
    average.setup(learner.model, steps=steps)
    evaluate = evaluation(learner, losses)
    return list(
        checkpoints(ERM(), learner, average, stream, evaluate, steps=steps, every=2)
    ), learner


def source_scores(checkpoints, task):
    return [checkpoint.score(task.sources[0], "probe").accuracy for checkpoint in checkpoints]


# With two to converge and a patience of two, the valley begins at the third and ends at the fourth:
# two checkpoints later that is known.
ENDING = [3.0, 2.0, 1.0, 1.1, 2.0, 2.1, 0.5, 0.5, 0.5, 0.5]
SHORT = {"converge": 2, "patience": 2}


@pytest.mark.parametrize(("losses", "count"), [(ENDING, 6), ([1.0] * 10, 10)])
def test_an_average_that_chooses_itself_is_deployed_at_the_end_only(
    losses, count, model, task, samples
):
    plain, _ = trained(Last(), model, task, Stream(samples, batch=8, seed=0), losses=losses)
    average = SWAD(**SHORT)
    result, learner = trained(average, model, task, Stream(samples, batch=8, seed=0), losses=losses)
    assert [checkpoint.step for checkpoint in result] == list(range(2, 2 * count + 1, 2))
    assert [checkpoint.deployed for checkpoint in result] == [False] * (count - 1) + [True]
    # Until then one sees the model that is trained.
    assert result[:-1] == [replace(each, deployed=False) for each in plain[: count - 1]]
    assert source_scores(result[-1:], task) == [shown(average.model)]
    assert shown(average.model) != shown(learner.model)
    assert result[-1].logs == {**plain[count - 1].logs, **average.logs()}
    assert learner.model.training


def test_an_average_that_chooses_itself_sees_the_trained_model_and_the_sources_only(
    model, task, samples
):
    class Watching(SWAD):
        def after_checkpoint(self, checkpoint):
            seen.append(checkpoint)
            super().after_checkpoint(checkpoint)

    seen = []
    plain, _ = trained(Last(), model, task, Stream(samples, batch=8, seed=0), losses=ENDING)
    average = Watching(**SHORT)
    trained(average, model, task, Stream(samples, batch=8, seed=0), losses=ENDING)
    assert len(seen) == 6
    for checkpoint, known in zip(seen, plain, strict=False):
        assert tuple(checkpoint.scores) == task.sources
        assert checkpoint.scores == {name: known.scores[name] for name in task.sources}


def test_the_losses_of_the_target_do_not_reach_the_choice(model, task, samples):
    def weights(target_loss):
        learner, average = ERM().setup(copy.deepcopy(model), task), SWAD(**SHORT)
        average.setup(learner.model, steps=20)
        known = evaluation(learner, ENDING)

        def evaluate(model):
            target = Scores(probe=Score(0.5, 0.5, target_loss(learner.step), 8))
            return {**known(model), "target": target}

        stream = Stream(samples, batch=8, seed=0)
        list(checkpoints(ERM(), learner, average, stream, evaluate, steps=20, every=2))
        return average.model.head.weight, learner.step

    first, second = weights(float), weights(lambda step: 100.0 - step)
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1] == 12


def test_an_average_that_is_done_ends_the_training(model, task, samples):
    stream, average = Stream(samples, batch=8, seed=0), SWAD(**SHORT)
    result, learner = trained(average, model, task, stream, losses=ENDING)
    assert average.done
    assert result[-1].step == learner.step == stream.drawn == 12


def test_a_learner_resumed_where_the_average_was_done_makes_no_further_step(
    model, task, samples, tmp_path
):
    stream, average = Stream(samples, batch=8, seed=0), SWAD(**SHORT)
    _, learner = trained(average, model, task, stream, losses=ENDING)
    parts = {"learner": learner, "average": average, "stream": stream}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save(state, tmp_path / "state.pt")
    again, average_again = ERM().setup(task.network(4), task), SWAD(**SHORT)
    average_again.setup(again.model, steps=20)
    stream_again = Stream(samples, batch=8, seed=0)
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    for name, part in (("learner", again), ("average", average_again), ("stream", stream_again)):
        part.load_state_dict(saved[name])
    evaluate = evaluation(again, ENDING)
    assert not list(
        checkpoints(ERM(), again, average_again, stream_again, evaluate, steps=20, every=2)
    )
    assert again.step == stream_again.drawn == 12
    assert shown(average_again.model) == shown(average.model)
    assert shown(again.model) == shown(learner.model)


@pytest.mark.parametrize("average", [Last(), EMA(decay=0.9), SWA(start=0.5, period=2)], ids=repr)
def test_checkpoints_of_other_averages_are_all_deployed_and_show_them(
    average, model, task, samples
):
    result, _ = trained(average, model, task, Stream(samples, batch=8, seed=0), losses=[1.0] * 10)
    assert [checkpoint.deployed for checkpoint in result] == [True] * 10
    learner, stream = ERM().setup(copy.deepcopy(model), task), Stream(samples, batch=8, seed=0)
    average.setup(learner.model, steps=20)
    expected = []
    for step in range(20):
        ERM().update(learner, next(stream))
        average.after_step(learner.model)
        if step % 2:
            expected.append(shown(average.model))
    assert source_scores(result, task) == expected


def normed(task, *, freeze_bn=False):
    """A network with BatchNorm and dropout."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.3), nn.ReLU(), nn.Dropout(0.5)
    return Classifier(nn.Sequential(*layers), 8, len(task.classes), freeze_bn=freeze_bn)


def statistics(model):
    norm = model.features[1]
    return norm.running_mean.clone(), norm.running_var.clone()


def by_hand(model, samples, count):
    """Mean and variance of what comes into the BatchNorm, the mean of each over so many batches."""
    stream = Stream(samples, batch=8, seed=0)
    hidden = [model.features[0](pool(next(stream)).x).detach() for _ in range(count)]
    return (
        torch.stack([each.mean(dim=0) for each in hidden]).mean(dim=0),
        torch.stack([each.var(dim=0) for each in hidden]).mean(dim=0),
    )


# All samples once are seven batches; there are never more than steps from checkpoint to checkpoint.
@pytest.mark.parametrize(
    ("average", "every", "batches"),
    [(EMA(), 4, 4), (EMA(), 20, 7), (SWA(start=0.25), 3, 3), (SWAD(), 3, 7)],
    ids=repr,
)
def test_what_is_deployed_has_statistics_of_its_own(average, every, batches, task, samples):
    learner = ERM().setup(normed(task), task)
    average.setup(learner.model, steps=20)
    stream = Stream(samples, batch=8, seed=0)
    score = Scores(probe=Score(0.5, 0.5, 1.0, 8))
    seen = []

    def evaluate(model):
        if model is average.model:
            seen.append(([each.clone() for each in statistics(model)], copy.deepcopy(model)))
        return dict.fromkeys(task.sources, score)

    result = list(checkpoints(ERM(), learner, average, stream, evaluate, steps=20, every=every))
    assert len(seen) == sum(checkpoint.deployed for checkpoint in result) > 0
    for measured, model in seen:
        for mine, expected in zip(measured, by_hand(model, samples, batches), strict=True):
            torch.testing.assert_close(mine, expected)
    for mine, its in zip(seen[-1][0], statistics(learner.model), strict=True):
        assert not torch.allclose(mine, its, rtol=0.01)
    assert average.model.features[1].momentum == 0.3


@pytest.mark.parametrize("average", [EMA(), SWA(start=0.25), SWAD(**SHORT)], ids=repr)
def test_new_statistics_disturb_neither_the_training_nor_the_random_numbers(average, task, samples):
    result = []
    for each in (Last(), average):
        learner = ERM().setup(normed(task), task)
        each.setup(learner.model, steps=20)
        stream = Stream(samples, batch=8, seed=0)
        scores = dict.fromkeys(task.sources, Scores(probe=Score(0.5, 0.5, 1.0, 8)))
        torch.manual_seed(3)
        list(
            checkpoints(
                ERM(), learner, each, stream, lambda _, scores=scores: scores, steps=20, every=3
            )
        )
        assert all(module.training for module in learner.model.modules())
        assert learner.model.features[1].momentum == 0.3
        result.append((learner.model.state_dict(), torch.get_rng_state(), stream.drawn))
    (plain, random, drawn), (state, random_too, drawn_too) = result
    assert all(torch.equal(state[name], value) for name, value in plain.items())
    assert torch.equal(random, random_too)
    assert drawn == drawn_too == 20


@pytest.mark.parametrize("average", [EMA(), SWA(start=0.25), SWAD(**SHORT)], ids=repr)
def test_frozen_statistics_are_kept(average, task, samples):
    model = normed(task, freeze_bn=True)
    with torch.no_grad():
        model.features[1].running_mean.uniform_(-1, 1)
    before = statistics(model)
    trained(average, model, task, Stream(samples, batch=8, seed=0), losses=[1.0] * 10)
    assert all(torch.equal(*pair) for pair in zip(before, statistics(average.model), strict=True))
    assert not torch.equal(average.model.features[0].weight, model.features[0].weight)


@pytest.mark.parametrize(("kind", "calls"), [("none", 0), ("frozen", 0), ("free", 10 * 2)])
def test_nothing_is_computed_where_there_are_no_statistics_to_measure(
    kind, calls, model, task, samples
):
    network = model if kind == "none" else normed(task, freeze_bn=kind == "frozen")
    learner, average = ERM().setup(network, task), EMA()
    average.setup(learner.model, steps=20)
    seen = []
    average.model.register_forward_hook(lambda *_: seen.append(1))
    stream = Stream(samples, batch=8, seed=0)
    list(checkpoints(ERM(), learner, average, stream, lambda _: {}, steps=20, every=2))
    assert len(seen) == calls


def test_the_statistics_of_the_last_weights_are_those_of_their_training(task, samples):
    learner, average = ERM().setup(normed(task), task), Last()
    average.setup(learner.model, steps=20)
    mirror = ERM().setup(normed(task), task)
    stream, second = (Stream(samples, batch=8, seed=0) for _ in range(2))
    torch.manual_seed(3)
    list(checkpoints(ERM(), learner, average, stream, lambda _: {}, steps=20, every=2))
    torch.manual_seed(3)
    mirror.train()
    for _ in range(20):
        ERM().update(mirror, next(second))
    pairs = zip(statistics(average.model), statistics(mirror.model), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
