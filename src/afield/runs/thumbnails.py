"""Thumbnails of the data: a strip of a few images per domain, kept in the store for its report.

    store/thumbnails-<digest>.json    {"domain": "base64 of a WebP image", …}

The images are spread evenly over the samples of a domain, whatever their labels. Datasets of other
samples have no thumbnails.
"""

import base64
import io
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from afield.data.domains import Domain
from afield.data.lookup import find_dataset
from afield.data.modality import Modality
from afield.errors import AfieldError
from afield.files import read_text
from afield.runs.run import Run
from afield.runs.run_files import thumbnail_file
from afield.runs.run_setup import load_domains
from afield.runs.store import Store

log = logging.getLogger(__name__)

# Images in a strip, their side in pixels, the pixels between them, and the strips of a dataset.
IMAGES, SIDE, GAP, MAX_DOMAINS = 8, 56, 2, 12
# Arrays with fewer rows or columns, or with more channels, are no images to look at.
MIN_SIDE, MAX_CHANNELS = 8, 3
# Beside the features of photographs in the cache.
STRIPS_FILE = "thumbnails.json"


def keep_thumbnails(runs: Iterable[Run], store: Store) -> None:
    """Write the thumbnails of all datasets of these runs into the store, where they are missing."""
    by_data = {(run.dataset, run.data): run for run in runs}
    missing = {
        name: run
        for run in by_data.values()
        if not (store.root / (name := thumbnail_file(run))).exists()
    }
    for name, run in missing.items():
        try:
            strips = _strips_of(run)
            if strips:
                store.put_file(name, json.dumps(strips).encode())
        except (AfieldError, OSError) as error:
            log.info("no thumbnails of %s (%s)", Path(run.dataset).name, error)


def _strips_of(run: Run) -> Mapping[str, str]:
    beside = Path(run.dataset).with_name(STRIPS_FILE)
    if run.data and beside.is_file():
        return dict(json.loads(read_text(beside)))
    dataset = find_dataset(run.dataset)
    return image_strips(load_domains(dataset, run), dataset.modality)


def write_strips(features: Path, domains: Mapping[str, Domain], modality: Modality) -> None:
    """Write thumbnails beside a file of features, which has no images itself."""
    strips = json.dumps(image_strips(domains, modality))
    features.with_name(STRIPS_FILE).write_text(strips, encoding="utf-8")


def image_strips(domains: Mapping[str, Domain], modality: Modality) -> dict[str, str]:
    """A strip of images for each of the first domains, as WebP in base64; empty if none fit."""
    first = next(iter(domains.values())).x
    if first.ndim != 4 or min(first.shape[2:]) < MIN_SIDE or first.shape[1] > MAX_CHANNELS:
        return {}
    return {name: _strip(domains[name], modality) for name in list(domains)[:MAX_DOMAINS]}


def _strip(domain: Domain, modality: Modality) -> str:
    count = min(IMAGES, len(domain.x))
    strip = Image.new("RGBA", (IMAGES * (SIDE + GAP) - GAP, SIDE))
    for number, index in enumerate(np.linspace(0, len(domain.x) - 1, count).round()):
        pixels = modality.to_rgb(domain.x[int(index)])
        pixels = pixels if pixels.shape[2] == 3 else np.repeat(pixels[:, :, :1], 3, axis=2)
        image = Image.fromarray((255 * pixels).round().astype(np.uint8))
        strip.paste(image.resize((SIDE, SIDE)), (number * (SIDE + GAP), 0))
    content = io.BytesIO()
    strip.save(content, "WEBP", quality=80)
    return base64.b64encode(content.getvalue()).decode()
