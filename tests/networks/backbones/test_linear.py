"""The network without hidden layers."""

import pytest
import torch

from afield.errors import SpecError, UnknownNameError
from afield.networks.backbone import find_backbone, network


def test_the_network_is_one_linear_layer_on_the_inputs():
    for shape in ((5,), (3, 4, 4)):
        net = network("linear", shape, 2)
        x = torch.randn(7, *shape)
        assert net.width == x[0].numel()
        assert torch.equal(net(x), net.head(x.flatten(1)))
        assert [name for name, _ in net.named_parameters()] == ["head.weight", "head.bias"]


def test_it_has_one_name_and_no_pretrained_weights():
    with pytest.raises(UnknownNameError, match="did you mean 'linear'"):
        find_backbone("linear:x").check()
    with pytest.raises(UnknownNameError, match="no backbone 'timm'"):
        find_backbone("timm")
    with pytest.raises(SpecError, match="omit --weights hub"):
        network("linear", (5,), 2, weights="hub")
