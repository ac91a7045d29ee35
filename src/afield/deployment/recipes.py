"""The recipes of a benchmark, and what to expect of the one that is chosen among them.

A recipe is a training with all its settings, apart from the domains and the trial. The best of many
recipes looks better than it is: the mean over left-out domains that chose it is too high. The
estimate is therefore nested. Each domain is taken away, the recipe is chosen again by the other
domains, and the accuracy of this choice on the domain that was taken away is what counts::

    choice without d = argmax over recipes r of mean over d' ≠ d of accuracy of r on d'
    estimate         = mean over d of accuracy of (choice without d) on d
    cost             = max over r of mean over d of accuracy of r on d  −  estimate

If the store has twins (runs that leave out two domains; `afield bench --rules all`), the accuracy
on d' is that of the run that left out d as well, so the choice knows nothing of d at all. Without
twins it is that of the run that left out d' alone, and d was among its sources.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from afield import registry
from afield.data.domains import DomainSet
from afield.deployment.estimates import estimate_accuracy, unseen_accuracies
from afield.deployment.model_folder import Estimate, Selection
from afield.errors import DataError
from afield.networks.pretrained import Encoder
from afield.runs.record import Record
from afield.runs.row import MERGE_BASELINES
from afield.runs.run import CLASSICAL_ROLE, Run
from afield.runs.run_files import read_record
from afield.runs.selection import DEFAULT_RULES
from afield.runs.store import Store
from afield.studies.features import feature_identity, plan_features, recorded_choices
from afield.studies.planning import ensemble_runs
from afield.studies.settings import resolve_epochs


def is_merge(run: Run) -> bool:
    """Whether a run is a merge, and neither a baseline of one nor adapted to its target."""
    return run.role == "merged" and run.method in registry.names("merges")


def is_recipe(run: Run) -> bool:
    """Whether `fit` can make the model of such a run: of a training, a merge or an adaptation."""
    trained = run.role in ("", "adapted", "ensemble", CLASSICAL_ROLE) and not run.experts
    merged = run.role in ("merged", "adapted") and run.method in registry.names("merges")
    return (trained or merged) and run.method not in MERGE_BASELINES


def merge_recipe(run: Run) -> str:
    """What the merged runs of all targets have in common: all but base, experts and domains."""
    labels = sorted((name, str(value)) for name, value in run.given.items())
    plain = replace(run, trial=0, classes=(), base="", experts=(), role="merged")
    return f"{plain.recipe} {labels}"


def plan_whole(run: Run, store: Store, dataset: DomainSet) -> tuple[list[Run], Run]:
    """A run like one that left a domain out, on all domains, and the runs that it is made from."""
    if is_merge(run):
        return _plan_whole_merge(run, store, dataset)
    if run.members:
        store.fetch(run.members[0])
        needed, first = plan_whole(read_record(store.root / run.members[0]).run, store, dataset)
        *others, ensemble = ensemble_runs(first, len(run.members))
        return [*needed, first, *others], ensemble
    # All domains are sources, so the model knows the classes of all.
    whole: dict[str, Any] = {"dataset": dataset.spec, "sources": dataset.domains}
    whole |= {"tested": (), "unused": (), "classes": ()}
    run = resolve_epochs(replace(run, rules=DEFAULT_RULES, **whole), dataset)
    if not run.base:
        return [], run
    store.fetch(run.base)
    start = resolve_epochs(replace(read_record(store.root / run.base).run, **whole), dataset)
    return [start], replace(run, base=start.key)


def _plan_whole_merge(run: Run, store: Store, dataset: DomainSet) -> tuple[list[Run], Run]:
    """The base and experts on all domains, and their merge, like a merge that left one domain out.

    Parameters
    ----------
    run
        A merged run of a benchmark; its base and experts are in the store.
    store, dataset
        Where the records are, and the data as they are found now.
    """
    store.fetch(run.base, *run.experts)
    stored_base, *stored_experts = (
        read_record(store.root / key).run for key in (run.base, *run.experts)
    )
    whole: dict[str, Any] = {"dataset": dataset.spec, "tested": (), "unused": (), "classes": ()}
    # The base of a zero-shot CLIP uses no domain, and is the same for all targets.
    sources = dataset.domains if stored_base.sources == run.sources else stored_base.sources
    base = resolve_epochs(replace(stored_base, sources=sources, **whole), dataset)
    chosen: list[tuple[Run, tuple[str, ...]]]
    if all(len(expert.sources) == 1 for expert in stored_experts):
        chosen = [(stored_experts[0], (name,)) for name in dataset.domains]
    else:
        chosen = [(expert, dataset.domains) for expert in stored_experts]
    experts = [
        resolve_epochs(replace(expert, sources=own, base=base.key, **whole), dataset)
        for expert, own in chosen
    ]
    merged = replace(
        run,
        sources=dataset.domains,
        base=base.key,
        experts=tuple(expert.key for expert in experts),
        rules=DEFAULT_RULES,
        **whole,
    )
    return [base, *experts], merged


@dataclass
class Recipe:
    """The records of one recipe by the domains that they leave out and by trial.

    `accuracies` has, in the same order, the accuracies of each record on the domains that it leaves
    out.
    """

    records: dict[frozenset[str], dict[int, Record]] = field(default_factory=dict)
    accuracies: dict[frozenset[str], dict[int, dict[str, float]]] = field(default_factory=dict)

    def add(self, record: Record, accuracies: Mapping[str, float]) -> None:
        """Add a record with its accuracies on the domains that it leaves out.

        A pair of domains may have two twins: one with the classes of each fold.
        """
        left_out, trial = frozenset(record.unseen), record.run.trial
        self.records.setdefault(left_out, {})[trial] = record
        self.accuracies.setdefault(left_out, {}).setdefault(trial, {}).update(accuracies)

    @property
    def run(self) -> Run:
        """Any run of the recipe."""
        return next(iter(next(iter(self.records.values())).values())).run

    def trials(self, *left_out: str) -> set[int]:
        """The trials in which these domains, and no others, were left out."""
        trials = self.accuracies.get(frozenset(left_out), {})
        return {trial for trial, known in trials.items() if len(known) == len(left_out)}

    def left_out(self, domain: str) -> list[Record]:
        """The records that leave out this domain alone, by trial."""
        return [record for _, record in sorted(self.records[frozenset({domain})].items())]

    def accuracy(self, domain: str, *also: str) -> float:
        """Mean accuracy over trials on a domain that was left out, alone or with another one."""
        trials = self.accuracies[frozenset({domain, *also})]
        return fmean(accuracies[domain] for accuracies in trials.values())

    def restricted(self, trials: Collection[int]) -> "Recipe":
        """The same recipe with the records of these trials only."""
        recipe = Recipe()
        for left_out, records in self.records.items():
            for trial, record in records.items():
                if trial in trials:
                    recipe.add(record, self.accuracies[left_out][trial])
        return recipe


def complete_recipes(records: Iterable[Record], dataset: DomainSet) -> list[Recipe]:
    """The recipes on a dataset, with the trials in which each domain was left out."""
    found: dict[str, list[tuple[Record, dict[str, float]]]] = {}
    for record in records:
        accuracies = _left_out_accuracies(record) if _same_data(record.run, dataset) else {}
        if accuracies:
            found.setdefault(_recipe_key(record.run), []).append((record, accuracies))
    complete = []
    for recipe in map(_recipe, found.values()):
        trials = set.intersection(*(recipe.trials(name) for name in dataset.domains))
        if trials:
            complete.append(recipe.restricted(trials))
    return complete


def recipes_on_features(
    store: Store, dataset: DomainSet
) -> list[tuple[Recipe, tuple[dict[str, Any], bool | None]]]:
    """The recipes trained on features of a folder of photographs, and how these were made."""
    made = [recorded_choices(record.run) for record in store if record.run.folder == dataset.name]
    recipes = []
    for settings, finetune in {json.dumps(choices): choices for choices in made}.values():
        encoder = plan_features(dataset, settings, finetune=finetune)
        if isinstance(encoder, Encoder):
            identity = feature_identity(dataset, encoder, settings)
            found = complete_recipes(store, replace(dataset, fingerprint=identity))
            recipes += [(recipe, (settings, finetune)) for recipe in found]
    return recipes


def _recipe_key(run: Run) -> str:
    """What the runs of one recipe have in common."""
    if run.experts:
        return merge_recipe(run)
    # The classes of a fold depend on its sources.
    return replace(run, trial=0, classes=()).recipe


def _recipe(scored: Sequence[tuple[Record, dict[str, float]]]) -> Recipe:
    """One recipe; a run with the classes of its sources takes precedence over one with all."""
    recipe, classes = Recipe(), dict[tuple[str, int], tuple[str, ...]]()
    for record, accuracies in sorted(scored, key=lambda each: bool(each[0].run.classes)):
        if len(record.unseen) == 1:
            recipe.add(record, accuracies)
            classes[record.unseen[0], record.run.trial] = record.run.classes
    for record, accuracies in scored:
        if len(record.unseen) == 2:
            # A twin of the fold that leaves out one domain has its classes and tests the other.
            for domain, other in itertools.permutations(record.unseen):
                if classes.get((other, record.run.trial)) == record.run.classes:
                    recipe.add(record, {domain: accuracies[domain]})
    return recipe


def choose_recipe(recipes: Sequence[Recipe], domains: Sequence[str]) -> Recipe:
    """The recipe with the best mean accuracy on left-out domains; of equal ones the first."""
    return max(recipes, key=lambda recipe: fmean(recipe.accuracy(name) for name in domains))


def estimate_choice(recipes: Sequence[Recipe], domains: Sequence[str]) -> Estimate:
    """Estimate the accuracy of the best recipe by choosing again without each domain."""
    best = choose_recipe(recipes, domains)
    if len(recipes) == 1:
        return estimate_accuracy([r for name in domains for r in best.left_out(name)])
    twins = _has_twins(recipes, domains)
    chosen = {name: _choose_without(recipes, name, domains, twins=twins) for name in domains}
    runs = {name: recipe.left_out(name) for name, recipe in chosen.items()}
    estimate = _summarize(runs)
    accuracy = fmean(best.accuracy(name) for name in domains)
    return replace(
        estimate,
        recipes=len(recipes),
        selection=Selection(
            accuracy=accuracy,
            cost=accuracy - estimate.accuracy,
            runs={name: tuple(r.run.key for r in records) for name, records in runs.items()},
            same=tuple(name for name, recipe in chosen.items() if recipe is best),
            twins=twins,
        ),
    )


def _same_data(run: Run, dataset: DomainSet) -> bool:
    return run.data == dataset.fingerprint and bool(run.data or run.dataset == dataset.spec)


def _left_out_accuracies(record: Record) -> dict[str, float]:
    """The accuracies on the one or two domains that a record leaves out; empty if unknown."""
    run = record.run
    if not is_recipe(run) or run.tested or len(record.unseen) not in (1, 2):
        return {}
    try:
        return unseen_accuracies(record)
    except DataError:
        return {}


def _has_twins(recipes: Sequence[Recipe], domains: Sequence[str]) -> bool:
    """Whether every trial of every recipe has left out every pair of domains."""
    pairs = list(itertools.combinations(domains, 2)) if len(domains) > 2 else []
    return bool(pairs) and all(
        recipe.trials(*pair) == recipe.trials(domains[0]) for recipe in recipes for pair in pairs
    )


def _choose_without(
    recipes: Sequence[Recipe], domain: str, domains: Sequence[str], *, twins: bool
) -> Recipe:
    """The recipe that would be chosen if this domain did not exist."""
    others = [name for name in domains if name != domain]
    also = (domain,) if twins else ()
    return max(recipes, key=lambda recipe: fmean(recipe.accuracy(name, *also) for name in others))


def _summarize(runs: Mapping[str, Sequence[Record]]) -> Estimate:
    """The estimate from the runs that are chosen for each domain.

    Recipes may have been tried in different trials (every trial has its own draws). Then there is
    no trial with all domains: the worst domain is that of the means over trials, and the standard
    error is unknown.
    """
    estimate = estimate_accuracy(list(itertools.chain.from_iterable(runs.values())))
    trials = {tuple(record.run.trial for record in records) for records in runs.values()}
    if len(trials) == 1:
        return estimate
    accuracies = estimate.domains.values()
    in_domain = fmean(estimate_accuracy(records).in_domain for records in runs.values())
    return replace(
        estimate,
        accuracy=fmean(accuracies),
        worst=min(accuracies),
        in_domain=in_domain,
        trials=min(map(len, trials)),
        stderr=None,
    )
