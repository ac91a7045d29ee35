"""BatchNorm on statistics of the test batch."""

import torch
from torch import nn

from afield.networks.backbone import Classifier
from afield.training.adaptations.batch_norm import BatchNorm


def network(**options: bool) -> Classifier:
    torch.manual_seed(0)
    model = Classifier(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)), 3, 2, **options)
    model(torch.randn(20, 3))
    return model.eval()


def test_every_batch_is_normalized_by_its_own_statistics_and_dropout_stays_off():
    model = network()
    x = 5 + 3 * torch.randn(10, 3)
    scaled = (x - x.mean(dim=0)) / (x.var(dim=0, correction=0) + 1e-5).sqrt()
    expected = model.head(scaled)
    torch.testing.assert_close(BatchNorm().predictor(model)(x), expected)


def test_the_trained_statistics_stay():
    model = network(freeze_bn=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    BatchNorm().predictor(model)(torch.randn(10, 3))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_shift_and_scale_of_all_inputs_changes_nothing():
    predictor = BatchNorm().predictor(network())
    x = torch.randn(10, 3)
    torch.testing.assert_close(predictor(7 + 100 * x), predictor(x), rtol=1e-3, atol=1e-3)
