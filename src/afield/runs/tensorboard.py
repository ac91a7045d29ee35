"""Curves for TensorBoard, written during training.

TensorBoard is an extra: ``pip install 'afield[tensorboard]'``.
"""

from typing import Any

from afield.errors import SpecError
from afield.runs.run import Run
from afield.training.scores import PARTS, Checkpoint


class TensorBoardWriter:
    """Writes scores and logs of every checkpoint into a folder, with one subfolder per run."""

    def __init__(self, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SpecError(
                "TensorBoard is not installed; try: pip install 'afield[tensorboard]'"
            ) from None
        self.folder = folder
        self._writer = SummaryWriter
        self._open: tuple[str, Any] = ("", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorBoardWriter, (self.folder,)

    def __call__(self, run: Run, checkpoint: Checkpoint) -> None:
        """Write the scores and logs of a checkpoint."""
        if self._open[0] != run.key:
            self.close()
            # A killed run continues from its snapshot and repeats the steps after it.
            folder = f"{self.folder}/{run.key}"
            self._open = run.key, self._writer(folder, purge_step=checkpoint.step)
        writer = self._open[1]
        for domain, scores in checkpoint.scores.items():
            place = "source" if domain in run.sources else "unseen"
            for part in PARTS:
                score = getattr(scores, part)
                if score is not None:
                    name = f"{place} {domain}, {part}"
                    writer.add_scalar(f"accuracy/{name}", score.accuracy, checkpoint.step)
                    writer.add_scalar(f"loss/{name}", score.loss, checkpoint.step)
        for name, value in checkpoint.logs.items():
            writer.add_scalar(f"training/{name}", value, checkpoint.step)
        writer.flush()
        if checkpoint.step >= run.steps:
            self.close()

    def close(self) -> None:
        """Close the file of the current run."""
        if self._open[1] is not None:
            self._open[1].close()
        self._open = ("", None)
