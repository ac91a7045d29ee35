"""Settings of training that a dataset suggests and every method shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from afield.hyperparameters import Around, LogUniform

# The value of `batch` that stands for all training samples of a domain; users write ``all``.
WHOLE_DOMAINS = 0


def _batch_size(value: Any) -> Any:
    return WHOLE_DOMAINS if value == "all" else value


@dataclass(frozen=True)
class Training:
    """Default training settings of a dataset, independent of the method.

    A hyperparameter sample draws `batch` and `lr` from multiples of these defaults.

    Parameters
    ----------
    steps, every
        Number of training steps, and of steps between checkpoints; None means 2 % of all steps.
    epochs
        Number of passes over the training samples of a run, instead of a number of steps; 0 means
        that `steps` holds.
    batch, lr, weight_decay
        Samples per domain in a step (0 or ``all``: all of them), learning rate and weight decay.
    batch_total
        Samples in a step, drawn from all source domains together, instead of `batch` from each.
    optimizer
        Name of a torch.optim class with options, e.g. ``sgd:momentum=0.9``; empty means Adam.
    lr_schedule
        Learning-rate schedule: constant, cosine, exponential, inverse or step, with options, e.g.
        ``cosine:warmup=500`` or ``exponential:rate=0.99``; empty keeps the rate constant.
    clip_norm
        Largest norm of the gradients, which are scaled down to it; 0 means no limit.
    backbone, weights
        Name of the network, and its first weights: hub, none or a file; None means hub if the
        backbone has pretrained weights.
    freeze_bn
        Whether BatchNorm layers keep their statistics; None means only with given weights.
    size, augment
        Side in pixels of the images that the network sees, and the level of augmentation (none,
        light or full); None means what suits the data and the network.
    tokens, pooling
        Number of tokens at which texts are cut (None means what suits the network), and how an
        encoder from Hugging Face pools them: mean or first; empty means as its folder says.
    tune
        What is trained: ``frozen`` (a small network on features that the network computes once),
        ``head`` (the last layer, inside the network), ``norms`` and ``attention`` (normalization
        or attention, with the head), ``lora:rank=4,alpha=8`` (factors of low rank beside the
        weights, with the head), ``body`` (all but the last layer), ``after:N`` (all but the first N
        blocks) or ``full``; empty means what suits the data.
    freeze_blocks, freeze_head
        What ``after:N`` and ``body`` stand for: the number of blocks at the beginning of the
        network that are not trained, with what comes before them, and whether the last layer is
        not.
    layer_decay, head_lr
        Factor of the learning rate from each layer to the one before it (0 and 1: none), and the
        learning rate of the last layer (0: that of the run).
    columns
        Empty: the sources of a run decide which columns of a table hold numbers, a missing value
        is an input of its own, and numbers are scaled by median and quartiles, with tails that
        grow like a logarithm. ``sources``: numbers are scaled by mean and standard deviation, and
        a missing category counts as the most frequent one too. ``table``: as in earlier versions,
        any text in the whole table makes a column one of categories.
    domains_per_step
        Number of source domains that a step draws from; 0 means all.
    balance
        Whether all classes of a domain are drawn equally often.
    limit
        Largest number of training samples per class and domain; 0 means all.
    split
        ``lists`` splits domains by the dataset's own lists if it has any, ``random`` at random.
    report
        ``test`` reports on the test split of the target, ``whole`` on all of its samples.
    skip_broken
        Whether to leave out files that cannot be read.
    metric
        Metric that selects checkpoints and hyperparameters, such as macro_f1; empty means accuracy.
    group
        Groups of samples finer than a domain whose accuracies are shown as well: a column of the
        data, or a CSV file with the columns path and group.
    precision
        Arithmetic of the networks: fp32, bf16 (bfloat16), fp16 (float16, for GPUs without
        bfloat16), or auto, which chooses by the device and the network.
    inexact
        Whether a GPU may use its fastest kernels, which do not repeat bit for bit.
    compile
        Whether torch.compile compiles the network, which takes a while before the first step.
    class_names, templates
        Files with readable names of the classes and with sentences, for the prompts of a CLIP;
        empty means those of the dataset.
    """

    seed_name: ClassVar[str] = "Training"

    steps: int = 600
    every: int | None = None
    epochs: float = 0.0
    batch: Annotated[int, BeforeValidator(_batch_size), Around(0.25, 2.0)] = 16
    lr: Annotated[float, Around(0.1, 3.0)] = 1e-3
    weight_decay: Annotated[float, LogUniform(1e-6, 1e-2)] = 0.0
    batch_total: int = 0
    optimizer: str = ""
    lr_schedule: str = ""
    clip_norm: float = 0.0
    backbone: str = "small:cnn"
    weights: str | None = None
    freeze_bn: bool | None = None
    size: int | None = None
    augment: Literal["none", "light", "full"] | None = None
    tokens: int | None = None
    pooling: Literal["", "mean", "first"] = ""
    tune: str = ""
    freeze_blocks: int = 0
    freeze_head: bool = False
    layer_decay: float = 0.0
    head_lr: float = 0.0
    columns: Literal["", "sources", "table"] = ""
    domains_per_step: int = 0
    balance: bool = False
    limit: int = 0
    split: Literal["lists", "random"] = "lists"
    report: Literal["test", "whole"] = "test"
    skip_broken: bool = False
    metric: str = ""
    group: str = ""
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    inexact: bool = False
    compile: bool = False
    class_names: str = ""
    templates: str = ""


# DomainBed's defaults for photographs, starting as there from torchvision's weights. DomainBed
# counts 5,001 steps because it evaluates the 5,000th in the next.
DOMAINBED_DEFAULTS = Training(
    steps=5000, every=300, batch=32, lr=5e-5, backbone="timm:resnet50.tv_in1k"
)
# Settings that the authors of an average chose for these datasets: SWAD's checkpoints.
DOMAINBED_AVERAGES: Mapping[str, Mapping[str, Any]] = {"swad": {"every": 100}}
# The optimizer and network of WILDS for its datasets of texts.
WILDS_TEXT_DEFAULTS = Training(
    steps=5000,
    every=250,
    batch=8,
    lr=1e-5,
    weight_decay=0.01,
    optimizer="adamw",
    backbone="hf:distilbert/distilbert-base-uncased",
)
