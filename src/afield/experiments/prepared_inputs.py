"""How the samples of a run become the inputs of its network: scaling, size and augmentation."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from afield.data.augmentation import Augmentation, Resize
from afield.data.domains import DomainSet
from afield.data.modality import Table
from afield.data.samples import Augment, Prepare, Samples
from afield.data.scaling import Scaling
from afield.data.sources.table_scaling import TableScaling
from afield.errors import SpecError
from afield.experiments.record import Run
from afield.networks.backbone import find_backbone

__all__ = ["PreparedInputs", "prepare_inputs"]


class PreparedInputs(NamedTuple):
    """The scaling, the shape that a network sees, and what is done to a batch."""

    scaling: Scaling | TableScaling
    shape: tuple[int, ...]
    prepare: Prepare
    augment: Augment | None = None


def prepare_inputs(
    run: Run,
    dataset: DomainSet,
    samples: Samples,
    device: torch.device,
    start_inputs: Mapping[str, Any] | None = None,
) -> PreparedInputs:
    """Fit or restore the scaling of a run, and set up resizing and augmentation."""
    if run.augment and not _square_images(samples):
        raise SpecError(f"augment={run.augment}: {dataset.name} has no square images; use none")
    scaling = _scaling(run, dataset, samples, device)
    if start_inputs is not None:
        scaling = _restore(start_inputs, scaling)
    if isinstance(scaling, TableScaling):
        return PreparedInputs(scaling, (scaling.width,), scaling)
    shape = tuple(samples.x.shape)
    prepare: Prepare = scaling
    if len(shape) == 3 and run.size:
        shape = (shape[0], run.size, run.size)
        prepare = Resize(run.size, scaling)
    augment = Augmentation(run.augment, shape[-1], scaling) if run.augment else None
    return PreparedInputs(scaling, shape, prepare, augment)


def _scaling(
    run: Run, dataset: DomainSet, samples: Samples, device: torch.device
) -> Scaling | TableScaling:
    """The scaling that a pretrained network expects of images, or one fitted to the sources."""
    if isinstance(dataset.modality, Table):
        return TableScaling.fit(samples.x, dataset.modality.columns)
    form = find_backbone(run.backbone).input_form()
    if form is None or not samples.x.is_pixels:
        return Scaling.fit(samples.x)
    channels = samples.x.shape[0]
    return Scaling.for_images(form.mean, form.std, channels=channels, device=device)


def _restore(values: Mapping[str, Any], like: Scaling | TableScaling) -> Scaling | TableScaling:
    """The scaling of a finished run, on the device of `like`."""
    if isinstance(like, TableScaling):
        return TableScaling.from_dict(values)
    return Scaling.from_dict(values, like)


def _square_images(samples: Samples) -> bool:
    shape = samples.x.shape
    return samples.x.is_pixels and len(shape) == 3 and shape[1] == shape[2]
