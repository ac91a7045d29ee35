"""Seed categories: Group DRO over groups of similarly hard samples (Mei et al., 2023).

    every `period` steps: within each source domain, rank the samples by their loss under the
    current model, and cut the ranking into `count` equal groups; q ← 1
    every step: a batch of each group;   q_c ← q_c · exp(eta · risk_c),   q ← q / Σq
    loss = Σ q_c risk_c

The total batch size is the same as for other methods. Instead of by loss, the samples of a domain
can be grouped by K-means of their features, or around seeds (`graph`, Definitions 1 and 2: samples
closer than ξ are adjacent, seeds are a small set to which every other sample is adjacent, and every
sample joins one of its adjacent seeds). For ablations, the groups are the domains, the classes, or
the classes of every domain; these groups are fixed, and q is not reset.

Differs from the paper: `period` is a share of the run unless it is 1 or more (0.2 is the paper's
1,000 of 5,000 steps; as a fixed number, short runs would keep the groups of the untrained network).
`graph` is the paper's definition, which the paper does not compute: the smallest set of seeds takes
exponential time, ours is the greedy one. ξ is `radius` times the root mean square distance of a
domain's features from their mean, because the paper gives no number. The paper does not specify
the following choices: the first groups are those of the initial weights; losses are computed in
evaluation mode and without augmentation; all samples of a group are drawn before any is repeated.
The authors published no code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.data.samples import Samples
from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform, Variant
from afield.networks.backbone import Classifier
from afield.networks.inference import compute_outputs
from afield.training.learner import Learner
from afield.training.methods.groupdro import GroupDRO
from afield.training.sample_groups import (
    assign_to_seeds,
    find_seed_points,
    indices_by_label,
    kmeans_labels,
    quantile_bins,
    subdivide,
)

__all__ = ["SeedCategory"]

Grouping = Literal["loss", "kmeans", "graph", "domain", "class", "domain_class"]
# Samples per forward pass: larger is not faster, and this needs no more memory than training.
CHUNK_SAMPLES = 128
# Relative spread below which features count as identical.
MIN_SPREAD = 1e-5
# Groupings that depend on the model and are renewed; the others are fixed.
MODEL_DEPENDENT = ("loss", "kmeans", "graph")


@dataclass(frozen=True)
class SeedCategory(GroupDRO):
    """Group DRO over groups that are renewed every `period`.

    `period` is a share of the run if it is below 1, and a number of steps otherwise. `grouping`
    selects the criterion, `count` is the number of groups per domain. `radius` applies to `graph`
    only: the larger it is, the fewer groups there are.
    """

    period: Annotated[float, LogUniform(0.05, 0.5)] = 0.2
    count: Annotated[int, Choice((2, 3, 4))] = 4
    grouping: Annotated[Grouping, Variant(get_args(Grouping))] = "loss"
    radius: Annotated[float, Variant((1.0, 2.0))] = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("period", "count", "radius"):
            if getattr(self, name) <= 0:
                raise SpecError(f"seed_category.{name}={getattr(self, name):g}: must be above 0")
        if self.period > 1 and self.period != round(self.period):
            raise SpecError(
                f"seed_category.period={self.period:g}: must be a share of the run below 1, or a "
                "whole number of steps"
            )

    def regroup(self, learner: Learner, samples: Samples) -> Sequence[Tensor] | None:
        """Form new groups if the period is over."""
        if learner.step % self._steps_between(learner.task.steps):
            return None
        groups = self._groups(learner, samples)
        learner.memory["q"] = torch.ones(len(groups), device=samples.x.device)
        return groups

    def _steps_between(self, steps: int) -> int:
        """Number of steps from one grouping to the next; fixed groups are formed once."""
        if self.grouping not in MODEL_DEPENDENT or self._keeps_domains:
            return steps
        return max(1, round(self.period if self.period >= 1 else self.period * steps))

    @property
    def _keeps_domains(self) -> bool:
        """Whether domains are not divided."""
        return self.count == 1 and self.grouping in ("loss", "kmeans")

    def _groups(self, learner: Learner, samples: Samples) -> list[Tensor]:
        y, domain = samples.y.cpu(), samples.domain.cpu()
        if self.grouping == "class":
            return indices_by_label(y)
        if self.grouping == "domain_class":
            return indices_by_label(domain * len(learner.task.classes) + y)
        domains = indices_by_label(domain)
        if self.grouping == "domain" or self._keeps_domains:
            return domains
        if self.grouping == "loss":
            logits = compute_outputs(
                learner.model, samples.x, samples.prepare, max_batch_size=CHUNK_SAMPLES
            )
            losses = F.cross_entropy(logits, samples.y.to(logits.device), reduction="none").cpu()
            return subdivide(domains, lambda group: quantile_bins(losses[group], self.count))
        features = compute_outputs(
            _features(learner), samples.x, samples.prepare, max_batch_size=CHUNK_SAMPLES
        )
        label = self._cluster_labels if self.grouping == "kmeans" else self._seed_labels
        return subdivide(domains, lambda group: label(features[group.to(features.device)]))

    def _cluster_labels(self, points: Tensor) -> Tensor:
        seed = int(torch.randint(2**31, ()))
        return kmeans_labels(points.cpu().numpy(), self.count, seed=seed)

    def _seed_labels(self, points: Tensor) -> Tensor:
        centered = points - points.mean(dim=0)
        spread, norm = (float(x.square().sum(dim=1).mean().sqrt()) for x in (centered, points))
        if spread <= MIN_SPREAD * norm:
            return torch.zeros(len(points), dtype=torch.int64)
        radius = self.radius * spread
        return assign_to_seeds(centered, find_seed_points(centered, radius), radius)


def _features(learner: Learner) -> torch.nn.Module:
    if not isinstance(learner.model, Classifier):
        kind = type(learner.model).__name__
        raise SpecError(f"{kind} has no `features`; use seed_category.grouping=loss")
    return learner.model.features
