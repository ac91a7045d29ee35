import torch

from afield.training.building_blocks.feature_distances import WIDTHS, kernel_distance
from afield.training.building_blocks.forward import forward
from afield.training.method import risks
from afield.training.methods.rdm import RDM, matching
from tests.training.methods.references import loss_of, replay, unequal


def test_it_equals_the_public_code():
    logs = {"total_loss": "loss", "erm_loss": "risk"}
    method = RDM(penalty=5.0, variance_weight=0.1, warmup=0.25, lr_factor=0.4)
    replay("rdm", method, logs=logs)


def test_the_worst_domain_is_compared_with_all_samples(model, task, stream):
    outputs = forward(RDM().setup(model, task), unequal(next(stream)))
    worst = outputs.by_domain(outputs.losses)[int(outputs.risks.argmax())]
    pair = [worst[:, None], outputs.losses[:, None]]
    distance, variance = matching(outputs)
    torch.testing.assert_close(distance, kernel_distance(pair, (1e-4, *WIDTHS)))
    torch.testing.assert_close(variance, worst.var() + outputs.losses.var())


def test_without_weights_it_is_the_mean_of_the_risks(model, task, stream):
    batches, learner = unequal(next(stream)), RDM().setup(model, task)
    loss = loss_of(RDM(penalty=0.0, variance_weight=0.0), learner, batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())
