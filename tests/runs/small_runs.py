"""Small runs that several tests do: of varied pictures, from a file of weights, with averages."""

from dataclasses import replace

import numpy as np
import timm
import torch
from PIL import Image

from afield import registry
from afield.hyperparameters import defaults, without_neutral
from afield.runs.runner import execute
from afield.studies.planning import plan_run

# All that a stream may do: some of the domains a step, classes alike, pictures varied.
VARIED = {"augment": "light", "domains_per_step": 2, "balance": True, "size": 16, "batch": 6}
# At this rate the loss falls, turns at the fourth checkpoint and leaves: two later that is known.
VALLEY = {
    "steps": 60,
    "every": 2,
    "lr": 0.3,
    "swad.converge": 2,
    "swad.patience": 2,
    "swad.slack": 0.2,
}
# The step at which the end of that valley is known.
LAST_STEP = 12


def averaged(run, average):
    """The run with a weight average; one that needs a fitted head cannot be planned without."""
    kind = registry.find("averages", average)
    return replace(run, average=average, average_params=without_neutral(kind, defaults(kind)))


def swad_run(**settings):
    """A run on spirals whose average ends at `LAST_STEP`."""
    return plan_run("spirals", "erm", target="turn0", average="swad", settings=VALLEY | settings)


def varied_run(folder, method="groupdro", **settings):
    """A run on small pictures: four domains, of which the colours tell two unequal classes."""
    root = folder / "pictures"
    if not root.exists():
        _write_pictures(root)
    return plan_run(root, method, target="d", settings={**VARIED, "steps": 80, **settings})


def _write_pictures(root):
    generator = np.random.default_rng(0)
    for number, domain in enumerate("abcd"):
        for label, count in (("blue", 4), ("red", 9)):
            for i in range(count):
                pixels = generator.integers(0, 120, (18, 18, 3)) + 10 * number
                pixels[..., 0 if label == "red" else 2] += 60
                path = root / domain / label / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(path)


def run_from_a_file(folder):
    """A run that starts from the weights in a file; returns these too."""
    torch.manual_seed(0)
    net = timm.create_model("test_resnet", num_classes=0)
    net.train()(torch.randn(8, 3, 32, 32))
    file = folder / "w.pth"
    torch.save(net.state_dict(), file)
    settings = {"backbone": "timm:test_resnet", "weights": str(file), "size": 32}
    settings |= {"steps": 4, "every": 2, "domains_per_step": 0}
    return varied_run(folder, "erm", **settings), net.state_dict()


def probed_base(store):
    """A base with a fitted head, done."""
    settings = {"steps": 1, "backbone": "small:mlp"}
    base = plan_run("spirals", "linear_probe", target="turn0", settings=settings)
    base = replace(base, role="base")
    execute(base, store)
    return base


def regrouping_run(grouping, *, every=7):
    """Groups are made at 0, 25, 50, 75."""
    settings = {
        "steps": 90,
        "every": every,
        "seed_category.period": 25,
        "seed_category.grouping": grouping,
        "seed_category.radius": 0.7,
    }
    return plan_run("spirals", "seed_category", target="turn0", settings=settings)
