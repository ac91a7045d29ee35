"""torchvision's networks give features alone, and start from files."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from afield.errors import SpecError
from afield.networks.backbone import network

# Importing timm takes two seconds, torchvision's networks one: whichever test is the first.
heavy = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Of networks and batches as small as these a second thread waits more than it works."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def inputs(shape: tuple[int, ...], n: int = 4) -> torch.Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


@heavy
def test_a_network_needs_a_linear_layer_at_its_end():
    assert network("torchvision:shufflenet_v2_x0_5", (3, 64, 64), 3).width == 1024
    with pytest.raises(SpecError, match=r"squeezenet1_1 does not end in a linear layer"):
        network("torchvision:squeezenet1_1", (3, 64, 64), 3)
    with pytest.raises(SpecError, match=r"takes color images, not 1 channel"):
        network("torchvision:resnet18", (1, 64, 64), 3)


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
