"""timm: any of its networks, e.g. timm:resnet50, with or without the tag of its weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from afield.errors import UnknownNameError
from afield.networks.backbone import HUB, Backbone, Form, Shape
from afield.networks.facts import find_registered
from afield.tensors import check_complete, read_weights

__all__ = ["Timm"]


@dataclass(frozen=True)
class Timm(Backbone):
    """A network of timm."""

    patterns: ClassVar[tuple[str, ...]] = ("timm:NAME",)

    @property
    def package(self) -> str:
        """Timm."""
        return "timm"

    def check(self) -> None:
        """Raise `UnknownNameError` if timm has no such network, or no such tag for it."""
        self._config()

    def input_form(self) -> Form:
        """Images that the pretrained weights expect, at the size of the register if it has one."""
        config = self._config()
        registered = find_registered(self.tagged_name())
        size = registered.size if registered else config.input_size[-1]
        return Form(size, tuple(config.mean), tuple(config.std))

    def has_pretrained_weights(self) -> bool:
        """Whether the hub has weights for the network."""
        return bool(self._config().has_weights)

    def tagged_name(self) -> str:
        """Full name including the tag, which timm calls the pretrained tag."""
        tag = self._config().tag if "." not in self.model else ""
        return f"{self.name}.{tag}" if tag else self.name

    def build(
        self, shape: Shape, *, weights: str, class_names: Sequence[str]
    ) -> tuple[nn.Module, Tensor | None]:
        """The network without its classifier."""
        import timm

        del class_names
        self.require_images(shape)
        # Some networks of a fixed input size take one number only.
        side = shape[1] if shape[1] == shape[2] else shape[1:]
        options: dict[str, Any] = {"img_size": side} if self._config().fixed_input_size else {}
        state = read_weights(weights) if weights not in ("", HUB) else None
        if state is not None:
            options["pretrained_cfg_overlay"] = {"state_dict": state}
        net: nn.Module = timm.create_model(
            self.model, pretrained=bool(weights), num_classes=0, in_chans=shape[0], **options
        )
        if state is not None:
            check_complete(weights, net, state)
        return net, None

    def _config(self) -> Any:
        from timm.models import get_pretrained_cfg, is_model, list_models

        if not is_model(self.model):
            raise self.unknown([f"timm:{model}" for model in list_models()])
        try:
            return get_pretrained_cfg(self.model, allow_unregistered=False)
        except RuntimeError as error:
            raise UnknownNameError(f"no backbone {self.name!r}; {error}") from None
