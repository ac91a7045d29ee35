import torch
import torch.nn.functional as F

from afield.training.method import pool
from afield.training.methods.erm import ERM
from afield.training.methods.lisa import LISA
from tests.training.methods.references import loss_of, unequal


def test_partners_share_the_class_or_the_domain_but_not_both(stream):
    torch.manual_seed(0)
    batch = pool(unequal(next(stream)))
    alone = torch.arange(len(batch.y))
    for same_label in (1.0, 0.0):
        partner = LISA(same_label=same_label).partners(batch)
        paired = partner != alone
        assert paired.float().mean() > 0.9
        same_class = (batch.y == batch.y[partner])[paired]
        same_domain = (batch.domain == batch.domain[partner])[paired]
        assert same_class.all() == bool(same_label)
        assert not same_class.any() or same_label
        assert same_domain.all() != bool(same_label)


def test_who_has_no_partner_stays_alone(stream):
    batch = pool(next(stream)[:1])
    assert LISA(same_label=1.0).partners(batch).tolist() == list(range(len(batch.y)))


def test_with_the_whole_share_of_its_own_a_sample_is_not_mixed(model, task, stream):
    method, batches = LISA(), unequal(next(stream))
    object.__setattr__(method, "lam", lambda like: torch.ones(()))
    learner = method.setup(model, task)
    loss = loss_of(method, learner, batches)
    torch.testing.assert_close(loss, loss_of(ERM(), learner, batches))


def test_inputs_and_labels_are_mixed_alike(model, task, stream):
    method, batches = LISA(), next(stream)
    batch, partner = pool(batches), torch.randperm(24)
    object.__setattr__(method, "lam", lambda like: torch.tensor(0.3))
    object.__setattr__(method, "partners", lambda batch: partner)
    logits = model(0.3 * batch.x + 0.7 * batch.x[partner])
    labels = 0.3 * F.one_hot(batch.y, 4) + 0.7 * F.one_hot(batch.y[partner], 4)
    expected = F.cross_entropy(logits, labels)
    torch.testing.assert_close(loss_of(method, method.setup(model, task), batches), expected)
