"""Finished runs, reopened with their data, network and weights."""

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
from afield.data.modality import ARRAY, Modality
from afield.data.samples import Batch, Samples, pool_domains
from afield.data.stream import Stream
from afield.errors import SpecError
from afield.experiments.record import Record, Run
from afield.experiments.run_data import known_splits
from afield.experiments.run_setup import Machine, load_domains, set_up
from afield.experiments.selection import selection_value
from afield.experiments.store import read_record, read_run_weights
from afield.networks.inference import compute_outputs
from afield.seeds import capture_rng_state, restore_rng_state
from afield.training.loop import checkpoints
from afield.training.method import Learner, Method

__all__ = ["FinishedRun", "reopen"]


@dataclass(frozen=True)
class FinishedRun:
    """A finished run brought back: its record, its deployed model (as of a `step`), and its start.

    `learner` and `stream` are as they were before the first step; `domains` has the main part of
    every domain, unseen ones too, without augmentation, `probes` the other part, and `called` what
    each sample of the main part is called: its file's name, or the number of its row. `random` is
    the state of the random generators at the first step. `trained` has the model once more, with
    the method's further networks as they were then, if these were kept (`whole`). Of a merged run,
    `base` has the weights that its experts started from and `experts` theirs, each with the name of
    its source or method.
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
    modality: Modality = ARRAY

    def shown(self, limit: int) -> list[str]:
        """The domains to show, at most so many: the first sources, and at least a third unseen."""
        sources = self.record.run.sources
        unseen = [name for name in self.domains if name not in sources]
        room = max(limit - len(sources), min(len(unseen), limit // 3))
        kept = {*unseen[:room], *sources[: limit - len(unseen[:room])]}
        return [name for name in self.domains if name in kept]

    def batches(self, domain: str) -> Iterator[Batch]:
        """Endless batches of one domain, as large and as augmented as those of the run."""
        run, augment = self.record.run, self.stream.samples.augment
        samples = replace(self.domains[domain], augment=augment)
        for (batch,) in Stream(samples, batch=run.batch, seed=run.seed):
            yield batch

    def retrain(self, moments: int) -> Iterator[tuple[int, nn.Module]]:
        """Train the run once more, and show the model at its start and at most so often after it.

        On the same machine, with as many threads, it is the same training, bit for bit. It changes
        the learner, the stream and torch's random generators, and can be done once.
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
        """The classes that a model names for chosen samples, if need be told the source."""
        logits = compute_outputs(model, samples.x, samples.prepare, indices=chosen, domain=domain)
        return logits.argmax(dim=1).cpu()

    def logits(self, samples: Samples) -> Tensor:
        """What the deployed model makes of samples, on the CPU."""
        return compute_outputs(self.model, samples.x, samples.prepare).cpu()

    def sample_indices(self, domain: str, count: int) -> Tensor:
        """So many of a domain's samples, by their indices, drawn at random but the same again."""
        generator = torch.Generator().manual_seed(self.record.run.seed)
        return torch.randperm(len(self.domains[domain]), generator=generator)[:count]


def reopen(
    folder: str | Path,
    *,
    dataset: str = "",
    root: Path | None = None,
    device: str | None = None,
) -> FinishedRun:
    """A finished run with its network and its data; `dataset` says where these are now."""
    folder = Path(folder).resolve()
    record = read_record(folder)
    if dataset:
        record = replace(record, run=replace(record.run, dataset=dataset))
    run = record.run
    if run.experts and run.method == "logit_ensemble":
        raise SpecError(f"{folder}: an ensemble is not one network; look at one of its experts")
    where = torch.device(device or default_device())
    place = Machine(where, torch.get_num_threads(), root or data_root(), folder.parent)
    work = set_up(run, place)
    random = capture_rng_state()
    trained = copy.deepcopy(work.learner)
    trained.model.load_state_dict(read_run_weights(folder))
    parts = not trained.parts or (folder / "parts.safetensors").exists()
    if trained.parts and parts:
        trained.parts.load_state_dict(read_run_weights(folder, "parts"))
    trained.model.eval()
    trained.parts.eval()
    found = find_dataset(run.dataset, place.root)
    domains = load_domains(found, run, place.root)
    prepare = work.stream.samples.prepare
    cuts = known_splits(run, domains)

    def samples(part: str) -> dict[str, Samples]:
        rows = {name: {name: getattr(cut, part)} for name, cut in cuts.items()}
        return {
            name: replace(pool_domains(domains, own, place.device), prepare=prepare)
            for name, own in rows.items()
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
        sample_names={name: _called(domains[name], cut.main) for name, cut in cuts.items()},
        random=random,
        base=read_run_weights(folder.parent / run.base) if run.experts else {},
        experts={
            _named(folder.parent / key, run): read_run_weights(folder.parent / key)
            for key in run.experts
        },
        modality=found.modality,
    )


def _named(folder: Path, merged: Run) -> str:
    """What an expert is called: its source, or its method where all have the same sources."""
    run = read_record(folder).run
    return run.method if run.sources == merged.sources else ", ".join(run.sources)


def _called(domain: Domain, rows: Tensor) -> list[str]:
    return [domain.names[row] if domain.names else str(row) for row in rows.tolist()]
