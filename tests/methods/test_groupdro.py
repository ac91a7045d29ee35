import pytest
import torch

from afield.method import risks
from afield.methods.erm import ERM
from afield.methods.groupdro import GroupDRO
from tests.methods.reference import batches, begun, expected


@pytest.mark.parametrize("eta", [0.01, 1.0])
def test_three_updates_equal_the_reference(eta):
    method = GroupDRO(eta=eta)
    learner = begun(method)
    for update in (1, 2, 3):
        logs = method.update(learner, batches(update - 1))
        found = {
            "W": learner.model.weight.detach(),
            "b": learner.model.bias.detach(),
            "q": learner.memory["q"],
            "loss": logs["loss"],
        }
        for what, value in found.items():
            reference = expected(f"GroupDRO_eta{eta}", update, what).reshape(value.shape)
            torch.testing.assert_close(value, reference, rtol=0, atol=1e-10)


def test_without_a_rate_it_is_the_mean_over_domains(model, task, stream):
    batches = next(stream)
    loss, _ = GroupDRO(eta=0.0).loss(GroupDRO().setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())
    torch.testing.assert_close(loss, ERM().loss(ERM().setup(model, task), batches)[0])


def test_a_huge_rate_leaves_the_worst_domain_alone(model, task, stream):
    batches = next(stream)
    loss, _ = GroupDRO(eta=1e3).loss(GroupDRO().setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).max())
