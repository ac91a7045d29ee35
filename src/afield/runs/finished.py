"""Finished runs, reopened with their data, networks and weights."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from afield import registry
from afield.compute import default_device
from afield.data.domains import Domain, data_root
from afield.data.lookup import find_dataset
from afield.data.modalities.array import Array
from afield.data.modality import Modality
from afield.data.samples import Batch, Samples, pool_domains
from afield.data.stream import Stream
from afield.errors import SpecError
from afield.networks.inference import compute_outputs
from afield.networks.lora import adapted_layers, merge_factors
from afield.runs.merged import build_ensemble
from afield.runs.record import Record
from afield.runs.run import Run
from afield.runs.run_data import known_splits
from afield.runs.run_files import read_record, read_run_weights
from afield.runs.run_setup import Machine, load_domains, set_up
from afield.runs.selection import selection_value
from afield.seeds import capture_rng_state, restore_rng_state
from afield.training.learner import Learner
from afield.training.loop import checkpoints
from afield.training.method import Method


@dataclass(frozen=True)
class FinishedRun:
    """A finished run with its record, its deployed model and its initial state.

    Attributes
    ----------
    record, step, model
        The record, and the deployed model with the step of its checkpoint.
    method, learner, stream, random
        The method, and the state before the first step: the learner, the batches and the state of
        the random generators.
    trained, whole
        A learner with the deployed model and the method's other networks at that checkpoint, and
        whether these networks were stored.
    domains, probes
        Samples of the main split and of the probe split of every domain, including unseen ones,
        without augmentation.
    sample_names
        The file name or row number of each sample of the main split.
    base, experts
        For a merged run: the weights that its experts started from, and those of the experts, by
        the name of their source or method.
    modality
        The modality of the dataset.
    """

    record: Record
    step: int
    model: nn.Module
    method: Method
    learner: Learner
    trained: Learner
    stream: Stream
    domains: Mapping[str, Samples]
    probes: Mapping[str, Samples]
    sample_names: Mapping[str, Sequence[str]] = field(repr=False)
    random: Mapping[str, Any] = field(repr=False)
    whole: bool = True
    base: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    experts: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, repr=False)
    modality: Modality = field(default_factory=Array)

    def shown(self, limit: int) -> list[str]:
        """At most `limit` domains to show: the first sources, and at least a third unseen ones."""
        sources = self.record.run.sources
        unseen = [name for name in self.domains if name not in sources]
        room = max(limit - len(sources), min(len(unseen), limit // 3))
        kept = {*unseen[:room], *sources[: limit - len(unseen[:room])]}
        return [name for name in self.domains if name in kept]

    def batches(self, domain: str) -> Iterator[Batch]:
        """Endless batches of one domain, with the batch size and augmentation of the run."""
        run, augment = self.record.run, self.stream.samples.augment
        samples = replace(self.domains[domain], augment=augment)
        for (batch,) in Stream(samples, batch=run.batch, seed=run.seed):
            yield batch

    def retrain(self, moments: int) -> Iterator[tuple[int, nn.Module]]:
        """Repeat the training; yield the model at the start and at most `moments` times after it.

        On the same machine with the same number of threads, the training is identical bit for bit.
        It changes the learner, the stream and torch's random generators, so it works only once.
        """
        restore_rng_state(self.random)
        learner, last = self.learner, self.record.checkpoints[-1].step
        average = registry.find("averages", "last")()
        average.setup(learner.model, steps=last)
        yield 0, learner.model
        every = -(-last // moments)
        steps = {"steps": last, "every": every}
        for moment in checkpoints(
            self.method, learner, average, self.stream, lambda _: {}, **steps
        ):
            yield moment.step, learner.model

    def answers(
        self, model: nn.Module, samples: Samples, chosen: Tensor, *, domain: int | None = None
    ) -> Tensor:
        """Predicted classes of chosen samples; `domain` is the index of their source, if given."""
        logits = compute_outputs(model, samples.x, samples.prepare, indices=chosen, domain=domain)
        return logits.argmax(dim=1).cpu()

    def logits(self, samples: Samples) -> Tensor:
        """The deployed model's logits for samples, on the CPU."""
        return compute_outputs(self.model, samples.x, samples.prepare).cpu()

    def sample_indices(self, domain: str, count: int) -> Tensor:
        """Indices of `count` samples of a domain, drawn at random with the seed of the run."""
        generator = torch.Generator().manual_seed(self.record.run.seed)
        return torch.randperm(len(self.domains[domain]), generator=generator)[:count]


def reopen(
    folder: str | Path,
    *,
    dataset: str = "",
    root: Path | None = None,
    device: str | None = None,
) -> FinishedRun:
    """Reopen a finished run; `dataset` is the present path of its data, if they were moved."""
    folder = Path(folder).resolve()
    record = read_record(folder)
    if dataset:
        record = replace(record, run=replace(record.run, dataset=dataset))
    run = record.run
    if run.experts and run.method == "logit_ensemble":
        raise SpecError(f"{folder}: an ensemble is not one network; give one of its experts")
    if run.adaptation:
        raise SpecError(
            f"{folder}: an adapted run has the weights of its base; give {run.base} instead"
        )
    where = torch.device(device or default_device())
    machine = Machine(where, torch.get_num_threads(), root or data_root(), folder.parent)
    work = set_up(run, machine)
    random = capture_rng_state()
    trained = _without_factors(work.learner)
    if run.members:
        trained.model = build_ensemble(run, trained.model, folder.parent)
    else:
        trained.model.load_state_dict(read_run_weights(folder))
    parts = not trained.parts or (folder / "parts.safetensors").exists()
    if trained.parts and parts:
        trained.parts.load_state_dict(read_run_weights(folder, "parts"))
    trained.model.eval()
    trained.parts.eval()
    domain_set = find_dataset(run.dataset, machine.root)
    domains = load_domains(domain_set, run, machine.root)
    prepare = work.stream.samples.prepare
    splits = known_splits(run, domains)

    def samples(part: str) -> dict[str, Samples]:
        rows = {name: {name: getattr(split, part)} for name, split in splits.items()}
        return {
            name: replace(pool_domains(domains, of_domain, machine.device), prepare=prepare)
            for name, of_domain in rows.items()
        }

    return FinishedRun(
        record=record,
        step=max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, run)).step,
        model=trained.model,
        method=work.method,
        learner=work.learner,
        trained=trained,
        whole=parts,
        stream=work.stream,
        domains=samples("main"),
        probes=samples("probe"),
        sample_names={name: _names(domains[name], split.main) for name, split in splits.items()},
        random=random,
        base=read_run_weights(folder.parent / run.base) if run.experts else {},
        experts={
            _expert_name(folder.parent / key, run): read_run_weights(folder.parent / key)
            for key in run.experts
        },
        modality=domain_set.modality,
    )


def _without_factors(learner: Learner) -> Learner:
    """A copy of a learner whose networks have plain weights, as they are stored."""
    plain = copy.deepcopy(learner)
    if any(adapted_layers(plain.model)):
        for net in (plain.model, plain.parts):
            merge_factors(net)
        plain.reset_optimizer()
    return plain


def _expert_name(folder: Path, merged: Run) -> str:
    """The source of an expert, or its method if all experts have the same sources."""
    run = read_record(folder).run
    return run.method if run.sources == merged.sources else ", ".join(run.sources)


def _names(domain: Domain, rows: Tensor) -> list[str]:
    return [domain.names[row] if domain.names else str(row) for row in rows.tolist()]
