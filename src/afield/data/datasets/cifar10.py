"""CIFAR-10: 60,000 small photographs of ten classes, without a domain shift.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, Toronto, 2009. It is meant for
the analysis of methods, not for benchmarks: the two domains are its training set (50,000) and its
test set (10,000), which differ only by chance. So leaving ``test`` out measures ordinary accuracy.

In the data root: ``cifar-10-batches-bin/``, the binary version, which contains no pickled data. An
image is one byte for the class and 32 × 32 pixels of red, green and blue. License: none stated.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from afield.data.domains import Domain, DomainSet, Download, ReadOptions
from afield.data.downloads import Archive
from afield.data.training_settings import Training
from afield.errors import DataError

__all__ = ["cifar10"]

FOLDER = "cifar-10-batches-bin"
FILES = {
    "train": [f"{FOLDER}/data_batch_{number}.bin" for number in range(1, 6)],
    "test": [f"{FOLDER}/test_batch.bin"],
}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32


def _read(options: ReadOptions) -> dict[str, Domain]:
    domains = {}
    for name, files in FILES.items():
        records = np.concatenate([_read_records(options.root / file) for file in files])
        domains[name] = Domain(
            x=torch.from_numpy(np.ascontiguousarray(records[:, 1:])).view(-1, *SHAPE),
            y=torch.from_numpy(records[:, 0].astype(np.int64)),
        )
    return domains


def _read_records(path: Path) -> NDArray[np.uint8]:
    """One row per image: its class, then its pixels."""
    content = np.fromfile(path, np.uint8)
    records = content[: len(content) // RECORD_BYTES * RECORD_BYTES].reshape(-1, RECORD_BYTES)
    if not len(records) or records.size < len(content) or records[:, 0].max() >= len(CLASSES):
        raise DataError(
            f"{path}: its {len(content):,} bytes are not images of {RECORD_BYTES:,} bytes with the "
            "class first; delete it and download it again"
        )
    return records


cifar10 = DomainSet(
    name="cifar10",
    domains=tuple(FILES),
    classes=CLASSES,
    reader=_read,
    training=Training(steps=3000, batch=128),
    needs=tuple(file for files in FILES.values() for file in files),
    download=Download(
        archives=(
            Archive(
                url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        license="none stated",
    ),
    sizes={"train": 50_000, "test": 10_000},
)
