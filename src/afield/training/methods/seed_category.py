"""Seed categories: Group DRO over groups of samples that are about as hard (Mei et al., 2023).

    every `period` steps: within each source domain, rank the samples by their loss under the
    model as it is, and cut the ranking into `count` equal groups; q ← 1
    every step: a batch of each group;   q_c ← q_c · exp(eta · risk_c),   q ← q / Σq
    loss = Σ q_c risk_c

The whole batch is as large as with any other method. Instead of by loss, the samples of a domain
may be grouped by K-means of their features, or around seeds (`graph`, Definitions 1 and 2: samples
nearer than ξ are adjacent, seeds are a small set to which every other sample is adjacent, and each
joins one of the seeds adjacent to it). For ablations, the groups are the domains, the classes, or
the classes of every domain; these stay, and so does q.

Differs from the paper: `period` is a share of the run unless it is 1 or more (0.2 is the paper's
1,000 of 5,000 steps: as a number it would leave short runs with the groups of the untrained
network). `graph` is the paper's definition, which it does not compute: the smallest set of seeds
takes exponential time, ours is the greedy one; ξ is `radius` times the root mean square distance of
a domain's features from their mean, as the paper gives no number. The paper is silent on what is
chosen here: the first groups are those of the first weights; losses are read in evaluation mode and
without augmentation; a group is gone through before a sample of it comes again. There is no
authors' code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform, Variant
from afield.networks.backbone import Classifier
from afield.networks.inference import compute_outputs
from afield.training.method import Learner, Samples
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
# Samples that are read at once: as fast as more, and no more memory than a training step takes.
CHUNK_SAMPLES = 128
# Features that spread less than this, as a share of their size, are all the same.
MIN_SPREAD = 1e-5
# Those that follow the model; the others stay.
MODEL_DEPENDENT = ("loss", "kmeans", "graph")


@dataclass(frozen=True)
class SeedCategory(GroupDRO):
    """Group DRO over groups that are made anew every `period`.

    That is a share of the run, or from 1 on a number of steps. `grouping` says by what, `count`
    into how many a domain is divided; `radius` is for `graph`, whose number of groups is what comes
    out: the larger, the fewer.
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
            told = "a share of the run below 1, or a whole number of steps"
            raise SpecError(f"seed_category.period={self.period:g}: {told}")

    def regroup(self, learner: Learner, samples: Samples) -> Sequence[Tensor] | None:
        """New groups, when it is time for them."""
        if learner.step % self._steps(learner.task.steps):
            return None
        groups = self._groups(learner, samples)
        learner.memory["q"] = torch.ones(len(groups), device=samples.x.device)
        return groups

    def _steps(self, whole: int) -> int:
        """From one grouping to the next; groups that would come out the same are made once."""
        if self.grouping not in MODEL_DEPENDENT or self._whole:
            return whole
        return max(1, round(self.period if self.period >= 1 else self.period * whole))

    @property
    def _whole(self) -> bool:
        """Whether domains are left whole."""
        return self.count == 1 and self.grouping in ("loss", "kmeans")

    def _groups(self, learner: Learner, samples: Samples) -> list[Tensor]:
        y, domain = samples.y.cpu(), samples.domain.cpu()
        if self.grouping == "class":
            return indices_by_label(y)
        if self.grouping == "domain_class":
            return indices_by_label(domain * len(learner.task.classes) + y)
        domains = indices_by_label(domain)
        if self.grouping == "domain" or self._whole:
            return domains
        if self.grouping == "loss":
            logits = compute_outputs(
                learner.model, samples.x, samples.prepare, max_batch_size=CHUNK_SAMPLES
            )
            losses = F.cross_entropy(logits, samples.y.to(logits.device), reduction="none").cpu()
            return subdivide(domains, lambda unit: quantile_bins(losses[unit], self.count))
        features = compute_outputs(
            _features(learner), samples.x, samples.prepare, max_batch_size=CHUNK_SAMPLES
        )
        label = self._clusters if self.grouping == "kmeans" else self._seeds
        return subdivide(domains, lambda unit: label(features[unit.to(features.device)]))

    def _clusters(self, points: Tensor) -> Tensor:
        seed = int(torch.randint(2**31, ()))
        return kmeans_labels(points.cpu().numpy(), self.count, seed=seed)

    def _seeds(self, points: Tensor) -> Tensor:
        centred = points - points.mean(dim=0)
        spread, size = (float(each.square().sum(dim=1).mean().sqrt()) for each in (centred, points))
        if spread <= MIN_SPREAD * size:
            return torch.zeros(len(points), dtype=torch.int64)
        radius = self.radius * spread
        return assign_to_seeds(centred, find_seed_points(centred, radius), radius)


def _features(learner: Learner) -> torch.nn.Module:
    if not isinstance(learner.model, Classifier):
        kind = type(learner.model).__name__
        raise SpecError(f"{kind} has no features of its own; use seed_category.grouping=loss")
    return learner.model.features
