"""Pictures per second that reach a training step, over those of DomainBed's way, on one core.

    AFIELD_DATA=... python benchmarks/input.py

Both give batches of 32 at 224 pixels with full augmentation from the files of `pacs_mini`. Ours
indexes a memory map of decoded squares; the yardstick opens every file with Pillow and varies the
picture with torchvision. They take turns every batch. The ratio is printed last (goal: at least 4).
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from bare import Stopwatch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from afield.augmentation import Augmented
from afield.domains import data_root
from afield.loading import Scaling

SIZE, STORED, BATCH, TURNS, WARM_UP = 224, 256, 32, 40, 3
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def stored(files: list[Path], folder: Path) -> Tensor:
    """All pictures, decoded once: n x 3 x 256 x 256 bytes, mapped into memory channels last."""
    path, shape = folder / "pictures.npy", (len(files), STORED, STORED, 3)
    squares = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    for square, file in zip(squares, files, strict=True):
        with Image.open(file) as picture:
            square[:] = picture.convert("RGB").resize((STORED, STORED))
    squares.flush()
    return torch.from_numpy(np.lib.format.open_memmap(path, mode="c")).permute(0, 3, 1, 2)


def domainbeds() -> transforms.Compose:
    """What DomainBed does to a picture in training."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=(0.7, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
            transforms.RandomGrayscale(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def seconds(files: list[Path], squares: Tensor) -> tuple[float, float, float]:
    """Time that a picture takes: to read ours, to vary ours, and the yardstick's."""
    generator = torch.Generator().manual_seed(0)
    varied = domainbeds()
    mean, std = (255 * torch.tensor(part)[:, None, None] for part in (MEAN, STD))
    augmented = Augmented("full", SIZE, Scaling(mean, std))
    reading, varying, yardstick = (Stopwatch() for _ in range(3))
    for turn in range(WARM_UP + TURNS):
        if turn == WARM_UP:
            reading, varying, yardstick = (Stopwatch() for _ in range(3))
        index = torch.randint(len(files), (BATCH,))
        reading.start()
        x = squares.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
        reading.stop()
        varying.start()
        ours = augmented(x, generator)
        varying.stop()
        yardstick.start()
        theirs = torch.stack([varied(Image.open(files[i]).convert("RGB")) for i in index.tolist()])
        yardstick.stop()
        assert ours.shape == theirs.shape
    return tuple(watch.seconds / TURNS / BATCH for watch in (reading, varying, yardstick))


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    files = sorted(path for path in (data_root() / "pacs_mini").rglob("*.*") if path.is_file())
    with tempfile.TemporaryDirectory() as folder:
        reading, varying, yardstick = seconds(files, stored(files, Path(folder)))
    ours = reading + varying
    print(f"yardstick  {1 / yardstick:7.1f} pictures/s")
    print(f"ours       {1 / ours:7.1f} pictures/s, {reading / ours:.0%} of the time spent reading")
    print(f"ratio      {yardstick / ours:.2f}")


if __name__ == "__main__":
    main()
