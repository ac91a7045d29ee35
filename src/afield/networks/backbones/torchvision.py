"""torchvision: any of its classifiers that ends in a linear layer, e.g. torchvision:alexnet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import HUB, Backbone, Form, Shape
from afield.tensors import check_complete, read_weights

__all__ = ["Torchvision"]


@dataclass(frozen=True)
class Torchvision(Backbone):
    """A classifier of torchvision."""

    patterns: ClassVar[tuple[str, ...]] = ("torchvision:NAME",)

    @property
    def package(self) -> str:
        """Torchvision."""
        return "torchvision"

    def check(self) -> None:
        """Raise `UnknownNameError` if torchvision has no such classifier."""
        self._default_weights()

    def input_form(self) -> Form:
        """Images that the default weights expect."""
        transforms = self._default_weights().transforms()
        return Form(transforms.crop_size[0], tuple(transforms.mean), tuple(transforms.std))

    def has_pretrained_weights(self) -> bool:
        """All classifiers of torchvision have weights."""
        return True

    def build(
        self, shape: Shape, *, weights: str, class_names: Sequence[str]
    ) -> tuple[nn.Module, Tensor | None]:
        """The network without its last linear layer."""
        from torchvision.models import get_model

        del class_names
        self.require_images(shape)
        if shape[0] != 3:
            raise SpecError(f"{self.name} takes color images, not {shape[0]} channel(s)")
        net = get_model(self.model, weights=self._default_weights() if weights == HUB else None)
        linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise SpecError(f"{self.name} does not end in a linear layer; use another network")
        parent, _, attribute = linear[-1].rpartition(".")
        setattr(net.get_submodule(parent), attribute, nn.Identity())
        # GoogLeNet and Inception would return auxiliary outputs in training mode.
        net.aux_logits = False
        if weights not in ("", HUB):
            state = read_weights(weights)
            check_complete(weights, net, state)
            net.load_state_dict({key: state[key] for key in net.state_dict() if key in state})
        return net, None

    def _default_weights(self) -> Any:
        import torchvision
        from torchvision.models import get_model_weights, list_models

        choices = [f"torchvision:{model}" for model in list_models(module=torchvision.models)]
        if self.name not in choices:
            raise self.unknown(choices)
        return get_model_weights(self.model).DEFAULT
