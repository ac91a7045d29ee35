"""The comparison with DomainBed runs against a program with DomainBed's command line."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "domainbed.py"
# The options of domainbed/scripts/train.py in DomainBed, and what it writes at the end.
TRAIN = """
import argparse, json, os
parser = argparse.ArgumentParser(description="Domain generalization")
parser.add_argument("--data_dir", type=str)
parser.add_argument("--dataset", type=str, default="RotatedMNIST")
parser.add_argument("--algorithm", type=str, default="ERM")
parser.add_argument("--task", type=str, default="domain_generalization")
parser.add_argument("--hparams", type=str)
parser.add_argument("--hparams_seed", type=int, default=0)
parser.add_argument("--trial_seed", type=int, default=0)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=None)
parser.add_argument("--checkpoint_freq", type=int, default=None)
parser.add_argument("--test_envs", type=int, nargs="+", default=[0])
parser.add_argument("--output_dir", type=str, default="train_output")
parser.add_argument("--holdout_fraction", type=float, default=0.2)
parser.add_argument("--uda_holdout_fraction", type=float, default=0)
parser.add_argument("--skip_model_save", action="store_true")
parser.add_argument("--save_model_every_checkpoint", action="store_true")
args = parser.parse_args()
assert os.path.isdir(args.data_dir), args.data_dir
assert json.loads(args.hparams)["batch_size"] == 8
os.makedirs(args.output_dir, exist_ok=True)
if args.steps == 13:
    raise SystemExit(3)
sum(i * i for i in range(3_000_000))
memory = bytes(range(256)) * 400_000
print(args.algorithm, args.test_envs, os.environ["OMP_NUM_THREADS"])
open(os.path.join(args.output_dir, "done"), "w").write("done")
"""


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Call the script with a small case and a clone that has DomainBed's command line."""
    spec = importlib.util.spec_from_file_location("domainbed_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    small = module.Case("rotated_digits", "small:cnn", 8, 1e-3, 0)
    monkeypatch.setitem(module.CASES, "Digits", small)
    scripts = tmp_path / "DomainBed" / "domainbed" / "scripts"
    scripts.mkdir(parents=True)
    for folder in (scripts.parent, scripts):
        (folder / "__init__.py").touch()
    (scripts / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path))

    def call(*words):
        options = ["--dataset", "Digits", "--data", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["domainbed.py", *words, *options])
        module.main()

    return call


@pytest.mark.slow
def test_both_are_run_and_their_costs_are_printed(compare, capsys):
    compare("DomainBed", "--steps", "4", "--every", "2")
    theirs, ours, ratio = capsys.readouterr().out.splitlines()
    assert theirs.startswith("DomainBed ")
    assert ours.startswith("afield ")
    # A short-lived child of an import may be seen too, on a busy machine.
    assert all(re.search(r" [1-9]\d* processes ", line) for line in (theirs, ours))
    assert ratio.startswith("DomainBed over afield: CPU time 0.")


@pytest.mark.slow
def test_a_run_that_fails_names_its_log(compare):
    with pytest.raises(SystemExit, match=r"ended with status 3; see .*domainbed-benchmark\.log"):
        compare("DomainBed", "--steps", "13", "--every", "13")


def test_a_folder_that_is_no_clone_is_refused(compare, capsys):
    with pytest.raises(SystemExit):
        compare(".")
    assert "no domainbed/scripts/train.py; give a clone of DomainBed" in capsys.readouterr().err
