import math

import pytest
import torch

from afield.averages.last import Last
from afield.errors import DivergedError
from afield.evaluation import Score, Scores
from afield.methods.erm import ERM
from afield.training import fit


def begun(model, task):
    learner, average = ERM().setup(model, task), Last()
    average.follow(learner.model, steps=learner.task.steps)
    return learner, average


def test_a_checkpoint_comes_every_so_often_and_at_the_end(model, task, stream):
    learner, average = begun(model, task)
    found = list(fit(ERM(), learner, average, stream, lambda _: {}, steps=11, every=4))
    assert [checkpoint.step for checkpoint in found] == [4, 8, 11]


def test_to_stop_early_is_to_stop_iterating(model, task, stream):
    learner, average = begun(model, task)
    for _ in fit(ERM(), learner, average, stream, lambda _: {}, steps=100, every=5):
        break
    assert learner.step == 5


def test_a_trained_learner_goes_on_where_it_is(model, task, stream):
    learner, average = begun(model, task)
    list(fit(ERM(), learner, average, stream, lambda _: {}, steps=6, every=3))
    found = list(fit(ERM(), learner, average, stream, lambda _: {}, steps=9, every=3))
    assert [checkpoint.step for checkpoint in found] == [9]


def test_evaluation_gets_the_deployed_model_and_training_goes_on_in_training_mode(
    model, task, stream
):
    learner, average = begun(model, task)
    seen = []

    def evaluate(deployed):
        seen.append((deployed is average.model, learner.step))
        deployed.eval()
        return {}

    for _ in fit(ERM(), learner, average, stream, evaluate, steps=4, every=2):
        assert learner.model.training
    assert seen == [(True, 2), (True, 4)]


def test_logs_are_means_since_the_last_checkpoint(model, task, stream):
    class Counting(ERM):
        def update(self, learner, batches):
            return {"n": torch.tensor(float(learner.step))}

    learner, average = begun(model, task)
    found = list(fit(Counting(), learner, average, stream, lambda _: {}, steps=6, every=3))
    assert [checkpoint.logs["n"] for checkpoint in found] == [1.0, 4.0]


def test_divergence_is_an_error_that_names_method_and_step(model, task, stream):
    learner, average = begun(model, task)
    with torch.no_grad():
        learner.model.head.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="ERM at step 3"):
        list(fit(ERM(), learner, average, stream, lambda _: {}, steps=6, every=3))


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
    list(fit(Halves(), learner, average, stream, lambda _: {}, steps=4, every=4))
    assert sizes == [[8, 8, 8], [8, 8, 8], [12, 12], [12, 12]]


def test_an_average_sees_nothing_of_unseen_domains(model, task, stream):
    class Watching(Last):
        def after_checkpoint(self, checkpoint):
            seen.append(set(checkpoint.scores))

    seen = []
    learner, average = ERM().setup(model, task), Watching()
    average.follow(learner.model, steps=learner.task.steps)
    score = Scores(probe=Score(0.5, 0.5, 1.0, 8))
    everything = dict.fromkeys((*task.sources, "target"), score)
    (checkpoint,) = fit(ERM(), learner, average, stream, lambda _: everything, steps=3, every=3)
    assert set(checkpoint.scores) == {*task.sources, "target"}
    assert seen == [set(task.sources)]


def test_a_source_loss_that_is_not_finite_is_divergence(model, task, stream):
    learner, average = begun(model, task)
    scores = {task.sources[0]: Scores(probe=Score(0.1, 0.1, math.nan, 8))}
    with pytest.raises(DivergedError, match="ERM at step 1"):
        list(fit(ERM(), learner, average, stream, lambda _: scores, steps=1, every=1))


def test_logs_may_have_other_names_at_other_steps(model, task, stream):
    class Alternating(ERM):
        def update(self, learner, batches):
            return {"even" if learner.step % 2 == 0 else "odd": torch.tensor(float(learner.step))}

    learner, average = begun(model, task)
    (found,) = fit(Alternating(), learner, average, stream, lambda _: {}, steps=4, every=4)
    assert found.logs == {"even": 1.0, "odd": 2.0}
