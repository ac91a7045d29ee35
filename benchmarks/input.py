"""Pictures or tokens per second that reach a training step, over the usual way, on one core.

    AFIELD_DATA=... python benchmarks/input.py
    AFIELD_DATA=... python benchmarks/input.py text

Both give batches of 3 × 32 pictures at 224 pixels with full augmentation from the files of
`pacs_mini`. Ours is a run's own stream: rows of the decode cache, mapped into memory, cropped and
coloured. The yardstick opens every file with Pillow and varies the picture with torchvision. They
take turns every batch. The ratio is printed last (goal: at least 4).

Texts are the reviews of `reviews`, in batches of 6 × 16 with at most 128 tokens of the tokenizer of
`minilm_l6`. The yardstick tokenizes every batch with the library tokenizers and pads it to its
longest text. Padding does not count; its share is printed too.
"""

import sys
from pathlib import Path

import pandas as pd
import torch
from bare import Stopwatch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.data.stream import Stream
from afield.runs.run_data import RunData
from afield.runs.run_setup import load_domains, make_stream
from afield.studies.settings import resolve_run

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


def texts() -> None:
    """Measure tokens and print."""
    from tokenizers import Tokenizer

    root = data_root()
    table, encoder = root / "reviews" / "reviews.csv.gz", root / "weights" / "minilm_l6"
    dataset = find_dataset(table)
    sources = dataset.without(dataset.domains[0])
    run = resolve_run(dataset, "erm", sources, settings={"backbone": f"hf:{encoder}"})
    material = RunData.of(run, dataset, load_domains(dataset, run), torch.device("cpu"))
    stream = make_stream(run, material.samples)
    frame = pd.read_csv(table)
    strings = frame.text[frame.domain.isin(sources)].tolist()
    tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    tokenizer.enable_truncation(run.tokens)
    tokenizer.enable_padding()
    watches, counts, sizes = (Stopwatch(), Stopwatch()), [0, 0], [0, 0]
    for _ in range(64):
        watches[0].start()
        x = torch.cat([batch.x for batch in next(stream)])
        watches[0].stop()
        chosen = torch.randint(len(strings), (len(x),)).tolist()
        watches[1].start()
        encoded = tokenizer.encode_batch([strings[i] for i in chosen])
        other = torch.tensor([each.ids for each in encoded])
        watches[1].stop()
        for i, (ids, count) in enumerate(((x, x >= 0), (other, other > 0))):
            counts[i] += int(count.sum())
            sizes[i] += ids.numel()
    for i, label in ((1, "tokenized each time"), (0, "afield's stream")):
        rate, padding = counts[i] / watches[i].seconds, 1 - counts[i] / sizes[i]
        print(f"{label:20} {rate:12,.0f} tokens/s, {padding:.0%} padding")
    ratio = counts[0] / watches[0].seconds / (counts[1] / watches[1].seconds)
    print(f"ratio                {ratio:12.1f}")


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if "text" in sys.argv[1:]:
        texts()
        return
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
