"""CLIP: open_clip's image encoders, and heads that are made of the names of the classes.

    features = v / |v|,   v the embedding of a picture
    head     = a row exp(s) · t / |t| for every class, no bias; s is the model's own logit scale,
               t the mean over TEMPLATES of the normalised embeddings of its name in each

Such a head is frozen, so that it is the image encoder that trains; the text encoder is not kept.
MODEL/TAG names an architecture and weights of the hub. With weights of a file, the tag still says
for which activations and colours they were made.

open_clip is an extra (``pip install 'afield[clip]'``).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import DataError, SpecError, UnknownNameError
from afield.registry import hint
from afield.weights import read_weights

__all__ = ["TEMPLATES", "build_clip", "clip_form", "has_clip_weights", "require_tag"]

TEMPLATES = (
    "a photo of a {}.",
    "a photo of the {}.",
    "a picture of a {}.",
    "an image of a {}.",
)
# The sides of pictures where an architecture does not say, as in open_clip.
DEFAULT_IMAGE_SIZE, DEFAULT_PATCH_SIZE = 224, 16


class Encoder(nn.Module):
    """The normalised embeddings of pictures; of one without colours all three are equal."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, x: Tensor) -> Tensor:
        """Samples × features, each row of length one."""
        found = self.visual(x.expand(-1, 3, -1, -1))
        # CoCa gives its tokens as well.
        return F.normalize(found[0] if isinstance(found, tuple) else found, dim=-1)


def clip_form(model: str) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """The pictures that a model was made for: pixels a side, mean and deviation of 0…1."""
    clip, architecture, tag = _known(model)
    made = clip.get_pretrained_cfg(architecture, tag)
    mean = made.get("mean", clip.OPENAI_DATASET_MEAN)
    std = made.get("std", clip.OPENAI_DATASET_STD)
    return (
        _vision(clip, architecture).get("image_size", DEFAULT_IMAGE_SIZE),
        tuple(mean),
        tuple(std),
    )


def has_clip_weights(model: str) -> bool:
    """Whether the hub has weights for the architecture."""
    clip, architecture, _ = _known(model)
    return bool(clip.list_pretrained_tags_by_model(architecture))


def require_tag(model: str) -> str:
    """Which weights of the hub are meant: none are the usual ones."""
    clip, architecture, tag = _known(model)
    if not tag:
        tags = clip.list_pretrained_tags_by_model(architecture)
        known = f"write clip:{architecture}/{tags[0]}, or give" if tags else "give"
        told = f"which weights of the hub? {known} --weights FILE, or none for random ones"
        raise SpecError(f"clip:{model}: {told}")
    return tag


def build_clip(
    model: str,
    shape: tuple[int, ...],
    weights: str,
    class_names: Sequence[str],
    *,
    hub: bool = False,
) -> tuple[nn.Module, Tensor | None]:
    """The image encoder for pictures of this shape, and the head for classes of these names.

    Parameters
    ----------
    model, shape
        MODEL or MODEL/TAG, and the shape of a picture; positions of a vision transformer are
        interpolated where that is not its own.
    weights, hub
        A file with both encoders, or nothing for random ones; or those of the hub.
    names
        The classes; without them there is no head.
    """
    clip, architecture, tag = _known(model)
    _check_shape(clip, model, shape, fixed=bool(weights) or hub)
    made = clip.get_pretrained_cfg(architecture, tag)
    if hub:
        made = clip.get_pretrained_cfg(architecture, require_tag(model))
        weights = clip.download_pretrained(made)
    elif weights:
        _check_whole(weights)
    own = clip_form(model)[0]
    # Not all architectures take both sides.
    side = shape[1] if shape[1] == shape[2] else shape[1:]
    with _quiet():
        net = clip.create_model(
            architecture,
            pretrained=weights or None,
            # Architectures are the same for both activations: which it was depends on the weights.
            force_quick_gelu=made.get("quick_gelu", False),
            force_image_size=None if side == own else side,
            pretrained_text=False,
        ).eval()
        head = (
            _head(clip, net, clip.get_tokenizer(architecture), class_names) if class_names else None
        )
    return Encoder(net.visual), head


def _head(clip: Any, net: Any, tokenizer: Any, names: Sequence[str]) -> Tensor:
    """A row for every class."""
    plain = [name.replace("_", " ") for name in names]
    columns = clip.build_zero_shot_classifier(net, tokenizer, plain, TEMPLATES)
    head: Tensor = (columns.T * net.logit_scale.detach().exp()).contiguous()
    return head


def _known(model: str) -> tuple[Any, str, str]:
    """The package, and what of it is meant: architecture and tag."""
    try:
        import open_clip
    except ImportError as error:
        raise SpecError(
            f"clip:{model}: the package open_clip is needed ({error}); pip install 'afield[clip]'"
        ) from None
    architecture, slash, tag = model.partition("/")
    known = open_clip.list_models()
    if architecture in known:
        tags = open_clip.list_pretrained_tags_by_model(architecture)
        known = [architecture, *(f"{architecture}/{each}" for each in tags)]
    if architecture not in known or (slash and model not in known):
        name, known = f"clip:{model}", [f"clip:{each}" for each in known]
        raise UnknownNameError(f"no backbone {name!r}; {hint(name, known)[:300]}")
    return open_clip, architecture, tag


def _vision(clip: Any, architecture: str) -> dict[str, Any]:
    found: dict[str, Any] = clip.get_model_config(architecture)["vision_cfg"]
    return found


def _check_shape(clip: Any, model: str, shape: tuple[int, ...], *, fixed: bool) -> None:
    """Refuse what would be cut off at the edges, or has no place in the weights."""
    if shape[0] not in (1, 3):
        raise SpecError(
            f"clip:{model} takes pictures in colour or in grey, not {shape[0]} channels"
        )
    vision = _vision(clip, model.partition("/")[0])
    own, patch = (
        vision.get("image_size", DEFAULT_IMAGE_SIZE),
        vision.get("patch_size", DEFAULT_PATCH_SIZE),
    )
    if "timm_model_name" in vision:
        return
    if not isinstance(vision["layers"], int):
        if fixed and shape[1:] != (own, own):
            told = f"has weights for pictures of {own} × {own}, not {shape[1]} × {shape[2]}"
            raise SpecError(f"clip:{model} {told}; use --set size={own}")
    elif any(side % patch for side in shape[1:]):
        raise SpecError(
            f"clip:{model} cuts pictures into squares of {patch} × {patch}, which {shape[1]} × "
            f"{shape[2]} are not made of; use --set size={own}, or another multiple of {patch}"
        )


def _check_whole(weights: str) -> None:
    """Refuse files of other models, by what every CLIP has; open_clip would not say it so well."""
    if not any(name.rpartition(".")[2] == "logit_scale" for name in read_weights(weights)):
        raise DataError(
            f"{weights}: no logit_scale in it, so no whole CLIP; give both encoders of a model, "
            "as open_clip saves them"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without open_clip's notes: it speaks as the root logger, and gives that a handler."""
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)
    root.addFilter(_nothing)
    try:
        yield
    finally:
        root.removeFilter(_nothing)
        root.removeHandler(silent)


def _nothing(_: logging.LogRecord) -> bool:
    return False
