"""Freezing the beginning of a network."""

import pytest

from afield.errors import SpecError
from afield.networks.backbone import network
from afield.networks.freezing import freeze_blocks
from tests.texts import write_encoder


def trained(net):
    return [name for name, parameter in net.named_parameters() if parameter.requires_grad]


def test_embeddings_and_the_first_blocks_are_frozen(tmp_path):
    folder = write_encoder(tmp_path, blocks=3)
    for count, frozen in ((1, ("0",)), (3, ("0", "1", "2"))):
        net = network(f"hf:{folder}", (8,), 2)
        freeze_blocks(net.features, count, "hf")
        blocks = [f"features.encoder.encoder.layer.{number}." for number in frozen]
        expected = [
            name
            for name, _ in net.named_parameters()
            if not name.startswith(("features.encoder.embeddings.", *blocks))
        ]
        assert trained(net) == expected
        assert "head.weight" in expected


def test_the_blocks_of_a_vision_transformer_and_of_the_small_text_network_are_found():
    vit = network("small:vit", (3, 16, 16), 2)
    freeze_blocks(vit.features, 4, "small:vit")
    after = [name for name in trained(vit) if name.startswith("features")]
    assert {name.split(".")[1] for name in after} == {"fc_norm"}
    text = network("small:text", (16,), 2)
    freeze_blocks(text.features, 2, "small:text")
    assert {".".join(name.split(".")[:3]) for name in trained(text)[:-2]} == {"features.blocks.2"}


def test_more_blocks_than_there_are_is_refused():
    with pytest.raises(SpecError, match=r"freeze_blocks=4: small:text has 3 block\(s\)"):
        freeze_blocks(network("small:text", (16,), 2).features, 4, "small:text")
    with pytest.raises(SpecError, match=r"has 0 block\(s\)"):
        freeze_blocks(network("small:cnn", (3, 16, 16), 2).features, 1, "small:cnn")
