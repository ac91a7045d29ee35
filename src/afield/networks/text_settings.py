"""Settings of networks for texts: how many tokens they see, and how these are pooled."""

from afield.data.domains import DomainSet
from afield.data.modality import Text
from afield.errors import SpecError
from afield.networks.backbone import Backbone, WholeNetwork, find_backbone

__all__ = ["token_count", "with_pooling"]

# Fewer tokens hold hardly more than the special ones.
MIN_TOKENS = 4


def with_pooling(backbone: Backbone, pooling: str) -> Backbone:
    """The backbone with a pooling that was chosen by hand, which is a part of its name."""
    if not pooling:
        return backbone
    if not backbone.name.startswith("hf:"):
        raise SpecError(f"pooling={pooling}: only for an encoder such as hf:FOLDER; leave it out")
    return find_backbone(f"{backbone.name.partition('?')[0]}?pooling={pooling}")


def token_count(chosen: int | None, backbone: Backbone, dataset: DomainSet) -> int:
    """The number of tokens at which texts are cut; 0 for other samples.

    Raises `SpecError` if the network takes no texts, or nothing else.
    """
    is_text = isinstance(dataset.modality, Text)
    # A network of the user's own may take anything.
    if is_text != backbone.takes_text and not isinstance(backbone, WholeNetwork):
        samples = "texts" if is_text else "no texts"
        instead = "small:text, or an encoder such as hf:FOLDER" if is_text else "another network"
        raise SpecError(f"{backbone.name}: {dataset.name} has {samples}; use {instead}")
    if not is_text:
        if chosen:
            raise SpecError(f"tokens={chosen}: {dataset.name} has no texts; leave it out")
        return 0
    if chosen is not None and chosen < MIN_TOKENS:
        raise SpecError(f"tokens={chosen}: texts need at least {MIN_TOKENS}")
    return chosen or backbone.usual_tokens
