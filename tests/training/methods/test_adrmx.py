"""ADRMX: the reference numbers, turns, pairs of a class, and the contrast."""

import torch
import torch.nn.functional as F

from afield.training.method import pool
from afield.training.methods.adrmx import ADRMX
from tests.training.methods.reference import theta
from tests.training.methods.references import Reference, replay

LOGS = {
    "loss_total": "loss",
    "loss_disc": "discriminator loss",
    "loss_clf_int": "label loss",
    "loss_clf_fin": "final loss",
    "loss_dmn": "domain loss",
    "loss_remixed": "remix loss",
    "loss_cnt_int": "label contrast",
    "loss_cnt_final": "final contrast",
}


def test_two_updates_equal_the_reference():
    method = ADRMX(turns=1, depth=3, width=7)
    replay("adrmx_mended", method, logs=LOGS, gradients=())
    # The second update is the discriminator's turn: no optimizer gets the file's gradients.
    reference = Reference("adrmx_mended")
    learner = reference.learner(method)
    reference.give_draws(method, 1)
    method.update(learner, reference.batches(1))
    for name, value in reference.below("grad/step1/").items():
        result = learner.model.get_parameter(name).grad
        torch.testing.assert_close(result, value, rtol=1e-9, atol=1e-12)


def test_the_discriminator_and_all_else_take_turns(model, task, stream):
    method = ADRMX(turns=2)
    learner = method.setup(model, task)
    moved = []
    for learner.step in range(6):
        before = theta(learner.model), theta(learner.parts["domain"])
        method.update(learner, next(stream))
        after = theta(learner.model), theta(learner.parts["domain"])
        moved.append([not torch.equal(a, b) for a, b in zip(before, after, strict=True)])
    # Updates 1 and 3 of every three are the discriminator's: those whose number from 1 is not
    # 2 modulo 3.
    assert moved == [[False, True], [True, False], [False, True]] * 2


def test_without_weights_the_two_classifications_are_left(model, task, stream):
    method, batches = ADRMX(domain=0, remix=0, contrast=0, discriminator=0, turns=0), next(stream)
    learner = method.setup(model, task)
    pooled, parts = pool(batches), learner.parts
    rest = learner.model.features(pooled.x) - parts["domain_features"](pooled.x)
    expected = F.cross_entropy(learner.model(pooled.x), pooled.y)
    expected = expected + F.cross_entropy(parts["final"](rest), pooled.y)
    torch.testing.assert_close(method.update(learner, batches)["loss"], expected.detach())


def test_pairs_are_two_different_samples_of_the_class():
    for _ in range(5):
        order = ADRMX().perm(0, torch.tensor(4), 10)
        assert sorted(order[:4].tolist()) == [0, 1, 2, 3]


def test_a_class_with_one_sample_is_not_remixed(model, task):
    method = ADRMX()
    learner = method.setup(model, task)
    z, y = torch.randn(3, 8), torch.tensor([0, 1, 2])
    assert method._remixed(learner, z, z, y) == 0
