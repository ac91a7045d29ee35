"""A row of a table: what was trained or merged, in which way, apart from domains, trials and draws.

    row = start → method or merge → weight average → ensemble or test-time adaptation, network

A row is computed from a run, so runs and their keys know nothing of rows. Tables, statistics, plots
and commands ask the row what it is; its label is for people.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from afield import registry
from afield.networks.facts import pretraining_sentence
from afield.runs.run import CLASSICAL_ROLE, FEATURE_CHOICES, TARGETS, Run, name_without_path

# The method that others are compared with, and the row that has seen the labels of the target.
REFERENCE, BOUND = "erm", "target_expert"
# Rows that every table of merges has beside the merges.
MERGE_BASELINES = ("base", "best_expert", "logit_ensemble", BOUND)

Family = Literal[
    "training", "averages", "merges", "adaptations", "ensembles", "references", "classical"
]
FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclass(frozen=True)
class Row:
    """What the runs of one row have in common.

    Attributes
    ----------
    method
        The method, the merge, or a baseline of merges.
    average, adaptation
        The weight average and the test-time adaptation; ``last`` and empty mean none.
    start
        The method that fits the head from which training starts; empty for new heads.
    backbone
        The network that is trained.
    encoder
        The frozen network that computed the features to train on; empty if there is none.
    is_pretrained
        Whether the network that sees the data starts from, or has, pretrained weights.
    is_merged
        Whether the model is made from the weights of experts.
    is_classical
        Whether the method is a classical one, such as logistic regression: not trained in steps.
    members
        The number of trainings whose predictions an ensemble averages; 0 for one training.
    settings
        The settings that no draw changes, by name, as labels show them.
    common
        The names of the settings that all rows of a table share, which labels omit.
    """

    method: str
    average: str = "last"
    adaptation: str = ""
    start: str = ""
    backbone: str = ""
    encoder: str = ""
    is_pretrained: bool = False
    is_merged: bool = False
    is_classical: bool = False
    members: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    common: frozenset[str] = frozenset()

    @classmethod
    def of(cls, run: Run) -> "Row":
        """The row of a run."""
        return cls(
            method=run.method,
            average=run.average,
            adaptation=run.adaptation,
            start=str(run.given.get("start", "")),
            backbone=run.backbone,
            encoder=run.encoder or "",
            is_pretrained=_is_pretrained(run),
            is_merged=bool(run.experts),
            is_classical=run.role == CLASSICAL_ROLE,
            members=len(run.members),
            settings=_settings(run),
        )

    def without(self, names: Iterable[str]) -> "Row":
        """The row with a label that omits these settings."""
        return replace(self, common=self.common | frozenset(names))

    def with_all_classes(self) -> "Row":
        """The row, told apart from the same training with the classes of its sources only."""
        return replace(self, settings={**self.settings, "classes": "all"})

    def with_features(self, version: str) -> "Row":
        """The row, told apart from the same training on other features of the same network."""
        return replace(self, settings={**self.settings, "features": version})

    @property
    def network(self) -> str:
        """The network that sees the data: the frozen one, if there is one."""
        return self.encoder or self.backbone

    @property
    def label(self) -> str:
        """The name of the row in tables: its parts, and the settings that tell it from others."""
        return self.label_as(self.method)

    def label_as(self, method: str) -> str:
        """The label with another name for the method."""
        added = [self.average if self.average != "last" else "", self.adaptation]
        words = [method, *(f"+ {name}" for name in added if name)]
        words += [f"× {self.members}"] if self.members else []
        for name, value in self.settings.items():
            if name not in self.common:
                owner, _, short = name.rpartition(".")
                words.append(f"{short if owner in (self.method, *added) else name}={value}")
        return " ".join(words)

    @property
    def family(self) -> Family:
        """The family under which tables list the row.

        References come with every merge or have seen the target; nobody would ask for them alone.
        """
        if self.is_baseline:
            return "references"
        if self.adaptation:
            return "adaptations"
        if self.is_merged:
            return "merges"
        if self.members:
            return "ensembles"
        if self.is_classical:
            return "classical"
        return "training" if self.average == "last" else "averages"

    @property
    def is_reference(self) -> bool:
        """Whether other rows are compared with this one: plain training, with any settings."""
        return self.method == REFERENCE and not self.is_merged and not self.members

    @property
    def is_bound(self) -> bool:
        """Whether the row has seen the target's labels: a yardstick, never marked as best."""
        return self.method == BOUND

    @property
    def is_baseline(self) -> bool:
        """Whether the row comes with every merge."""
        return self.method in MERGE_BASELINES

    @property
    def sees(self) -> str:
        """What of the target the models have seen: ``labels``, ``samples``, or nothing (empty)."""
        return "labels" if self.is_bound else "samples" if self.sees_samples else ""

    @property
    def sees_samples(self) -> bool:
        """Whether the models predict from unlabelled samples of the domain at hand."""
        if self.adaptation:
            return True
        return self.method in registry.names("methods") and bool(
            registry.class_constant("methods", self.method, "predicts_from_batches", default=False)
        )


def pretraining_note(networks: Iterable[str]) -> str:
    """What the pretrained networks of a table have seen, as a line below it."""
    return pretraining_sentence(networks)


def common_settings(runs: Iterable[Run]) -> set[str]:
    """Names of the settings that are equal in all runs, so that labels need not repeat them."""
    runs = list(runs)
    # Classical methods have neither steps nor a network: what the others share is not theirs.
    runs = [run for run in runs if run.role != CLASSICAL_ROLE] or runs
    chosen = [{(name, str(value)) for name, value in _settings(run).items()} for run in runs]
    common = {name for name, _ in set.intersection(*chosen)}
    # A method may have a network of its own on arrays, which says nothing new about a row.
    networks = {run.network for run in runs if not _has_own_network(run)}
    if len(networks) == 1:
        return common | {"backbone"}
    # Where every network has one file of weights, its name says all.
    weights = {(run.network, str(run.given.get("weights"))) for run in runs}
    return common | {"weights"} if len(weights) == len({run.network for run in runs}) else common


def _is_pretrained(run: Run) -> bool:
    """Whether the network that sees the data is pretrained; features of random weights say so."""
    return run.given.get("weights") != "none" if run.encoder else bool(run.weights)


def _has_own_network(run: Run) -> bool:
    if run.encoder or run.method not in registry.names("methods") or "backbone" in run.given:
        return False
    own = registry.class_constant("methods", run.method, "array_backbone", default="")
    return bool(run.backbone == own)


def _settings(run: Run) -> dict[str, Any]:
    """Settings that no draw changes: records that differ in them are different rows.

    A choice of classes makes a row of its own only beside another choice.
    """
    is_classical = run.role == CLASSICAL_ROLE
    training = {} if is_classical else {"backbone": run.backbone, "steps": run.steps}
    settings = {**training, **run.given}
    # In tables with networks that are trained, too; in others, all rows share it.
    settings |= {"backbone": run.network, "tune": "frozen"} if run.encoder else {}
    # Older rows on the same features are alone in their table.
    of_features = FEATURE_CHOICES if run.encoder and not run.images else ()
    for name in (TARGETS, "classes", "finetune", *of_features):
        settings.pop(name, None)
    if run.epochs:
        settings["epochs"] = f"{run.epochs:g}"
        settings.pop("steps", None)
    return {name: _shown_value(run, name, value) for name, value in settings.items()}


def _shown_value(run: Run, name: str, value: Any) -> Any:
    """A setting without private paths; pretrained weights have a digest instead."""
    if not isinstance(value, str):
        return value
    shown = Path(run.weights).name if name == "weights" and run.start else name_without_path(value)
    is_file = name == "weights" or (name == "backbone" and shown != value)
    return f"{shown} [{run.start[:6]}]" if is_file and run.start else shown
