import pytest
import torch

from afield.averages.last import Last
from afield.errors import DivergedError
from afield.methods.erm import ERM
from afield.training import fit


def begun(model, task):
    learner, average = ERM().setup(model, task), Last()
    average.follow(learner.model)
    return learner, average


def test_a_checkpoint_comes_every_so_often_and_at_the_end(model, task, stream):
    learner, average = begun(model, task)
    found = list(fit(ERM(), learner, average, stream, lambda *_: {}, steps=11, every=4))
    assert [checkpoint.step for checkpoint in found] == [4, 8, 11]


def test_to_stop_early_is_to_stop_iterating(model, task, stream):
    learner, average = begun(model, task)
    for _ in fit(ERM(), learner, average, stream, lambda *_: {}, steps=100, every=5):
        break
    assert learner.step == 5


def test_a_trained_learner_goes_on_where_it_is(model, task, stream):
    learner, average = begun(model, task)
    list(fit(ERM(), learner, average, stream, lambda *_: {}, steps=6, every=3))
    found = list(fit(ERM(), learner, average, stream, lambda *_: {}, steps=9, every=3))
    assert [checkpoint.step for checkpoint in found] == [9]


def test_evaluation_gets_the_deployed_model_and_training_goes_on_in_training_mode(
    model, task, stream
):
    learner, average = begun(model, task)
    seen = []

    def evaluate(deployed, step):
        seen.append((deployed is average.model, step))
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
    found = list(fit(Counting(), learner, average, stream, lambda *_: {}, steps=6, every=3))
    assert [checkpoint.logs["n"] for checkpoint in found] == [1.0, 4.0]


def test_divergence_is_an_error_that_names_method_and_step(model, task, stream):
    learner, average = begun(model, task)
    with torch.no_grad():
        learner.model.head.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="ERM at step 3"):
        list(fit(ERM(), learner, average, stream, lambda *_: {}, steps=6, every=3))


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
    list(fit(Halves(), learner, average, stream, lambda *_: {}, steps=4, every=4))
    assert sizes == [[8, 8, 8], [8, 8, 8], [12, 12], [12, 12]]
