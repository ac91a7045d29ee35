"""The runs of a benchmark of merges: how many, from what, and nothing of the target in them."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from afield import registry
from afield.data.lookup import find_dataset
from afield.errors import AfieldError, IncompatibleMethodError, SpecError, UnknownNameError
from afield.hyperparameters import defaults
from afield.networks.backbones.clip import CLIP
from afield.runs.row import MERGE_BASELINES, Row
from afield.runs.run import Run
from afield.studies.benchmark import make_benchmark
from tests.files import tree
from tests.protocols import leave_one_out, merging_runs

SPIRALS = find_dataset("spirals")
QUICK = {"steps": 20}


def runs_of(*merges, settings=QUICK, **options) -> list[Run]:
    return merging_runs(SPIRALS, merges, trials=options.pop("trials", 1), settings=settings,
                        **options)  # fmt: skip


def of_role(runs: list[Run], role: str) -> list[Run]:
    return [run for run in runs if run.role == role]


def targets(run: Run) -> tuple[str, ...]:
    return SPIRALS.without(*run.sources)


def arrays(path, count: int):
    """So many domains of a few numbers."""
    y = np.tile([0, 1], 6 * count)
    domain = np.repeat([f"d{i}" for i in range(count)], 12)
    np.savez(path, X=np.random.default_rng(0).normal(size=(len(y), 2)), y=y, domain=domain)
    return find_dataset(path)


def test_every_target_has_a_base_experts_one_of_its_own_and_what_is_merged():
    runs = runs_of("score", "ties", trials=2)
    counted = Counter((run.trial, run.role, run.method) for run in runs)
    for trial in (0, 1):
        assert counted[trial, "base", "erm"] == 4
        # Three sources and the target itself, from each target's base.
        assert counted[trial, "expert", "erm"] == 16
        for name in (*MERGE_BASELINES, "score", "ties"):
            assert counted[trial, "merged", name] == 4
    assert len(runs) == len({run.key for run in runs}) == 2 * (4 + 16 + 6 * 4)


def test_what_a_run_starts_from_comes_before_it():
    runs = runs_of("score", trials=2)
    for trial in (0, 1):
        done: set[str] = set()
        stages = []
        for run in (run for run in runs if run.trial == trial):
            stages.append(run.order)
            assert {*run.experts, *filter(None, [run.base])} <= done
            done.add(run.key)
        assert stages == sorted(stages)
    assert {run.role: run.order for run in runs} == {"base": 0, "expert": 1, "merged": 2}


def test_nothing_of_the_target_is_in_a_base_or_in_an_expert_that_is_merged():
    runs = runs_of("score")
    known = {run.key: run for run in runs}
    for run in of_role(runs, "merged"):
        (target,) = targets(run)
        assert target not in known[run.base].sources
        assert known[run.base].sources == run.sources
        sources = [known[key].sources for key in run.experts]
        if run.method == "target_expert":
            assert sources == [(target,)]
        else:
            assert sources == [(name,) for name in run.sources]
        for key in run.experts:
            assert known[key].base == run.base
            # The same splits, or a part that was trained on would be reported.
            assert known[key].trial == run.trial


def test_a_base_without_pretraining_is_warmed_up_for_a_fifth_of_the_steps():
    runs = runs_of("score", settings={"steps": 100})
    assert {run.steps for run in of_role(runs, "base")} == {20}
    assert {run.steps for run in of_role(runs, "expert")} == {100}
    assert not any(run.freeze_head for run in runs)
    assert {run.steps for run in of_role(runs_of("score", base_steps=7), "base")} == {7}
    assert {r.steps for r in of_role(runs_of("score", settings={"steps": 1}), "base")} == {1}


def test_steps_of_the_warm_up_are_a_row_of_their_own():
    usual, other = (of_role(runs_of("score", base_steps=n), "merged") for n in (None, 9))
    assert not {run.key for run in usual} & {run.key for run in other}
    assert {run.given.get("base_steps") for run in usual} == {None}
    assert {run.given["base_steps"] for run in other} == {9}
    asked = of_role(runs_of("score", base_steps=4), "merged")
    assert [(run.key, run.given) for run in asked] == [(run.key, run.given) for run in usual]


@pytest.mark.slow
def test_a_pretrained_network_starts_from_a_fitted_head_that_stays(tmp_path):
    dataset = find_dataset(tree(tmp_path / "own", domains=("art", "photo", "sketch")))
    settings = {"backbone": "timm:resnet18", "weights": "hub", "steps": 5}
    runs = merging_runs(dataset, ["score"], trials=1, settings=settings)
    bases = of_role(runs, "base")
    assert {(run.method, run.steps, run.every) for run in bases} == {("linear_probe", 1, 1)}
    assert {run.sources for run in bases} == {dataset.without(name) for name in dataset.domains}
    assert all(run.freeze_head for run in runs if run.role != "base")
    assert not any(run.freeze_head for run in bases)
    # The head is fitted once: there is nothing to warm up.
    same = merging_runs(dataset, ["score"], trials=1, settings=settings, base_steps=3)
    assert same == runs


@pytest.mark.slow
def test_the_experts_of_a_clip_are_the_same_for_all_targets(tmp_path):
    pytest.importorskip("open_clip")
    dataset = find_dataset(tree(tmp_path / "own", domains=("art", "photo", "sketch")))
    settings = {"backbone": "clip:ViT-B-32/openai", "steps": 5}
    runs = merging_runs(dataset, ["score"], trials=2, settings=settings)
    counted = Counter((run.trial, run.role) for run in runs)
    domains = len(dataset.domains)
    for trial in (0, 1):
        assert counted[trial, "base"] == 1
        assert counted[trial, "expert"] == domains
        assert counted[trial, "merged"] == domains * (len(MERGE_BASELINES) + 1)
    (base,) = [run for run in of_role(runs, "base") if run.trial == 0]
    assert base.method == "linear_probe"
    for run in of_role(runs, "expert"):
        assert run.freeze_head
        settings = CLIP.fine_tuning_settings
        assert {name: getattr(run, name) for name in settings} == settings
    bounds = {run.experts[0] for run in runs if run.method == "target_expert"}
    others = {key for run in runs if run.method == "score" for key in run.experts}
    assert bounds == others


def test_draws_are_of_the_merges_alone():
    runs = runs_of("score", draws=3)
    counted = Counter(run.method for run in of_role(runs, "merged"))
    assert counted == {"score": 12, **dict.fromkeys(MERGE_BASELINES, 4)}
    assert len(of_role(runs, "expert")) == 16
    assert {run.draw for run in runs if run.role != "merged"} == {0}
    taus = {run.draw: run.params["tau"] for run in runs if run.method == "score"}
    assert taus[0] == 1.96
    assert len(set(taus.values())) == 3
    assert len({run.experts for run in runs if run.method == "score"}) == 4


def test_several_methods_make_one_expert_each_on_all_sources():
    runs = runs_of("score", expert_method=("erm", "vrex"))
    known = {run.key: run for run in runs}
    for run in of_role(runs, "merged"):
        experts = [known[key] for key in run.experts]
        if run.method == "target_expert":
            assert [(e.method, e.sources) for e in experts] == [("erm", targets(run))]
        else:
            assert [e.method for e in experts] == ["erm", "vrex"]
            assert {e.sources for e in experts} == {run.sources}
        assert run.given["experts"] == "erm+vrex"


def test_one_method_makes_all_experts_and_names_the_rows():
    runs = runs_of("score", expert_method=("arith",))
    assert {run.method for run in of_role(runs, "expert")} == {"arith"}
    assert {run.given["experts"] for run in of_role(runs, "merged")} == {"arith"}
    plain = of_role(runs_of("score"), "merged")
    assert all("experts" not in run.given for run in plain)
    assert not {run.key for run in plain} & {run.key for run in runs}


def test_settings_of_every_expert_label_the_rows():
    """Also those of the second method: two benchmarks must not share a row."""
    first, second = (
        runs_of("score", expert_method=("erm", "vrex"), settings={**QUICK, "vrex.penalty": p})
        for p in (1.0, 100.0)
    )
    labels = [
        {Row.of(run).label for run in runs if run.method == "score"} for runs in (first, second)
    ]
    assert not labels[0] & labels[1]
    chosen = {"steps": 20, "experts": "erm+vrex", "vrex penalty": 100.0}
    assert [run.given for run in second if run.method == "logit_ensemble"] == 4 * [chosen]


def test_the_expert_of_the_target_is_of_a_method_that_can_do_with_one_domain():
    """In whatever order the methods are named; mldg takes pairs of domains."""
    for methods in (("mldg", "vrex"), ("vrex", "mldg")):
        runs = runs_of("score", expert_method=methods)
        experts = {run.method for run in of_role(runs, "expert") if len(run.sources) == 1}
        assert experts == {"vrex"}
    with pytest.raises(IncompatibleMethodError, match="mldg needs 2 or more source domains"):
        runs_of("score", expert_method=("mldg",))


@pytest.mark.parametrize(
    ("domains", "methods", "fits"),
    [
        (3, ("erm",), True),
        (4, ("erm",), False),
        (4, ("erm", "vrex"), True),
        (3, ("erm", "vrex"), True),
        # Three experts, though only two sources are left.
        (3, ("erm", "vrex", "groupdro"), False),
    ],
)
def test_slerp_takes_two_experts(tmp_path, domains, methods, fits):
    dataset = arrays(tmp_path / "own.npz", domains)
    if fits:
        runs = merging_runs(dataset, ["slerp"], trials=1, expert_method=methods, settings=QUICK)
        assert {len(run.experts) for run in runs if run.method == "slerp"} == {2}
    else:
        with pytest.raises(
            SpecError, match=r"slerp merges 2 experts, .* use a dataset of 3 domains"
        ):
            merging_runs(dataset, ["slerp"], trials=1, expert_method=methods, settings=QUICK)


@pytest.mark.parametrize("name", ["fisher", "regmean"])
def test_merges_that_need_statistics_are_refused_with_what_to_do_instead(name):
    with pytest.raises(SpecError, match=rf"{name} needs statistics .*afield merge {name}") as error:
        runs_of("score", name)
    assert "\n" not in str(error.value)


def test_all_merges_are_those_that_fit(tmp_path):
    every = set(registry.names("merges"))
    result = {run.method for run in make_benchmark("spirals", merges=["all"], trials=1).runs()} - {
        "erm"
    }
    assert result == (every - {"fisher", "regmean", "slerp"}) | {*MERGE_BASELINES}
    arrays(tmp_path / "own.npz", 3)
    result = {
        run.method for run in make_benchmark(tmp_path / "own.npz", merges=["all"], trials=1).runs()
    } - {"erm"}
    assert result == (every - {"fisher", "regmean"}) | {*MERGE_BASELINES}


def test_two_domains_are_too_few(tmp_path):
    dataset = arrays(tmp_path / "own.npz", 2)
    with pytest.raises(SpecError, match="own has 2 domains: merging needs three"):
        merging_runs(dataset, ["score"])


@pytest.mark.parametrize("name", MERGE_BASELINES)
def test_what_is_compared_anyway_is_no_merge(name):
    with pytest.raises(UnknownNameError, match=f"{name} is compared with every merge anyway"):
        runs_of("score", name)


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ({"merges": ["scores"]}, UnknownNameError, "did you mean 'score'"),
        ({"expert_method": ["ermm"]}, UnknownNameError, "did you mean 'erm'"),
        ({"expert_method": []}, SpecError, "no method trains the experts"),
        ({"settings": {"score.tua": 1}}, SpecError, "did you mean 'tau'"),
        ({"settings": {"scor.tau": 1}}, UnknownNameError, "did you mean 'score'"),
        ({"settings": {"ties.density": 0.5}}, UnknownNameError, "no 'ties' in this benchmark"),
        ({"settings": {"base.steps": 3}}, UnknownNameError, "no 'base' in this benchmark"),
        ({"settings": {"score.tau": "much"}}, SpecError, r"score\.tau='much'"),
        ({"settings": {"score.keep": "half"}}, AfieldError, "keep"),
        ({"settings": {"score.scale": "far"}}, SpecError, r"score\.scale=far: not a finite"),
        ({"settings": {"score.scale": "nan"}}, SpecError, r"score\.scale=nan: not a finite"),
        ({"settings": {"score.scale": None}}, SpecError, r"score\.scale=None: not a finite"),
        ({"merges": ["ties"], "settings": {"ties.density": 2}}, SpecError, r"^ties\.density=2"),
        ({"settings": {"steps": 0}}, SpecError, "steps=0: must be above 0"),
        ({"trials": 0}, SpecError, "trials=0: at least one is needed"),
        ({"draws": 0}, SpecError, "draws=0: at least one is needed"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line_before_anything_is_trained(asked, kind, message):
    with pytest.raises(kind, match=message) as error:
        merging_runs(SPIRALS, **{"merges": ["score"], "trials": 1, **asked})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({"score.tau": 1}, "score tau=1.0"),
        ({"score.tau": "1"}, "score tau=1.0"),
        ({"score.scale": "0.5"}, "score scale=0.5"),
        ({"score.tau": 0.5, "score.scale": 2}, "score tau=0.5 scale=2.0"),
        # What would be chosen anyway.
        ({"score.tau": 1.96, "score.scale": 1}, "score"),
    ],
)
def test_settings_of_a_merge_label_its_row_and_change_its_key_alone(settings, row):
    usual, chosen = runs_of("score", "ties"), runs_of("score", "ties", settings=QUICK | settings)
    rows = {
        Row.of(run).without(("backbone", "steps")).label for run in chosen if run.method == "score"
    }
    assert rows == {row}
    for before, after in zip(usual, chosen, strict=True):
        same = before.method != "score" or row == "score"
        assert (before.key == after.key) == same


@pytest.mark.parametrize("name", sorted({*registry.names("merges")} - {"fisher", "regmean"}))
def test_settings_are_tried_without_a_word(name, tmp_path, caplog):
    """On two little matrices, whose peculiarities are nobody's business."""
    dataset = arrays(tmp_path / "own.npz", 3)
    usual = defaults(registry.find("merges", name))
    settings = {f"{name}.{key}": value for key, value in usual.items() if value is not None}
    merging_runs(dataset, [name], trials=1, settings=QUICK | settings)
    assert caplog.messages == []


def test_scale_is_among_the_settings_of_every_merge():
    for run in of_role(runs_of("score", "ties"), "merged"):
        assert run.params.get("scale") == (None if run.method in MERGE_BASELINES else 1.0)


def test_the_usual_scale_of_a_merge_is_its_default_and_labels_its_row():
    (run,) = {run.method: run for run in runs_of("magmax") if run.method == "magmax"}.values()
    assert (run.params["scale"], run.given["magmax.scale"]) == (0.5, 0.5)
    former = runs_of("magmax", settings=QUICK | {"magmax.scale": 1})
    assert not any("magmax.scale" in run.given for run in former)


def test_baselines_can_be_left_out_with_the_expert_of_the_target():
    runs = runs_of("score", baselines=False)
    assert {run.method for run in of_role(runs, "merged")} == {"score"}
    targets = [set(SPIRALS.domains) - set(run.sources) for run in of_role(runs, "merged")]
    experts = {key for run in of_role(runs, "merged") for key in run.experts}
    assert {run.key for run in of_role(runs, "expert")} == experts
    assert targets


def test_rules_that_need_further_runs_do_not_reach_merges():
    runs = runs_of("score", rules=("sources", "left-out-source", "target"))
    for run in of_role(runs, "merged"):
        assert run.rules == ("sources", "target")
    assert {r.rules for r in runs_of("score", rules=("target",)) if r.method == "score"} == {
        ("target",)
    }
    # The upper bound is of the target's probe part, which has to be read for that.
    bounds = [r for r in runs_of("score", rules=("sources",)) if r.method == "target_expert"]
    assert {run.rules for run in bounds} == {("sources", "target")}


def test_the_average_of_the_experts_is_not_that_of_the_base():
    runs = runs_of("score", average="ema", settings={**QUICK, "ema.decay": 0.9})
    assert {run.average for run in of_role(runs, "base")} == {"last"}
    assert {run.average for run in of_role(runs, "expert")} == {"ema"}
    assert {run.average_params["decay"] for run in of_role(runs, "expert")} == {0.9}


def test_no_key_of_a_run_of_merging_is_that_of_an_ordinary_one():
    """A base and an expert are trained like any other, but are rows of no table."""
    runs = runs_of("score", base_steps=20)
    plain = leave_one_out(SPIRALS, ["erm"], trials=1, settings=QUICK)
    assert not {run.key for run in runs} & {run.key for run in plain}
    assert replace(of_role(runs, "base")[0], role="").key in {run.key for run in plain}


def test_a_plan_is_the_same_twice_and_can_be_written():
    first, second = runs_of("score", "dare", draws=2), runs_of("score", "dare", draws=2)
    assert [run.key for run in first] == [run.key for run in second]
    for run in first:
        json.dumps(dict(run.params))
