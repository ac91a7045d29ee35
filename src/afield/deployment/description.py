"""What is known about a model: the content of model.json in its folder."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from afield.deployment.inputs import Inputs
from afield.errors import SpecError
from afield.experiments.record import Run
from afield.training.calibration import TEMPERATURE_RANGE

__all__ = ["FORMAT_VERSION", "Architecture", "Calibration", "Description", "Estimate"]
__all__ += ["FrozenEncoder", "Selection"]

FORMAT_VERSION = 1
# More than any network has; a description that asks for more is not valid.
MAX_FEATURES = 2**20


@dataclass(frozen=True)
class FrozenEncoder:
    """The frozen network in front of a model that was trained on its features.

    `features` is their number, and `weights` the digest of its tensors.
    """

    backbone: str
    features: int
    weights: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.features <= MAX_FEATURES:
            raise SpecError(f"features={self.features}: not the number of features of a network")


@dataclass(frozen=True)
class Architecture:
    """The network: its backbone, and the method whose wrapper it is in, if any.

    With an `encoder`, the inputs are images, and the backbone gets their features.
    """

    backbone: str
    freeze_bn: bool = False
    wrapper: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    encoder: FrozenEncoder | None = None


@dataclass(frozen=True)
class Selection:
    """How a recipe was chosen among several, and what choosing cost.

    `accuracy` is the mean accuracy on left-out domains by which the recipe was chosen. `cost` is
    how far it is above the nested estimate, for which the recipe is chosen again without each
    domain. `runs` has, for each domain, the keys of the runs of the recipe that is chosen without
    it; `same` are the domains without which the deployed recipe is chosen. With `twins`, the choice
    without a domain used only runs that were not trained on it.
    """

    accuracy: float
    cost: float
    runs: Mapping[str, tuple[str, ...]]
    same: tuple[str, ...] = ()
    twins: bool = False


@dataclass(frozen=True)
class Estimate:
    """The accuracy to expect on unseen domains, from runs with domains held out.

    `domains` has the accuracy on each held-out domain, averaged over trials. `accuracy` and `worst`
    are the mean and the minimum over domains within a trial, averaged over trials. `in_domain` is
    the accuracy on the source domains. `stderr` is the standard error of `accuracy` over trials,
    `spread` the standard deviation over domains. `recipes` is the number of recipes among which
    this one was chosen; `selection` says how. If `recipes` is above 1 without a `selection`, as in
    folders of earlier versions, the numbers are those by which the recipe was chosen.
    """

    accuracy: float
    worst: float
    in_domain: float
    domains: Mapping[str, float]
    trials: int
    stderr: float | None = None
    spread: float | None = None
    recipes: int = 1
    selection: Selection | None = None


@dataclass(frozen=True)
class Calibration:
    """Confidence and distance on held-out domains, each from a model that was not trained on it.

    `confidences` and `distances` are quantiles in equal steps, from the smallest to the largest;
    domains have the same weight. `error_before` is the expected calibration error with temperature
    1, `error_after` with the fitted temperature, on the same samples. `separations` has, for each
    held-out domain, the AUROC with which the distance separates its samples from those of the
    sources' validation splits, averaged over trials; folders of earlier versions have none.
    """

    temperature: float
    confidences: tuple[float, ...]
    distances: tuple[float, ...]
    samples: int
    error_before: float
    error_after: float
    separations: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        low, high = TEMPERATURE_RANGE
        if not 0.99 * low <= self.temperature <= 1.01 * high:
            raise SpecError(f"temperature={self.temperature}: must be between {low} and {high}")
        for values in (self.confidences, self.distances):
            finite = all(map(math.isfinite, values))
            if len(values) < 2 or not finite or list(values) != sorted(values):
                raise SpecError("quantiles must be at least two numbers in rising order")


@dataclass(frozen=True)
class Description:
    """All that is known about a model; the content of model.json.

    `run` is the training, without the paths of data and initial weights. `merged` says how the
    weights were merged from others, if they were. `adaptation` is the test-time adaptation that the
    model is meant for, and that the estimate is about; empty for most models. `files` has the
    SHA-256 of the safetensors files.
    """

    name: str
    classes: tuple[str, ...]
    sources: tuple[str, ...]
    inputs: Inputs
    architecture: Architecture
    versions: Mapping[str, str]
    command: str
    run: Run | None = None
    merged: Mapping[str, Any] = field(default_factory=dict)
    adaptation: str = ""
    adaptation_params: Mapping[str, Any] = field(default_factory=dict)
    license: Annotated[str, Field(alias="licence")] = ""
    estimate: Estimate | None = None
    calibration: Calibration | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise SpecError("classes must be at least two different names")
