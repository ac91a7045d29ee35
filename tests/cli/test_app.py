"""The command line as a user types it: the whole line on spirals, and one mistake of each kind."""

import io
import json
import logging
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import timm
from safetensors.torch import save_file

from afield.experiments.store import Store
from tests.files import pictures

QUICK = ("--steps", "10", "--workers", "1", "--trials", "2")


def test_bench_prints_one_table_and_the_place_of_the_records(afield, tmp_path):
    code, out, err = afield("bench", "spirals", "--methods", "erm,vrex", *QUICK)
    assert code == 0
    for word in ("turn0", "turn30", "mean", "worst", "erm", "vrex", "±", "sources:", "target:"):
        assert word in out
    assert "16 records in runs" in err
    assert len(list(Store(tmp_path / "runs"))) == 16


def test_a_second_bench_does_nothing_and_says_the_same(afield, tmp_path):
    first = afield("bench", "spirals", "--methods", "erm", *QUICK)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("record.json")}
    assert afield("bench", "spirals", "--methods", "erm", *QUICK)[:2] == first[:2]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("record.json")} == before


def test_all_rules_bring_the_twins_and_a_third_section(afield):
    code, out, err = afield("bench", "spirals", "--methods", "erm", "--rules", "all", *QUICK)
    assert code == 0
    assert "left-out-source:" in out
    assert f"{2 * (4 + 6)} records" in err


def test_draws_are_tried_and_counted(afield):
    _, _, err = afield("bench", "spirals", "--methods", "vrex", "--draws", "3", *QUICK)
    assert f"{2 * 4 * 3} records" in err


@pytest.mark.parametrize(
    ("format_", "sign"), [("md", "| method |"), ("latex", r"\toprule"), ("csv", "stderr")]
)
def test_formats_go_to_standard_output_alone(afield, format_, sign):
    code, out, _ = afield("bench", "spirals", "--methods", "erm,vrex", "--format", format_, *QUICK)
    assert code == 0
    assert sign in out
    assert "records" not in out


def test_csv_is_a_table_that_others_can_read(afield):
    afield("bench", "spirals", "--methods", "erm", *QUICK)
    _, out, _ = afield("table", "runs", "--format", "csv")
    frame = pd.read_csv(io.StringIO(out))
    assert set(frame["rule"]) == {"sources", "target"}
    columns = ["turn0", "turn10", "turn20", "turn30", "mean", "worst", "in-domain"]
    columns += ["calibration error", "accuracy at 90 %"]
    assert list(frame["domain"].unique()) == columns
    assert frame["accuracy"].between(0, 1).all()


def test_train_shows_what_a_known_domain_gives_where_a_method_can_use_it(afield):
    code, out, _ = afield("train", "spirals", "dmg", "--target", "turn10", "--steps", "5")
    assert code == 0
    assert out.count("probe, told") == 3


def test_train_shows_sources_and_the_unseen_domain_and_can_be_repeated(afield, tmp_path):
    code, out, err = afield(
        "train", "spirals", "vrex", "--target", "turn10", "--steps", "10", "--set", "vrex.penalty=2"
    )
    assert code == 0
    assert out.count("probe") == 3
    assert out.count("unseen") == 1
    (folder,) = (tmp_path / "runs").glob("vrex-*")
    assert folder.name in err
    code, again, _ = afield("train", "--like", folder, "--store", "other")
    assert (code, again) == (0, out)
    weights = "model.safetensors"
    other = tmp_path / "other" / folder.name / weights
    assert other.read_bytes() == (folder / weights).read_bytes()


def test_failures_are_shown_with_their_reason_and_the_exit_code_tells(afield):
    code, out, err = afield("bench", "spirals", "--methods", "erm", *QUICK, "--set", "lr=1e30")
    assert code == 1
    assert err.count("failed: erm") == 8
    assert "smaller lr" in err
    assert "0 records" in err
    assert out.strip() == ""


def test_own_pictures_in_folders(afield, tmp_path):
    pictures(tmp_path / "own")
    code, out, _ = afield("bench", "own", "--methods", "erm", *QUICK)
    assert code == 0
    assert "away office" in out


def test_own_arrays(afield, tmp_path):
    y = np.tile([0, 1], 20)
    np.savez(tmp_path / "own.npz", X=np.eye(2)[y], y=y, domain=np.repeat(["a", "b"], 20))
    code, out, _ = afield("bench", "own.npz", "--methods", "erm", *QUICK)
    assert code == 0
    assert "own: accuracy" in out


CLINICS = [f"Klinik {i} – Süd" if i % 3 else f"病院 {i}" for i in range(12)]


@pytest.fixture
def many(tmp_path):
    """Twelve domains of numbers, their names with spaces and of several scripts."""
    y = np.tile([0, 1], 6 * len(CLINICS))
    noise = np.random.default_rng(0).normal(size=(len(y), 2))
    np.savez(
        tmp_path / "many.npz", X=np.eye(2)[y] + 0.3 * noise, y=y, domain=np.repeat(CLINICS, 12)
    )


@pytest.mark.usefixtures("many")
def test_a_share_of_many_domains_is_held_out(afield, tmp_path):
    code, out, err = afield(
        "bench", "many", "--methods", "erm,vrex", "--hold-out", ".25", "--validate", ".1",
        "--domains-per-step", "2", *QUICK,
    )  # fmt: skip
    assert code == 0
    assert err.splitlines()[0] == (
        "4 runs with small:mlp, from random weights; 10 steps of 2 × 32 samples"
    )
    assert "many, 3 domains held out, 1 validating: accuracy" in out
    for word in ("validation:", "target:", "mean", "worst 10 %", "spread"):
        assert word in out
    assert not any(clinic in out for clinic in CLINICS)
    records = list(Store(tmp_path / "runs"))
    assert len(records) == 4
    for record in records:
        assert (len(record.run.sources), len(record.run.tested)) == (8, 3)
        assert record.run.domains_per_step == 2


@pytest.mark.usefixtures("many")
def test_every_number_of_domains_to_train_on_is_a_row(afield, tmp_path):
    words = ("bench", "many", "--methods", "erm", "--hold-out", ".25", *QUICK)
    code, out, err = afield(*words, "--train-on", "3, 5,all")
    assert code == 0
    assert err.startswith("6 runs with small:mlp")
    assert out.count("many, 3 domains held out, 1 validating: accuracy") == 1
    for row in ("erm domains=3", "erm domains=5", "erm domains=8"):
        assert sum(line.strip().startswith(row) for line in out.splitlines()) == 2
    assert "–" not in out
    records = list(Store(tmp_path / "runs"))
    assert sorted(len(record.run.sources) for record in records) == [3, 3, 5, 5, 8, 8]
    # All are those of a bench without numbers.
    code, _, err = afield(*words)
    assert code == 0
    assert "(2 of them in the store already)" in err
    assert len(list(Store(tmp_path / "runs"))) == 6
    code, out, _ = afield("table", "runs", "--format", "csv")
    assert code == 0
    frame = pd.read_csv(io.StringIO(out))
    for number in (3, 5, 8):
        own = frame[frame["method"] == f"erm domains={number}"]
        assert set(own["trials"]) == {2}
    code, _, _ = afield("export-domainbed", "runs", "out")
    assert code == 0
    assert len(list((tmp_path / "out").glob("*/results.jsonl"))) == 6


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_names_of_domains_with_spaces_in_any_script_are_in_every_table(afield):
    words = ("bench", "many", "--methods", "erm", "--steps", "2", "--trials", "1", "--workers", "1")
    for form, width in (("md", 200), ("latex", 200), ("csv", 200), ("console", 400)):
        code, out, _ = afield(*words, "--format", form, width=width)
        assert code == 0
        dash = "--" if form == "latex" else "–"
        assert all(clinic.replace("–", dash) in out for clinic in CLINICS), form


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("share", "rules", "sections"),
    [
        ((), "all", ("sources:", "left-out-source:", "target:")),
        (("--hold-out", ".25"), "all", ("validation:", "target:")),
        (("--hold-out", ".25", "--validate", "0"), "all", ("sources:", "target:")),
        (("--hold-out", ".25"), "validation,target", ("validation:", "target:")),
    ],
)
def test_all_rules_are_those_that_can_read_the_benchmark(afield, share, rules, sections):
    words = ("--methods", "erm", "--steps", "2", "--trials", "1", "--workers", "1")
    dataset = "many" if share else "spirals"
    code, out, err = afield("bench", dataset, *share, "--rules", rules, *words)
    assert code == 0
    assert "no table" not in err
    lines = [line.strip() for line in out.splitlines()]
    assert [line for line in lines if line.endswith(":")] == list(sections)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("words", "told", "chosen"),
    [
        (("--set", "balance=true"), "balance=True", {"balance": True}),
        (("--set", "limit=3"), "limit=3", {"limit": 3}),
        (("--domains-per-step", "5"), "domains_per_step=5", {"domains_per_step": 5}),
    ],
)
def test_settings_of_the_draws_reach_the_run_and_the_label(afield, tmp_path, words, told, chosen):
    plain = ("bench", "many", "--methods", "erm", "--steps", "2", "--trials", "1", "--workers", "1")
    held = ("--hold-out", ".25")
    assert afield(*plain, *held)[0] == 0
    assert afield(*plain, *held, *words)[0] == 0
    runs = [record.run for record in Store(tmp_path / "runs")]
    assert len(runs) == 2
    for name, value in chosen.items():
        assert {getattr(run, name) for run in runs} == {value, type(value)(0)}
    _, out, _ = afield("table", "runs")
    assert f"erm {told}" in out


def test_broken_pictures_stop_a_benchmark_unless_they_are_left_out(afield, tmp_path, caplog):
    (pictures(tmp_path / "own") / "home" / "dark" / "0.png").write_bytes(b"no picture")
    words = ("bench", "own", "--methods", "erm", "--set", "size=16", *QUICK)
    code, out, err = afield(*words)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert "home/dark/0.png" in err
    assert "use --skip-broken" in err
    assert not (tmp_path / "runs").exists()
    code, out, err = afield(*words, "--skip-broken")
    assert code == 0
    assert "own: 1 broken file(s) left out" in caplog.text
    assert {record.dropped for record in Store(tmp_path / "runs")} == {1}


@pytest.mark.slow
def test_the_line_before_a_benchmark_names_network_size_and_weights(afield, tmp_path):
    net = timm.create_model("test_resnet", num_classes=0)
    save_file(net.state_dict(), tmp_path / "mine.safetensors")
    pictures(tmp_path / "own")
    words = ("bench", "own", "--methods", "erm", "--steps", "2", "--trials", "1", "--workers", "1")
    network = ("--backbone", "timm:test_resnet", "--weights", "mine.safetensors")
    code, out, err = afield(*words, *network, "--set", "size=32")
    assert code == 0
    first = (
        "2 runs with timm:test_resnet at 32 px, from mine.safetensors; 2 steps of 1 × 16 samples"
    )
    assert err.splitlines()[0] == first
    assert first not in out


def test_none_is_random_weights_and_no_augmentation(afield, tmp_path):
    pictures(tmp_path / "own")
    network = ("--backbone", "timm:test_resnet", "--weights", "none", "--steps", "1")
    settings = ("--set", "size=32", "--set", "augment=none")
    code, _, _ = afield("train", "own", "erm", "--target", "home", *network, *settings)
    assert code == 0
    (record,) = Store(tmp_path / "runs")
    assert (record.run.weights, record.run.augment) == ("", "")


def test_embed_writes_a_dataset_that_bench_takes_with_or_without_its_suffix(afield, tmp_path):
    pictures(tmp_path / "own")
    network = ("--backbone", "timm:test_resnet", "--weights", "none", "--size", "32")
    code, out, err = afield("embed", "own", "--out", "emb", *network, "--threads", "1")
    assert (code, err) == (0, "")
    assert out == "features in emb.npz; now `afield bench emb.npz`\n"
    first = afield("bench", "emb", "--methods", "erm", *QUICK)
    assert first[0] == 0
    assert "away office" in first[1]
    second = afield("bench", "emb.npz", "--methods", "erm", *QUICK)
    assert second[:2] == first[:2]
    assert len(list(Store(tmp_path / "runs"))) == 4


def test_export_writes_what_domainbed_reads(afield, tmp_path):
    afield("bench", "spirals", "--methods", "erm", *QUICK)
    code, out, _ = afield("export-domainbed", "runs", "out", "--dataset", "RotatedMNIST")
    assert code == 0
    assert "8 runs" in out
    (first, *rest) = sorted((tmp_path / "out").iterdir())
    assert len(rest) == 7
    assert (first / "done").exists()
    line = json.loads((first / "results.jsonl").read_text().splitlines()[0])
    assert line["args"]["dataset"] == "RotatedMNIST"


def test_list_names_everything_with_a_line_on_each(afield):
    code, out, _ = afield("list")
    assert code == 0
    for word in ("methods", "averages", "datasets", "groupdro", "ema", "rotated_digits", "V-REx"):
        assert word in out
    assert "rotated_digits" not in afield("list", "methods")[1]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("vrex", ("penalty = 10.0", "LogUniform", "Differs from")),
        ("erm", ("settings: none",)),
        ("ema", ("decay = 0.999",)),
        ("rotated_digits", ("0deg, 15deg", "every image", "classes: 0, 1")),
    ],
)
def test_explain_tells_formula_settings_and_ranges(afield, name, told):
    code, out, _ = afield("explain", name)
    assert code == 0
    for words in told:
        assert words.lower() in out.lower()


MISTAKES = [
    (("bench", "rotated_digit"), "did you mean 'rotated_digits'"),
    (("bench", "no/such/folder"), "no file or folder no/such/folder"),
    (("bench", "spirals", "--methods", "ermm"), "did you mean 'erm'"),
    (("bench", "spirals", "--rules", "source"), "did you mean 'sources'"),
    (("bench", "spirals", "--average", "emma"), "did you mean 'ema'"),
    (("bench", "spirals", "--backbone", "small:cn"), "did you mean 'small:cnn'"),
    (("bench", "spirals", "--backbone", "small:cnn"), "use small:mlp"),
    (("bench", "spirals", "--format", "tex"), "did you mean 'latex'"),
    (("bench", "spirals", "--set", "steps"), "write name=value"),
    (("bench", "spirals", "--set", "stepz=3"), "did you mean 'steps'"),
    (("bench", "spirals", "--set", "steps=few"), "steps='few'"),
    (("bench", "spirals", "--set", "mldg.beta=1"), "no 'mldg' in this benchmark"),
    (("train", "spirals", "erm", "--target", "turn1"), "did you mean 'turn10'"),
    (("train", "spirals", "erm", "--set", "vrex.penalty=3"), "'vrex' is not in this run"),
    (("train", "spirals", "erm", "--threads", "100000"), "threads=100000"),
    (("train", "spirals", "erm", "--set", "every=0"), "every=0"),
    (("bench", ""), "no dataset and no file"),
    (("bench", "~nosuchuser/x"), "no file or folder"),
    (("bench", "spirals", "--rules", ","), "no rule is given"),
    (("train", "spirals"), "give a dataset and a method"),
    (("train", "--like", "nowhere"), "no record.json"),
    (("train", "--like", "nowhere", "--steps", "3"), "give no other setting"),
    (("table", "nowhere"), "no records there"),
    (("explain", "vrx"), "did you mean 'vrex'"),
    (("list", "method"), "did you mean 'methods'"),
    (("export-domainbed", "nowhere", "out"), "no records there"),
    (("bench", "spirals", "--weights", "no.pth"), "no.pth: cannot be read"),
    (("train", "spirals", "erm", "--weights", "no.pth"), "give hub, none or a file"),
    (("bench", "spirals", "--weights", "hub"), "omit --weights hub"),
    (("bench", "spirals", "--set", "augment=wild"), "'none', 'light' or 'full'"),
    (("bench", "spirals", "--set", "augment=light"), "pictures; use none"),
    (("bench", "spirals", "--set", "size=32"), "spirals has no pictures; leave it out"),
    (("bench", "spirals", "--set", "size=-1"), "size=-1"),
    (("bench", "spirals", "--set", "size=big"), "size='big'"),
    (("bench", "spirals", "--set", "balance=perhaps"), "balance='perhaps'"),
    (("bench", "spirals", "--set", "limit=-3"), "limit=-3"),
    (("bench", "spirals", "--set", "limit=some"), "limit='some'"),
    (("bench", "spirals", "--set", "domains_per_step=-1"), "domains_per_step=-1"),
    (("bench", "spirals", "--hold-out", ".01"), "none to test on"),
    (("bench", "spirals", "--hold-out", ".5", "--validate", ".5"), "none to train on"),
    (("bench", "spirals", "--train-on", "3"), "--train-on goes with --hold-out"),
    (("bench", "spirals", "--train-on", "all"), "--train-on goes with --hold-out"),
    (("bench", "spirals", "--hold-out", ".25", "--train-on", "0"), "cannot train on 0 domains"),
    (("bench", "spirals", "--hold-out", ".25", "--train-on", "1,4"), "cannot train on 4 domains"),
    (("bench", "spirals", "--hold-out", ".25", "--train-on", "2,few"), "--train-on few: write"),
    (("bench", "spirals", "--hold-out", ".25", "--train-on", "-1"), "--train-on -1: write"),
    (("bench", "spirals", "--hold-out", ".25", "--train-on", "1.5"), "--train-on 1.5: write"),
    (("bench", "spirals", "--rules", "validation"), "use --rules sources,left-out-source,target"),
    (("bench", "spirals", "--hold-out", ".25", "--validate", ".25", "--rules", "sources"),
     "use --rules validation,target"),
    (("bench", "spirals", "--hold-out", ".25", "--rules", "left-out-source"), "left-out-source"),
    (("bench", "spirals", "--rules", "all,source"), "did you mean 'sources'"),
    (("bench", "pacs"), "set AFIELD_DATA for another"),
    (("embed", "spirals", "--out", "emb"), "a dataset of pictures"),
    (("embed", "no/such", "--out", "emb"), "no file or folder no/such"),
    (("embed", "rotated_digits", "--out", "no/emb"), "make it first"),
    (("embed", "rotated_digits", "--out", "emb", "--weights", "no.pth"), "no.pth: no readable"),
    (("embed", "rotated_digits", "--out", "emb", "--backbone", "timm:resnet19"), "did you mean"),
    (("embed", "rotated_digits", "--out", "emb", "--threads", "100000"), "threads=100000"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES])
def test_a_mistake_is_one_clear_line_and_exit_code_2(afield, tmp_path, monkeypatch, words, told):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "data"))
    code, out, err = afield(*words)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert err.strip().startswith("error: ")
    assert told in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("bench", "spirals", "--hold-out", ".95"), "--hold-out"),
        (("bench", "spirals", "--validate", "-1"), "--validate"),
        (("bench", "spirals", "--domains-per-step", "0"), "--domains-per-step"),
        (("embed", "rotated_digits", "--out", "emb", "--size", "8"), "--size"),
        (("embed", "rotated_digits"), "--out"),
    ],
)
def test_a_value_out_of_range_is_told_with_the_option(afield, tmp_path, words, option):
    code, out, err = afield(*words)
    assert (code, out) == (2, "")
    assert option in err
    assert not list(tmp_path.iterdir())


def test_notes_are_whole_lines_on_standard_error(afield, tmp_path, monkeypatch):
    # Pytest's own handlers would keep the command line from adding its own.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    label = "a label " + 20 * "of many words "
    np.savez(tmp_path / "own.npz", X=np.eye(4), y=["b", label, "b", "b"], domain=list("aabb"))
    code, _, err = afield("train", "own.npz", "erm", "--steps", "1", width=80)
    assert code == 0
    note, place = err.splitlines()
    assert note == f"note: own: domain 'b' has no sample of class {label!r}"
    assert place.startswith("record and weights in runs")


def test_help_starts_fast_because_it_imports_no_torch():
    check = "import sys, afield.cli; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_every_command_has_a_help_text(afield):
    _, out, _ = afield("--help")
    for command in ("bench", "train", "embed", "data", "table", "list", "explain"):
        assert command in out
        code, told, _ = afield(command, "--help")
        assert code == 0
        assert "Usage" in told


@pytest.mark.slow
def test_ctrl_c_stops_at_once_and_nothing_is_left_running(tmp_path):
    command = [sys.executable, "-c", "from afield.cli.app import main; main()"]
    words = ["bench", "spirals", "--methods", "erm", "--steps", "1000000", "--workers", "2"]
    bench = subprocess.Popen(
        [*command, *words], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    begun = time.monotonic()
    while not list(tmp_path.glob("runs/*/lock")):
        assert time.monotonic() - begun < 60
        time.sleep(0.1)
    bench.send_signal(signal.SIGINT)
    # The pipes end only when every worker has let go of them; their runs would last for minutes.
    _, said = bench.communicate(timeout=20)
    assert bench.returncode == 130
    assert said.strip().splitlines()[-1] == "stopped; start it again to go on"


def test_a_store_that_cannot_be_written_is_one_line(afield, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    code, _, err = afield("bench", "spirals", "--methods", "erm", *QUICK, "--store", "file")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "cannot write to file" in err


def test_the_version_is_told(afield):
    code, out, _ = afield("--version")
    assert code == 0
    assert out.startswith("afield 0.")


def test_a_second_start_says_what_is_done_already(afield):
    words = ("bench", "spirals", "--methods", "erm", *QUICK)
    assert "already" not in afield(*words)[2]
    assert "(8 of them in the store already)" in afield(*words)[2]


def test_validating_domains_go_with_held_out_ones(afield):
    code, _, err = afield("bench", "spirals", "--validate", "0.2")
    assert code == 2
    assert err.startswith("error: --validate goes with --hold-out")
    assert len(err.splitlines()) == 1


def test_diagnose_writes_a_picture_and_its_numbers_and_says_what_they_mean(afield, tmp_path):
    afield("train", "spirals", "erm", "--target", "turn0", "--steps", "10")
    (folder,) = tmp_path.glob("runs/erm-*")
    code, out, err = afield(
        "diagnose", "agreement", folder, "--set", "samples=20", "--out", "a/b.svg"
    )
    assert code == 0
    assert out.startswith("mean cosine of gradients: ")
    assert "picture in a/b.svg, numbers in a/b.csv" in err
    assert (tmp_path / "a" / "b.svg").read_text().startswith("<?xml")
    assert len(pd.read_csv(tmp_path / "a" / "b.csv")) == 16


def test_a_finding_without_a_place_is_kept_in_the_store_and_shown_in_its_report(afield, tmp_path):
    afield("train", "spirals", "erm", "--target", "turn0", "--steps", "10")
    (folder,) = tmp_path.glob("runs/erm-*")
    code, out, err = afield("diagnose", "agreement", f"runs/{folder.name}", "--set", "samples=20")
    assert code == 0
    (picture,) = tmp_path.glob(f"runs/diagnostics/agreement-{folder.name}-*.png")
    kept = picture.relative_to(tmp_path)
    assert err == f"picture in {kept}, numbers in {kept.with_suffix('.csv')}\n"
    assert json.loads(picture.with_suffix(".json").read_text())["told"] == out.strip()
    assert afield("report")[0] == 0
    assert out.strip() in (tmp_path / "runs" / "report.html").read_text()


def test_a_finding_that_was_not_made_leaves_nothing(afield, tmp_path):
    assert afield("diagnose", "agreement", "nowhere")[0] == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("agrement", "runs"), "no 'agrement' in diagnostics; did you mean 'agreement'?"),
        (
            ("agreement", "nowhere"),
            "nowhere: no record.json there; give the folder of a finished run",
        ),
        (("agreement", "nowhere", "--set", "sampels=3"), "did you mean 'samples'?"),
        (("sensitivity", "nowhere"), "nowhere: no records there"),
        (
            ("agreement", "nowhere", "--out", "fig.jpg"),
            "fig.jpg: a picture is one of png, svg, pdf",
        ),
    ],
)
def test_mistakes_in_a_diagnosis_are_one_line(afield, words, told):
    code, _, err = afield("diagnose", *words)
    assert code == 2
    assert told in err
    assert err.count("\n") == 1


MERGED = ("--merges", "average,score", "--steps", "5", "--workers", "1", "--trials", "1")


@pytest.fixture
def three(tmp_path):
    """Three domains of numbers."""
    y = np.tile([0, 1], 30)
    x = np.eye(2)[y] + 0.3 * np.random.default_rng(0).normal(size=(len(y), 2))
    np.savez(tmp_path / "own.npz", X=x, y=y, domain=np.repeat(list("abc"), 20))


@pytest.mark.slow
@pytest.mark.usefixtures("three")
def test_merges_stand_in_one_table_with_methods_and_what_they_are_compared_with(afield, tmp_path):
    code, out, err = afield("bench", "own.npz", "--methods", "erm", *MERGED, "--format", "md")
    assert code == 0
    first = out.split("**own**")[1]
    rows = [line.split("|")[1].strip() for line in first.splitlines() if line.startswith("|")]
    compared = ["base", "best_expert", "logit_ensemble", "target_expert"]
    assert rows[2:] == ["erm", *compared, "average", "score"]
    assert f"{3 + 3 + 9 + 18} records in runs" in err
    again = afield("bench", "own.npz", "--methods", "erm", *MERGED, "--format", "md")
    assert again[:2] == (code, out)
    assert "33 of them in the store already" in again[2]
    shown = afield("table", "runs", "--format", "md")[1]
    assert sorted(shown.splitlines()) == sorted(out.splitlines())
    folder = next((tmp_path / "runs").glob("score-*"))
    code, _, err = afield("train", "--like", folder)
    assert code == 2
    assert f"{folder.name}: a merged model is not trained; bench with --merges makes it" in err
    assert len(err.splitlines()) == 1
    code, out, _ = afield("diagnose", "agreement", folder, "--set", "samples=10")
    assert code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("three")
def test_settings_of_merges_and_methods_of_experts_are_rows(afield):
    afield("bench", "own.npz", *MERGED)
    afield("bench", "own.npz", *MERGED, "--set", "score.scale=0.5", "--set", "score.tau=1")
    code, _, _ = afield("bench", "own.npz", *MERGED, "--expert-method", "erm,vrex",
                        "--base-steps", "2")  # fmt: skip
    assert code == 0
    _, out, _ = afield("table", "runs", "--format", "csv")
    rows = set(pd.read_csv(io.StringIO(out))["method"])
    assert {"score", "score tau=1.0 scale=0.5", "score base_steps=2 experts=erm+vrex"} <= rows


@pytest.mark.slow
@pytest.mark.usefixtures("three")
def test_merged_records_can_be_written_for_domainbed(afield, tmp_path):
    afield("bench", "own.npz", *MERGED)
    code, _, _ = afield("export-domainbed", "runs", "out")
    assert code == 0
    lines = [json.loads(p.read_text().splitlines()[0]) for p in tmp_path.glob("out/score-*/*l")]
    assert {line["args"]["algorithm"] for line in lines} == {"score"}


@pytest.mark.slow
@pytest.mark.usefixtures("three")
def test_the_setting_of_a_merge_has_a_curve(afield):
    for tau in ("1", "3"):
        afield("bench", "own.npz", *MERGED, "--set", f"score.tau={tau}")
    code, out, err = afield("diagnose", "sensitivity", "runs")
    assert (code, err.count("error")) == (0, 0)
    assert "score: best at tau=" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--merges", "scor"], "did you mean 'score'"),
        (["--merges", "base"], "base stands beside every merge already"),
        (["--merges", "fisher"], "fisher needs statistics of every expert"),
        (["--merges", "slerp"], "slerp merges 2 experts, but there are 3"),
        (["--merges", "score", "--hold-out", "0.5"], "leave --hold-out out"),
        (["--merges", "score", "--expert-method", "emr"], "did you mean 'erm'"),
        (["--merges", "score", "--expert-method", ","], "no method to make the experts"),
        (["--merges", "score", "--expert-method", "mldg"], "mldg takes 2 source domains"),
        (["--merges", "score", "--set", "score.tua=1"], "did you mean 'tau'"),
        (["--merges", "score", "--set", "scores.tau=1"], "did you mean 'score'"),
        (["--merges", "score", "--set", "score.scale=x"], "score.scale=x: not a finite number"),
        (["--methods", "erm", "--set", "lr_schedule=linear"], "write constant, cosine, or"),
        (["--methods", "erm", "--set", "clip_norm=-1"], "clip_norm=-1.0: must not be below 0"),
    ],
    ids=" ".join,
)
def test_a_mistake_with_merges_is_one_line(afield, tmp_path, words, told):
    code, out, err = afield("bench", "spirals", *words)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()
