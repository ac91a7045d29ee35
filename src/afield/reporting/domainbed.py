"""Export records in DomainBed's format, so that its collect_results script can read them.

    OUT/<key>/results.jsonl   one line per checkpoint
    OUT/<key>/done

DomainBed calls a domain env, the main split in and the probe split out. It counts the envs by their
out-accuracies; accuracies that no rule needs were not evaluated and are NaN. Its script shows only
datasets whose name it knows: `dataset` gives the records such a name.
"""

import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from afield import registry
from afield.data.domains import PROBE_FRACTION
from afield.errors import SpecError
from afield.files import atomic_write
from afield.runs.record import Record
from afield.runs.row import Row, common_settings
from afield.runs.run import Run
from afield.training.scores import Checkpoint

# DomainBed's names of the splits.
SPLITS = {"in": "main", "out": "probe"}


def export_domainbed(
    records: Iterable[Record], out: Path, *, dataset: str | None = None, overwrite: bool = False
) -> list[Path]:
    """Write one folder per record and return the folders; on an error, none is left."""
    exported = [record for record in records if not record.run.is_auxiliary]
    common = common_settings(record.run for record in exported)
    folders = [out / record.run.key for record in exported]
    existing = {folder for folder in folders if folder.exists() or folder.is_symlink()}
    if existing and not overwrite:
        raise SpecError(f"{min(existing)}: exists already; give another OUT, or --force")
    try:
        for record, folder in zip(exported, folders, strict=True):
            lines = (_line(record, each, dataset, common) for each in record.candidates)
            text = "".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines)
            with atomic_write(folder, folder=True) as temporary:
                (temporary / "results.jsonl").write_text(text)
                (temporary / "done").write_text("done")
    except OSError as error:
        for folder in set(folders) - existing:
            shutil.rmtree(folder, ignore_errors=True)
        raise SpecError(f"{out}: cannot be written ({error.strerror}); give another OUT") from None
    return folders


def _line(
    record: Record, checkpoint: Checkpoint, dataset: str | None, common: set[str]
) -> dict[str, Any]:
    run, envs = record.run, list(enumerate(record.domains))
    accuracies = {
        f"env{i}_{name}_acc": score.accuracy if score else math.nan
        for i, domain in envs
        for name, split in SPLITS.items()
        for score in [checkpoint.score(domain, split)]
    }
    return {
        **accuracies,
        **checkpoint.logs,
        "step": checkpoint.step,
        "step_time": record.seconds / record.checkpoints[-1].step,
        "hparams": {"lr": run.lr, "batch_size": run.batch, "weight_decay": run.weight_decay}
        | dict(run.params),
        "args": {
            "algorithm": _algorithm(run, common),
            "dataset": dataset or run.dataset,
            "test_envs": [i for i, domain in envs if domain in record.unseen],
            "trial_seed": run.trial,
            "hparams_seed": run.draw,
            "seed": run.seed,
            "holdout_fraction": PROBE_FRACTION,
            "steps": run.steps,
            "checkpoint_freq": run.every,
            "task": "domain_generalization",
        },
    }


def _algorithm(run: Run, common: set[str]) -> str:
    """The row label with the name of the class, which is DomainBed's for methods that both have."""
    if run.experts:
        return Row.of(run).without(common).label
    name = registry.find("methods", run.method).__name__
    return Row.of(run).without(common).label_as(name)
