"""CLIP: open_clip's image encoders, with heads that class names define.

    features = v / |v|,   v the embedding of an image
    head     = one row exp(s) · t / |t| for every class, no bias; s is the model's logit scale,
               t the mean over templates of the normalized embeddings of the class name in each

Such a head is frozen, so only the image encoder trains; the text encoder is not kept. MODEL/TAG
names an architecture and its weights on the hub. With weights from a file, the tag still selects
the activation function and the color statistics for which the weights were trained.

open_clip is an extra (``pip install 'afield[clip]'``).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.prompts import Prompts
from afield.errors import DataError, SpecError
from afield.networks.backbone import HUB, Backbone, Form, Shape
from afield.tensors import read_weights

__all__ = ["CLIP"]

# open_clip's values for architectures that do not state them.
DEFAULT_IMAGE_SIZE, DEFAULT_PATCH_SIZE = 224, 16


class Encoder(nn.Module):
    """Normalized embeddings of images; a gray image is repeated in all three channels."""

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, x: Tensor) -> Tensor:
        """Samples × features, each row of length one."""
        output = self.visual(x.expand(-1, 3, -1, -1))
        # CoCa returns its tokens as well.
        return F.normalize(output[0] if isinstance(output, tuple) else output, dim=-1)


@dataclass(frozen=True)
class CLIP(Backbone):
    """An image encoder of open_clip."""

    patterns: ClassVar[tuple[str, ...]] = ("clip:MODEL/TAG",)
    zero_shot: ClassVar[bool] = True
    # As in the paper on SCORE, except that its warm-up of 500 steps is a share of the run.
    fine_tuning_settings: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-5,
        "weight_decay": 0.1,
        "optimizer": "adamw",
        "lr_schedule": "cosine:warmup=0.1",
        "clip_norm": 1.0,
    }

    @property
    def package(self) -> str:
        """open_clip."""
        return "open_clip_torch"

    @property
    def architecture(self) -> str:
        """Model without the tag."""
        return self.model.partition("/")[0]

    @property
    def tag(self) -> str:
        """Name of the weights on the hub; may be empty."""
        return self.model.partition("/")[2]

    def check(self) -> None:
        """Raise `UnknownNameError` if open_clip has no such architecture or tag."""
        self._open_clip()

    def input_form(self) -> Form:
        """Images that the tagged weights expect."""
        open_clip = self._open_clip()
        config = open_clip.get_pretrained_cfg(self.architecture, self.tag)
        mean = config.get("mean", open_clip.OPENAI_DATASET_MEAN)
        std = config.get("std", open_clip.OPENAI_DATASET_STD)
        size = self._vision_config(open_clip).get("image_size", DEFAULT_IMAGE_SIZE)
        return Form(size, tuple(mean), tuple(std))

    def has_pretrained_weights(self) -> bool:
        """Whether the hub has weights for the architecture."""
        return bool(self._open_clip().list_pretrained_tags_by_model(self.architecture))

    def tagged_name(self) -> str:
        """Full name; raises `SpecError` without a tag, because there is no default one."""
        tags = self._open_clip().list_pretrained_tags_by_model(self.architecture)
        if not self.tag:
            choice = f"write clip:{self.architecture}/{tags[0]}, or give" if tags else "give"
            raise SpecError(
                f"{self.name}: which weights of the hub? {choice} --weights FILE, or none for "
                "random weights"
            )
        return self.name

    def build(
        self, shape: Shape, *, weights: str, class_names: Sequence[str]
    ) -> tuple[nn.Module, Tensor | None]:
        """The image encoder, and the head for the class names.

        If images are not of the size that a vision transformer expects, its position embeddings
        are interpolated. A file with weights must contain both encoders.
        """
        open_clip = self._open_clip()
        self.require_images(shape)
        self._check_shape(open_clip, shape, fixed=bool(weights))
        if weights == HUB:
            self.tagged_name()
        config = open_clip.get_pretrained_cfg(self.architecture, self.tag)
        if weights == HUB:
            weights = open_clip.download_pretrained(config)
        elif weights:
            _check_has_both_encoders(weights)
        # Some architectures take one number only.
        side = shape[1] if shape[1] == shape[2] else shape[1:]
        with _silence_root_logger():
            net = open_clip.create_model(
                self.architecture,
                pretrained=weights or None,
                # The same architecture exists with both activations; the weights decide.
                force_quick_gelu=config.get("quick_gelu", False),
                force_image_size=None if side == self.input_form().size else side,
                pretrained_text=False,
                device=torch.get_default_device(),
            ).eval()
            head = self._head(open_clip, net, class_names) if class_names else None
        return Encoder(net.visual), head

    def _head(self, open_clip: Any, net: Any, class_names: Sequence[str]) -> Tensor:
        """One row per class."""
        tokenizer = open_clip.get_tokenizer(self.architecture)
        prompts = (
            class_names if isinstance(class_names, Prompts) else Prompts.of_classes(class_names)
        )
        columns = open_clip.build_zero_shot_classifier(
            net, tokenizer, prompts.names, prompts.templates
        )
        head: Tensor = (columns.T * net.logit_scale.detach().exp()).contiguous()
        return head

    def _open_clip(self) -> Any:
        """The package, after a check that it is installed and has the model."""
        try:
            import open_clip
        except ImportError as error:
            raise SpecError(
                f"{self.name}: the package open_clip is needed ({error}); pip install "
                "'afield[clip]'"
            ) from None
        models = open_clip.list_models()
        if self.architecture in models:
            tags = open_clip.list_pretrained_tags_by_model(self.architecture)
            models = [self.architecture, *(f"{self.architecture}/{tag}" for tag in tags)]
        if self.model not in models:
            raise self.unknown([f"clip:{model}" for model in models])
        return open_clip

    def _vision_config(self, open_clip: Any) -> dict[str, Any]:
        config: dict[str, Any] = open_clip.get_model_config(self.architecture)["vision_cfg"]
        return config

    def _check_shape(self, open_clip: Any, shape: Shape, *, fixed: bool) -> None:
        """Raise `SpecError` for images that would be cropped, or that do not fit the weights."""
        if shape[0] not in (1, 3):
            raise SpecError(f"{self.name} takes color or gray images, not {shape[0]} channels")
        vision = self._vision_config(open_clip)
        size = vision.get("image_size", DEFAULT_IMAGE_SIZE)
        patch = vision.get("patch_size", DEFAULT_PATCH_SIZE)
        if "timm_model_name" in vision:
            return
        if not isinstance(vision["layers"], int):
            if fixed and shape[1:] != (size, size):
                raise SpecError(
                    f"{self.name} has weights for images of {size} × {size}, not {shape[1]} × "
                    f"{shape[2]}; use --set size={size}"
                )
        elif any(side % patch for side in shape[1:]):
            raise SpecError(
                f"{self.name} cuts images into squares of {patch} × {patch}, which do not fill "
                f"{shape[1]} × {shape[2]}; use --set size={size}, or another multiple of {patch}"
            )


def _check_has_both_encoders(weights: str) -> None:
    """Raise `DataError` for a file of another model, with a clearer message than open_clip's."""
    # Every complete CLIP has a logit scale.
    if not any(name.rpartition(".")[2] == "logit_scale" for name in read_weights(weights)):
        raise DataError(
            f"{weights}: not a complete CLIP, because logit_scale is missing; give both encoders "
            "of a model, as open_clip saves them"
        )


@contextmanager
def _silence_root_logger() -> Iterator[None]:
    """Suppress open_clip's messages: it logs to the root logger and adds a handler to it."""
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)
    root.addFilter(_drop)
    try:
        yield
    finally:
        root.removeFilter(_drop)
        root.removeHandler(silent)


def _drop(_: logging.LogRecord) -> bool:
    return False
