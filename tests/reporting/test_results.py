"""Records as benchmarks; what tables make of them is tested with tables."""

from dataclasses import replace

from afield.experiments.record import Run
from afield.reporting.results import (
    chosen_settings,
    common_settings,
    group_records,
    row_label,
    sees_target_samples,
)
from tests.stores import DOMAINS, benchmark_records, held_out, record


def test_records_are_grouped_by_dataset_and_by_how_many_domains_are_held_out():
    found = group_records([*benchmark_records([[0.5] * 3]), held_out("erm", [0.5, 0.6])])
    assert [(each.name, each.many_held_out) for each in found] == [
        ("things", False),
        ("many", True),
    ]
    assert found[1].title == "many, 2 domains held out, 2 validating"
    assert list(found[0].domains) == list(DOMAINS)


def test_bases_and_experts_are_no_rows():
    rows = [record("art", [0.5], role=role) for role in ("", "base", "expert")]
    (found,) = group_records(rows)
    assert found.methods == {"erm": [rows[0]]}


def test_every_trial_and_domain_has_its_pick_or_none():
    (found,) = group_records(benchmark_records([[0.5, 0.6, 0.7], [0.1, 0.2, 0.3]])[:5])
    picks = found.picks("sources")["erm"]
    accuracies = {
        (trial, domain): pick and pick.accuracy
        for trial, own in picks.items()
        for domain, pick in own.items()
    }
    assert accuracies[0, "art"] == 0.5
    assert accuracies[1, "photo"] == 0.2
    assert accuracies[1, "sketch"] is None


def test_a_label_has_what_was_chosen_by_hand_unless_all_share_it():
    runs = [
        record("art", [0.5], method="vrex", given={"vrex.penalty": 2.0}, backbone="small:mlp").run,
        record("art", [0.5], backbone="small:mlp").run,
    ]
    common = common_settings(runs)
    assert common == {"backbone", "steps"}
    assert [row_label(run, exclude=common) for run in runs] == ["vrex penalty=2.0", "erm"]
    assert chosen_settings(runs[1]) == {"backbone": "small:mlp", "steps": 10}


def test_rows_are_labelled_by_what_was_chosen_by_hand():
    usual = ("backbone", "steps")
    assert row_label(Run("d", "vrex", ("a",)), exclude=usual) == "vrex"
    chosen = Run("d", "vrex", ("a",), given={"vrex.penalty": 3.0, "lr": 0.1}, average="ema")
    assert row_label(chosen, exclude=usual) == "vrex + ema penalty=3.0 lr=0.1"
    assert row_label(chosen, exclude=[*usual, "lr"]) == "vrex + ema penalty=3.0"


def test_a_file_of_weights_is_told_by_its_name_and_contents():
    given = {"weights": "/far/away/net.safetensors"}
    run = Run("d", "erm", ("a",), given=given, weights=given["weights"], start="123456789a")
    assert row_label(run, exclude=("backbone", "steps")) == "erm weights=net.safetensors [123456]"


def test_only_runs_that_leave_one_domain_out_test_on_all_domains():
    twin = record("art", [0.5])
    twin = replace(twin, run=replace(twin.run, sources=twin.run.sources[:1]))
    assert len(twin.unseen) == 2
    (found,) = group_records([twin])
    assert list(found.domains) == []
    (found,) = group_records([twin, record("art", [0.5])])
    assert list(found.domains) == list(DOMAINS)


def test_rows_whose_models_see_unlabelled_target_samples_are_known():
    labels = ("arm", "mtl ema=0.5", "erm + t3a", "erm + swa", "mixstyle", "average", "base")
    assert [name for name in labels if sees_target_samples(name)] == [
        "arm",
        "mtl ema=0.5",
        "erm + t3a",
    ]


def test_one_domain_is_held_out_and_several_are():
    titles = [group_records([held_out("erm", [0.5] * n)])[0].title for n in (1, 2)]
    assert [title.partition(" held")[0] for title in titles] == [
        "many, 1 domain",
        "many, 2 domains",
    ]
