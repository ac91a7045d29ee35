"""The command ``afield embed``: the features of a dataset."""

from pathlib import Path
from typing import Annotated, Any

import typer

from afield.cli import console, options


@options.with_options("label", "domain", "text", "column_types", "drop", "weights", "skip_broken")
def embed(
    dataset: options.DatasetArgument,
    *,
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="File to write; .npz is added if it is missing."),
    ],
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Pretrained network that computes the features, e.g. timm:resnet50. Default: the "
            "dataset's if it is pretrained, otherwise the one whose weights are at hand.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=16, metavar="PIXELS", help="Side of the images. Default: the network's."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cut texts at N tokens. Default: 128.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads. Default: all.")
    ] = None,
    force: options.Force = False,
    **values: Any,
) -> None:
    """Compute the features of all images or texts once and save them as a dataset.

    The file is a dataset for all other commands, on which training is fast.
    A model that `fit` trains on it takes images or texts. Texts need an
    encoder: --backbone hf:FOLDER. If the command is interrupted, run it again
    to continue.

    Images and .txt files that are not in folders of domains and classes have no
    labels; their features are for `afield predict`.
    """
    import numpy as np

    from afield.compute import keep_freed_memory
    from afield.studies.features import embed as write_features

    keep_freed_memory()
    with console.show_progress():
        path = write_features(
            options.name_dataset(dataset, values),
            out,
            backbone=backbone,
            size=size,
            tokens=tokens,
            threads=threads,
            overwrite=force,
            **values,
        )
    with np.load(path) as arrays:
        advice = f"next: `afield bench {path}`" if "y" in arrays else "without labels"
    console.out.say(f"features in {path}; {advice}")
