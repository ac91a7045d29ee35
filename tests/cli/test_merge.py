"""`afield merge` as a user types it."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from afield import registry
from afield.merging.job import merge
from tests.merging.adapters import family
from tests.merging.families import sharded, written

INPUTS = ("base.safetensors", "e0.safetensors", "e1.safetensors")


@pytest.fixture(autouse=True)
def models(tmp_path):
    """A base and two experts, in the folder in which commands are typed."""
    return written(tmp_path, 2)


def test_it_writes_the_merged_model_and_says_what_was_done(afield, tmp_path, models):
    code, out, err = afield("merge", "ties", *INPUTS, "--out", "out.safetensors")
    assert (code, out) == (0, "merged model in out.safetensors\n")
    assert err == "ties of 2 experts; tensors: 7 merged, 1 kept (not floating point)\n"
    base, experts, _ = models
    merged = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(merged[k], v) for k, v in merge("ties", base, experts).items())


def test_settings_and_scale_are_taken_and_kept_in_the_file(afield, tmp_path):
    words = ("--set", "density=0.5", "--scale", "0.25", "--out", "out.safetensors")
    assert afield("merge", "ties", *INPUTS, *words)[0] == 0
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        metadata = json.loads(file.metadata()["afield"])
    assert (metadata["params"], metadata["scale"]) == ({"density": 0.5}, 0.25)


def test_the_scale_is_the_usual_one_of_the_merge(afield, tmp_path, models):
    assert afield("merge", "task_arithmetic", *INPUTS, "--out", "out.safetensors")[0] == 0
    base, experts, _ = models
    expected = merge("task_arithmetic", base, experts, scale=0.3)
    merged = load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(merged[name], value) for name, value in expected.items())


def test_a_dry_run_says_what_would_happen_to_each_tensor_and_writes_nothing(afield, tmp_path):
    before = sorted(tmp_path.iterdir())
    code, out, err = afield("merge", "score", *INPUTS, "--out", "out.safetensors", "--dry-run")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines()}
    for name, cells in {
        "a.weight": ("float32", "12 × 8", "merged"),
        "conv.weight": ("4 × 3 × 2 × 2", "averaged: not a matrix"),
        "logit_scale": ("scalar", "averaged: not a matrix"),
        "text_projection": ("6 × 6", "averaged: text_projection"),
        "ids": ("int64", "kept: not floating point"),
    }.items():
        assert all(word in rows[name] for word in cells)
    assert "3 merged" in err
    assert "nothing was written" in err
    assert sorted(tmp_path.iterdir()) == before


def test_only_force_replaces_a_file_and_a_dry_run_fails_where_the_merge_would(
    afield, refusal, tmp_path
):
    (tmp_path / "out.safetensors").write_text("old")
    words = ("merge", "average", *INPUTS, "--out", "out.safetensors")
    for more in ((), ("--dry-run",)):
        message = refusal(*words, *more)
        assert "exists already" in message
        assert "--force" in message
    assert afield(*words, "--force")[0] == 0
    assert load_file(tmp_path / "out.safetensors")


def test_force_does_not_replace_a_file_of_an_input(refusal, tmp_path, models):
    (tmp_path / "xd").mkdir()
    save_file(models[1][0], tmp_path / "xd" / "model.safetensors")
    words = ("merge", "score", "base.safetensors", "xd", "--out", "xd/model.safetensors", "--force")
    for more in ((), ("--dry-run",)):
        message = refusal(*words, *more)
        assert message.startswith("error: xd/model.safetensors: is one of the inputs")
    assert torch.equal(
        load_file(tmp_path / "xd/model.safetensors")["a.bias"], models[1][0]["a.bias"]
    )


def test_statistics_come_one_file_an_expert(afield, tmp_path, models):
    base, experts, _ = models
    for i in range(2):
        fisher = {k: torch.full_like(v, 1.0 + 8 * i) for k, v in base.items() if k != "ids"}
        save_file(fisher, tmp_path / f"f{i}.safetensors")
    given = ("--statistics", "f0.safetensors", "--statistics", "f1.safetensors")
    assert afield("merge", "fisher", *INPUTS, *given, "--out", "out.safetensors")[0] == 0
    merged = load_file(tmp_path / "out.safetensors")["a.weight"]
    expected = 0.1 * experts[0]["a.weight"] + 0.9 * experts[1]["a.weight"]
    torch.testing.assert_close(merged, expected)


def test_folders_go_in_and_out(afield, tmp_path, models):
    base, experts, _ = models
    sharded(tmp_path / "b", base)
    sharded(tmp_path / "e", experts[0], shards=1)
    assert afield("merge", "average", "b", "e", "--out", "o")[0] == 0
    assert (tmp_path / "o" / "model.safetensors.index.json").exists()


def test_doubts_are_warned_of(afield, caplog):
    words = ("base.safetensors", "base.safetensors", "e0.safetensors")
    code, _, _ = afield("merge", "average", *words, "--out", "out.safetensors")
    assert code == 0
    assert "base.safetensors: has the same weights as base.safetensors" in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tie", *INPUTS), "no merge 'tie'; did you mean 'ties'?"),
        (("ties", *INPUTS, "--set", "density"), "write NAME=VALUE"),
        (("ties", *INPUTS, "--set", "tau=1"), "ties has no setting 'tau'"),
        (("ties", *INPUTS, "--set", "density=much"), "ties.density='much'"),
        (("ties", *INPUTS, "--set", "density=2"), "density=2.0: must be a share from 0 to 1"),
        (("ties", *INPUTS, "--scale", "nan"), "scale=nan"),
        (("slerp", *INPUTS[:2]), "slerp takes exactly 2 experts, not 1"),
        (("fisher", *INPUTS), "fisher needs statistics"),
        (("ties", "base.safetensors", "no.safetensors"), "no.safetensors: no such file"),
        (("ties", "base.safetensors", "text.pt"), "text.pt: no readable weights"),
        (("ties", "whole.safetensors", "whole.safetensors"), "nothing to merge"),
    ],
)
def test_a_mistake_is_one_line(refusal, tmp_path, words, message):
    save_file({"ids": torch.arange(3)}, tmp_path / "whole.safetensors")
    (tmp_path / "text.pt").write_text("no weights")
    assert message in refusal("merge", *words, "--out", "out.safetensors")


def test_help_lists_all_merges_without_importing_torch():
    script = (
        "import sys; sys.argv = ['afield', 'merge', '--help']\n"
        "from afield.cli.app import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = done.stdout.partition("\nmerges ")[2]
    for name in registry.names("merges"):
        # Without the authors, and perhaps on two lines.
        summary = registry.summary("merges", name).partition(" (")[0]
        assert f" {name} " in listed
        assert summary in " ".join(listed.split())
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.fixture
def adapters(tmp_path):
    """A base, two adapters on it, and the models that they make."""
    (tmp_path / "peft").mkdir()
    return family(tmp_path / "peft", ranks=(2, 3))


def test_adapters_alone_give_an_adapter_and_say_what_it_keeps(afield, adapters):
    words = ("peft/lora1", "peft/lora2", "--out", "merged")
    code, out, err = afield("merge", "task_arithmetic", *words)
    assert code == 0
    assert out.startswith("merged adapter of rank 3 in merged; it keeps ")
    assert "% of the norm of the change (least in enc." in out
    assert err == "task_arithmetic of 2 experts; tensors: 2 merged\n"
    code, out, _ = afield("merge", "tsv", *words[:2], "--rank", "5", "--out", "whole")
    assert out == "merged adapter of rank 5 in whole; it keeps 100.0 % of the norm of the change\n"


def test_adapters_on_a_base_give_whole_weights(afield, tmp_path, adapters):
    words = ("peft/base.safetensors", "peft/lora1", "peft/lora2")
    code, out, _ = afield("merge", "average", *words, "--out", "out.safetensors")
    assert (code, out) == (0, "merged model in out.safetensors\n")
    code, out, _ = afield("merge", "tsv", *words, "--out", "x.safetensors", "--dry-run")
    assert "kept: no adapter changes it" in out


def test_an_adapter_is_made_of_a_fine_tuned_model(afield, adapters):
    words = ("peft/base.safetensors", "peft/model1.safetensors", "--out", "lora")
    code, out, _ = afield("merge-extract", *words, "--rank", "2")
    assert (code, out) == (
        0,
        "adapter of rank 2 in lora; it keeps 100.0 % of the norm of the change\n",
    )
    code, _, err = afield("merge-extract", *words)
    assert (code, err) == (2, "error: lora: exists already; give another name, or --force to "
                              "replace it\n")  # fmt: skip


def test_a_plan_repeats_a_merge(afield, tmp_path):
    choices = ("--expert-weights", "2,1", "--leave", "a.*", "--equalize", "norm")
    words = ("--out", "one.safetensors", "--save-plan", "plan.toml")
    code, _, err = afield("merge", "score", *INPUTS, *choices, *words)
    assert code == 0
    assert err.endswith("plan in plan.toml; repeat with `afield merge --plan plan.toml`\n")
    assert afield("merge", "--plan", "plan.toml", "--out", "two.safetensors")[0] == 0
    first, second = ((tmp_path / f"{n}.safetensors").read_bytes() for n in ("one", "two"))
    assert first == second


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give MERGE BASE EXPERT …, or --plan FILE; see `afield merge --help`"),
        (("ties", "base.safetensors"), "no experts; give the models that were fine-tuned from"),
        (("ties", *INPUTS, "--expert-weights", "a,b"), "--expert-weights a,b: give numbers"),
        (("ties", *INPUTS, "--expert-weights", "1"), "1 weights for 2 experts; give one for each"),
        (("ties", *INPUTS, "--expert-weights", "0,0"), "at least 0, and not all 0"),
        (("ties", *INPUTS, "--equalize", "x"), "equalize=x: give norm, or leave it out"),
        (("ties", *INPUTS, "--dtype", "int8"), "dtype=int8: give one of float32, float16"),
        (("ties", *INPUTS, "--shards", "many"), "shards=many: give a size such as 5GB"),
        (("ties", *INPUTS, "--leave", "z*"), "z*: matches no tensor of base.safetensors"),
        (("ties", *INPUTS, "--rank", "4"), "not an adapter of PEFT, but the result is to be one"),
        (("ties", *INPUTS, "--space", "core"), "the core space needs adapters"),
        (("ties", *INPUTS, "--space", "x"), "space=x: give one of auto, full, core"),
        (("--plan", "no.toml"), "no.toml: not readable; give a plan in TOML or YAML"),
        (("ties", "--plan", "no.toml"), "--plan has all choices of a merge"),
    ],
)
def test_choices_that_cannot_be_are_one_line(afield, words, message):
    code, _, err = afield("merge", *words, "--out", "out.safetensors")
    assert code == 2
    assert message in " ".join(err.split())


def test_experts_are_compared_before_merging(afield, tmp_path):
    code, out, err = afield("merge-inspect", *INPUTS, "--tensors", "1", "--out", "look.svg")
    assert code == 0
    assert out.splitlines()[0].split() == ["expert", "norm", "of", "base", "of", "shortest"]
    assert "e0.safetensors  e1.safetensors" in out
    assert "of signs agree (50% by chance)" in out
    assert err.endswith("numbers in look.csv, look.experts.csv, look.tensors.csv\n")
    assert (tmp_path / "look.svg").exists()
    code, _, err = afield("merge-inspect", *INPUTS, "--out", "look.gif")
    assert (code, "look.gif" in err) == (2, True)
