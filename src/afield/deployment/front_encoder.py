"""A frozen network in front of a model that was trained on its features.

The model then takes the images or texts themselves, as if the whole network had been trained.
"""

import logging
from dataclasses import replace
from typing import Any

from torch import nn

from afield.compute import preserve_torch_state
from afield.data.domains import DomainSet
from afield.data.frames import split_spec
from afield.data.inputs import Inputs
from afield.deployment.model import EncodedNetwork
from afield.deployment.model_folder import Architecture, Description, FrozenEncoder
from afield.errors import AfieldError
from afield.networks.backbone import find_backbone
from afield.networks.inference import BatchPredictor
from afield.networks.pretrained import Encoder

log = logging.getLogger(__name__)


def build_encoder(dataset: DomainSet) -> tuple[Encoder, nn.Module] | None:
    """The network that computed the features of a dataset; None if they are not features.

    If its weights are not at hand any more, that is logged, and the model takes features.
    """
    encoder = Encoder.from_provenance(dataset.provenance)
    if encoder is None:
        return None
    try:
        return encoder, encoder.build()
    except AfieldError as error:
        samples = "texts" if encoder.tokens else "images"
        log.warning("the model will take features, not %s: %s", samples, error)
        return None


def put_encoder_in_front(
    about: Description,
    network: nn.Module,
    encoder: Encoder,
    features: nn.Module,
    *,
    dataset: str = "",
) -> tuple[Description, nn.Module]:
    """The description and network of the model that takes the images or texts themselves.

    `dataset` is the name of the dataset whose features were computed.
    """
    if isinstance(network, BatchPredictor):
        log.warning(
            "%s: predicts from batches, so the model takes features, not %s",
            about.name,
            "texts" if encoder.tokens else "images",
        )
        return about, network
    inputs = _text_inputs(encoder, dataset) if encoder.tokens else _image_inputs(encoder)
    before = about.inputs
    with preserve_torch_state(cuda=False):
        whole = EncodedNetwork(features, before.stored[0], network)
    whole.mean.copy_(before.per_channel(before.mean).expand_as(whole.mean))
    whole.std.copy_(before.per_channel(before.std).expand_as(whole.std))
    frozen = FrozenEncoder(encoder.backbone, before.stored[0], encoder.digest)
    architecture: Architecture = replace(about.architecture, encoder=frozen)
    return replace(about, inputs=inputs, architecture=architecture), whole.eval()


def _image_inputs(encoder: Encoder) -> Inputs:
    scaling = encoder.scaling()
    kind: Any = encoder.kind
    return Inputs(
        kind=kind,
        dtype="uint8",
        stored=encoder.stored,
        mean=tuple(scaling.mean.flatten().tolist()),
        std=tuple(scaling.std.flatten().tolist()),
        size=encoder.size,
    )


def _text_inputs(encoder: Encoder, dataset: str) -> Inputs:
    return Inputs(
        kind="texts",
        dtype="int32",
        stored=encoder.stored,
        mean=(0.0,),
        std=(1.0,),
        tokenizer=find_backbone(encoder.backbone).tokenizer,
        column=split_spec(dataset)[1].text,
    )
