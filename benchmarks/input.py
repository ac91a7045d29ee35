"""Pictures per second that reach a training step, over those of DomainBed's way, on one core.

    AFIELD_DATA=... python benchmarks/input.py

Both give batches of 3 × 32 pictures at 224 pixels with full augmentation from the files of
`pacs_mini`. Ours is a run's own stream: rows of the decode cache, mapped into memory, cropped and
coloured. The yardstick opens every file with Pillow and varies the picture with torchvision. They
take turns every batch. The ratio is printed last (goal: at least 4).
"""

from pathlib import Path

import torch
from bare import Stopwatch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.data.stream import Stream
from afield.experiments.run_data import RunData
from afield.experiments.run_setup import load_domains, make_stream
from afield.experiments.settings import resolve_run

TURNS, WARM_UP = 20, 2
BACKBONE = "timm:resnet50"


def ours(folder: Path) -> Stream:
    """The batches of a run that leaves one domain out."""
    dataset = find_dataset(folder)
    settings = {"backbone": BACKBONE, "weights": "none", "batch": 32}
    run = resolve_run(dataset, "erm", dataset.without(dataset.domains[0]), settings=settings)
    assert (run.size, run.augment) == (224, "full")
    material = RunData.of(run, dataset, load_domains(dataset, run), torch.device("cpu"))
    return make_stream(run, material.samples)


def domainbeds(size: int) -> transforms.Compose:
    """What DomainBed does to a picture in training."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=(0.7, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
            transforms.RandomGrayscale(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )


def theirs(files: list[Path], varied: transforms.Compose, count: int) -> Tensor:
    """A batch of files, each opened and varied by itself."""
    chosen = torch.randint(len(files), (count,)).tolist()
    return torch.stack([varied(Image.open(files[i]).convert("RGB")) for i in chosen])


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = data_root() / "pacs_mini"
    files = sorted(path for path in folder.rglob("*.*") if path.is_file())
    stream, varied = ours(folder), domainbeds(224)
    watches = Stopwatch(), Stopwatch()
    for turn in range(WARM_UP + TURNS):
        if turn == WARM_UP:
            watches = Stopwatch(), Stopwatch()
        watches[0].start()
        batches = next(stream)
        watches[0].stop()
        count = sum(len(batch.y) for batch in batches)
        watches[1].start()
        batch = theirs(files, varied, count)
        watches[1].stop()
        assert batch.shape[1:] == batches[0].x.shape[1:]
    pictures = TURNS * count
    print(f"DomainBed's way  {pictures / watches[1].seconds:7.1f} pictures/s")
    print(f"afield's stream  {pictures / watches[0].seconds:7.1f} pictures/s")
    print(f"ratio            {watches[1].seconds / watches[0].seconds:.2f}")


if __name__ == "__main__":
    main()
