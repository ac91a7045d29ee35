"""What a network receives: the scaling it was pretrained with, or pixels around zero."""

import torch

from afield.data.domains import Domain, DomainSet
from afield.data.modalities.image import Image
from afield.runs.run import Run
from afield.runs.run_data import RunData

NAMES = ("art", "photo", "sketch")


X = torch.randint(256, (8, 3, 40, 40), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def data(backbone: str, size: int = 0) -> RunData:
    """The data of a run on images of noise."""
    result = {name: Domain(X, torch.arange(8) % 2) for name in NAMES}
    dataset = DomainSet("shades", NAMES, ("cup", "pot"), lambda _: result, modality=Image())
    run = Run("shades", "erm", NAMES[:2], backbone=backbone, size=size)
    return RunData.of(run, dataset, result, torch.device("cpu"))


def test_a_pretrained_network_receives_the_scaling_of_its_pretraining():
    x = data("timm:resnet18").scaling(X)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(x[0, :, 0, 0], (X[0, :, 0, 0] / 255 - mean) / std)


def test_a_small_network_receives_pixels_between_minus_one_and_one():
    torch.testing.assert_close(data("small:cnn").scaling(X), X / 127.5 - 1)


def test_images_are_resized_when_a_size_is_given():
    assert data("timm:resnet18", size=32).shape == (3, 32, 32)
    assert data("timm:resnet18").shape == (3, 40, 40)
