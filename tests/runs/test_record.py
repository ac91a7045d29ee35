from dataclasses import dataclass, replace

import pytest

from afield.errors import SpecError
from afield.runs.run import Run
from tests.runs.records import RUN, record_of

# Computed before there were optimizers to choose, and merges.
OLDER = {
    "erm-16e17306a5480d97": RUN,
    "vrex-f872d7dc26bf4ce9": Run(
        "toy",
        "vrex",
        ("a", "b"),
        trial=1,
        draw=2,
        params={"penalty": 3.0, "warmup": 500},
        average="ema",
        average_params={"decay": 0.9},
        backbone="small:mlp",
        steps=40,
        every=4,
        batch=8,
        lr=0.01,
        weight_decay=0.1,
        tested=("c",),
    ),
    "vrex-f26e7d03575b952c": Run(
        *("toy", "vrex", ("a", "b")),
        trial=2,
        optimizer="sgd:momentum=0.9",
        weights="hub",
        size=64,
        freeze_bn=True,
        tested=("c",),
    ),
}


CHANGES = [
    {"dataset": "other"},
    {"method": "vrex"},
    {"sources": ("a", "c")},
    {"trial": 1},
    {"draw": 1},
    {"params": {"x": 2.0}},
    {"average": "ema"},
    {"average_params": {"decay": 0.9}},
    {"backbone": "small:mlp"},
    {"steps": 7},
    {"every": 7},
    {"batch": 7},
    {"lr": 0.5},
    {"weight_decay": 0.5},
    {"optimizer": "sgd"},
    {"data": "f00d"},
    {"weights": "hub"},
    {"start": "f00d"},
    {"freeze_bn": True},
    {"size": 64},
    {"augment": "full"},
    {"domains_per_step": 2},
    {"balance": True},
    {"limit": 7},
    {"skip_broken": True},
    {"lr_schedule": "cosine"},
    {"clip_norm": 1.0},
    {"role": "base"},
    {"base": "erm-0"},
    {"experts": ("erm-1", "erm-2")},
    {"freeze_head": True},
    {"tested": ("c",)},
    {"unused": ("c",)},
    {"metric": "macro_f1"},
    {"prompts": "0123"},
]


def test_whatever_changes_the_training_changes_the_key():
    for change in CHANGES:
        assert replace(RUN, **change).key != RUN.key, change


def test_how_a_run_is_read_and_labelled_does_not_change_its_key():
    assert replace(RUN, rules=("target",), given={"steps": 3}).key == RUN.key


def test_groups_are_in_the_key_only_if_they_select():
    file = "/data/slides.csv:slide@0123"
    assert replace(RUN, group=file).key == RUN.key
    selecting = replace(RUN, metric="worst_group", group=file)
    assert selecting.key != replace(RUN, metric="worst_group", group="/data/slides.csv:slide@9").key
    # Where the file lies does not matter.
    assert selecting.key == replace(selecting, group="/elsewhere/slides.csv:slide@0123").key


def test_every_field_is_either_in_the_key_or_known_not_to_be():
    changed = {"rules", "given", "group", "class_names", "templates", "folder", "encoder", "images"}
    assert changed | {
        *("dataset", "method", "sources", "trial", "draw", "params", "average", "average_params"),
        *("backbone", "steps", "every", "batch", "lr", "weight_decay", "data"),
        *("weights", "start", "freeze_bn", "size", "augment", "domains_per_step", "balance"),
        *("limit", "skip_broken", "tested", "unused", "optimizer", "lr_schedule", "clip_norm"),
        *("role", "base", "experts", "freeze_head", "batch_total", "epochs", "report", "split"),
        *("classes", "adaptation", "adaptation_params", "metric", "prompts", "code"),
        *("precision", "inexact", "compile", "tokens", "freeze_blocks", "tune", "columns"),
        *("member", "members", "layer_decay", "head_lr"),
    } == set(Run.__dataclass_fields__)


def test_a_run_can_be_done_after_what_it_starts_from():
    expert = replace(RUN, base="erm-0")
    assert RUN.order < expert.order < replace(expert, experts=("erm-1",)).order


def test_the_order_of_the_experts_is_part_of_the_key():
    first, second = (replace(RUN, experts=experts) for experts in (("x", "y"), ("y", "x")))
    assert first.key != second.key


def test_twins_share_their_recipe():
    assert replace(RUN, sources=("a",)).recipe == RUN.recipe
    assert replace(RUN, trial=1).recipe != RUN.recipe


def test_the_seed_is_shared_by_methods_and_blind_to_the_data():
    assert replace(RUN, method="vrex", data="f00d", dataset="other").seed == RUN.seed
    for change in ({"trial": 1}, {"draw": 1}, {"sources": ("a",)}):
        assert replace(RUN, **change).seed != RUN.seed


@pytest.mark.parametrize(
    "wrong",
    [{"sources": ()}, {"steps": 0}, {"batch": -1}, {"lr": 0.0}, {"trial": -1}, {"clip_norm": -1}],
)
def test_a_run_that_cannot_be_is_refused(wrong):
    with pytest.raises(SpecError):
        replace(RUN, **wrong)


def test_a_record_knows_what_was_unseen():
    assert record_of().unseen == ("c",)
    assert record_of().domains == ("a", "b", "c")


def test_a_field_added_later_leaves_the_keys_of_older_runs_as_they_are():
    @dataclass(frozen=True)
    class LaterRun(Run):
        later: str = ""

    older = {name: getattr(RUN, name) for name in Run.__dataclass_fields__}
    assert LaterRun(**older).key == RUN.key
    assert LaterRun(**older, later="file").key != RUN.key


def test_own_data_that_were_moved_are_the_same_run():
    own = replace(RUN, dataset="/here/own", data="f00d")
    assert replace(own, dataset="/there/own").key == own.key
    assert replace(own, data="beef").key != own.key


@pytest.mark.parametrize("key", OLDER)
def test_keys_are_what_they_were(key):
    # Other keys here would mean that all finished runs are done again.
    assert OLDER[key].key == key


def test_twins_share_the_recipe_that_they_had_before_optimisers_could_be_chosen():
    assert OLDER["vrex-f872d7dc26bf4ce9"].recipe == "43660741995ca392"


def test_another_optimiser_is_another_run_of_another_recipe():
    other = replace(RUN, optimizer="sgd:momentum=0.9")
    assert other.key != RUN.key
    assert other.recipe != RUN.recipe
    assert replace(other, optimizer="sgd:momentum=0.8").key != other.key
    assert other.seed == RUN.seed


def test_without_anything_said_every_checkpoint_is_a_candidate():
    (last,) = record_of().checkpoints
    record = replace(record_of(), checkpoints=(replace(last, step=5), last))
    assert record.candidates == record.checkpoints


def test_a_record_knows_nothing_of_unused_domains():
    run = replace(RUN, tested=("c",), unused=("d",))
    assert record_of(run).domains == ("a", "b", "c")
    assert record_of(run).unseen == record_of(run).tests == ("c",)


@pytest.mark.parametrize(
    ("name", "value"), [("batch", 10**9), ("size", 100_000), ("steps", 10**12)]
)
def test_absurd_settings_are_refused(name, value):
    with pytest.raises(SpecError, match=f"{name}={value}: must be at most"):
        replace(RUN, **{name: value})
