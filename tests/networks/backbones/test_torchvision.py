"""torchvision's networks give features alone, and start from files."""

import pytest
import torch
from torch import nn

from afield.networks.backbone import network
from tests.networks.inputs import inputs

# Importing timm takes two seconds, torchvision's networks one: whichever test is the first.
heavy = pytest.mark.slow


@heavy
def test_a_network_with_a_linear_layer_at_its_end_has_its_width():
    assert network("torchvision:shufflenet_v2_x0_5", (3, 64, 64), 3).width == 1024


@heavy
def test_networks_with_further_outputs_in_training_give_features_alone():
    with pytest.warns(FutureWarning, match="weight initialization"):
        model = network("torchvision:googlenet", (3, 64, 64), 3)
    assert model.train()(inputs((3, 64, 64))).shape == (4, 3)


@heavy
def test_weights_of_torchvision_start_features_with_or_without_counts_of_batches(tmp_path):
    from torchvision.models import get_model

    torch.manual_seed(1)
    net = get_model("mobilenet_v3_small", num_classes=9)
    net.train()(3 * inputs((3, 32, 32)))
    net.eval()
    x = inputs((3, 32, 32))
    net.classifier[3] = nn.Identity()
    expected = net(x)
    for left_out in ("-", "num_batches_tracked"):
        file = tmp_path / f"{left_out}.pth"
        torch.save({k: v for k, v in net.state_dict().items() if left_out not in k}, file)
        model = network("torchvision:mobilenet_v3_small", (3, 32, 32), 4, weights=str(file)).eval()
        torch.testing.assert_close(model.features(x), expected)
