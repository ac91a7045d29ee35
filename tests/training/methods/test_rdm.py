import torch

from afield.training.building_blocks.feature_distances import WIDTHS, kernel_distance
from afield.training.building_blocks.forward import forward
from afield.training.methods.rdm import RDM, matching
from tests.training.methods.references import unequal


def test_the_worst_domain_is_compared_with_all_samples(model, task, stream):
    outputs = forward(RDM().setup(model, task), unequal(next(stream)))
    worst = outputs.by_domain(outputs.losses)[int(outputs.risks.argmax())]
    pair = [worst[:, None], outputs.losses[:, None]]
    distance, variance = matching(outputs)
    torch.testing.assert_close(distance, kernel_distance(pair, (1e-4, *WIDTHS)))
    torch.testing.assert_close(variance, worst.var() + outputs.losses.var())
