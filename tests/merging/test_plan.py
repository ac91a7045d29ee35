"""Plans say all of a merge, repeat it byte for byte, and are read from mergekit's files as well."""

import json

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from afield.errors import AfieldError, MergeError, SpecError
from afield.files import parse_size
from afield.merging.files import FileMerge, Override
from afield.merging.plan import MergePlan, read_plan, save_plan
from tests.merging.families import sharded, written


@pytest.fixture
def paths(tmp_path):
    return written(tmp_path)[2]


@pytest.fixture
def states(tmp_path, paths):
    return [load_file(path) for path in paths]


def write(plan, out):
    plan.file_merge().write(out)
    return load_file(out)


def plan_of(paths, **choices):
    return MergePlan(choices.pop("merge", "average"), tuple(paths[1:]), base=paths[0], **choices)


def test_a_saved_plan_repeats_a_merge_to_the_byte(tmp_path, paths):
    plan = plan_of(
        paths,
        merge="ties",
        settings={"density": 0.3},
        scale=0.5,
        weights=(2.0, 1.0, 1.0),
        overrides=(Override("b.*", "average"), Override("a.bias", "base")),
        equalize="norm",
        dtype="bfloat16",
    )
    write(plan, tmp_path / "one.safetensors")
    (tmp_path / "plans").mkdir()
    save_plan(plan, tmp_path / "plans" / "p.toml")
    again = read_plan(tmp_path / "plans" / "p.toml")
    write(again, tmp_path / "two.safetensors")
    first, second = ((tmp_path / f"{n}.safetensors").read_bytes() for n in ("one", "two"))
    assert first == second
    with safe_open(tmp_path / "one.safetensors", "pt") as file:
        made = json.loads(file.metadata()["afield"])
    assert made["weights"] == [2.0, 1.0, 1.0]
    assert (made["equalize"], made["dtype"]) == ("norm", "bfloat16")
    assert made["overrides"] == [
        {"tensors": "b.*", "how": "average"},
        {"tensors": "a.bias", "how": "base"},
    ]
    with pytest.raises(SpecError, match="exists already"):
        save_plan(plan, tmp_path / "plans" / "p.toml")


def test_weights_make_a_weighted_mean(tmp_path, paths, states):
    found = write(plan_of(paths, weights=(2.0, 1.0, 1.0)), tmp_path / "o.safetensors")
    _, first, second, third = (state["a.weight"] for state in states)
    torch.testing.assert_close(found["a.weight"], (2 * first + second + third) / 4)


def test_overrides_merge_some_tensors_in_another_way(tmp_path, paths, states):
    overrides = (
        Override("a.bias", "base"),
        Override("a.*", "task_arithmetic", scale=0.1),
        Override("conv*", scale=0.5),
    )
    found = write(plan_of(paths, overrides=overrides), tmp_path / "o.safetensors")
    base, *experts = states
    change = {n: torch.stack([e[n] - base[n] for e in experts]) for n in base if n != "ids"}
    torch.testing.assert_close(found["a.bias"], base["a.bias"])
    torch.testing.assert_close(
        found["a.weight"], base["a.weight"] + 0.1 * change["a.weight"].sum(0)
    )
    half = base["conv.weight"] + 0.5 * change["conv.weight"].mean(0)
    torch.testing.assert_close(found["conv.weight"], half)
    torch.testing.assert_close(found["b.weight"], base["b.weight"] + change["b.weight"].mean(0))
    with pytest.raises(MergeError, match=r"nothing.\*: matches no tensor"):
        write(plan_of(paths, overrides=(Override("nothing.*"),)), tmp_path / "p.safetensors")


def test_tensors_that_are_left_may_have_other_shapes(tmp_path, paths, states):
    for path, state in zip(paths[1:], states[1:], strict=True):
        save_file(state | {"a.bias": torch.ones(77)}, path)
    plan = plan_of(paths, overrides=(Override("a.bias", "base"),))
    found = write(plan, tmp_path / "o.safetensors")
    assert torch.equal(found["a.bias"], states[0]["a.bias"])


def test_equalized_experts_have_the_length_of_the_shortest(tmp_path, paths, states):
    base = states[0]
    changes = [{n: e[n] - base[n] for n in base if n != "ids"} for e in states[1:]]
    long = {n: base[n] + 5 * changes[0][n] for n in changes[0]} | {"ids": base["ids"]}
    save_file(long, paths[1])
    changes[0] = {n: 5 * change for n, change in changes[0].items()}
    norms = [torch.cat([c.flatten() for c in each.values()]).norm() for each in changes]
    found = write(
        plan_of(paths, merge="task_arithmetic", equalize="norm"), tmp_path / "o.safetensors"
    )
    shortened = sum(c["a.weight"] * min(norms) / n for c, n in zip(changes, norms, strict=True))
    torch.testing.assert_close(found["a.weight"], base["a.weight"] + 0.3 * shortened)


def test_the_type_and_the_shards_of_the_result_can_be_chosen(tmp_path, paths):
    whole = write(plan_of(paths), tmp_path / "o.safetensors")
    plan_of(paths, dtype="float16", shards="300B").file_merge().write(tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    found = {}
    for file in sorted((tmp_path / "out").glob("*.safetensors")):
        found |= load_file(file)
    assert {tensor.dtype for tensor in found.values()} == {torch.float16, torch.int64}
    assert all(torch.equal(found[n], whole[n].to(found[n].dtype)) for n in whole)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in found.values())


def test_a_merged_folder_says_how_it_was_made(tmp_path, paths, states):
    sharded(tmp_path / "base", states[0])
    (tmp_path / "base" / "config.json").write_text("{}")
    FileMerge("ties", tmp_path / "base", tuple(paths[1:])).write(tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "`ties` of 3 models" in text
    assert "| density | 0.2 |" in text
    assert "e1.safetensors" in text
    assert str(tmp_path) not in text


def test_models_of_data_parallel_have_the_same_names(tmp_path, paths, states):
    expected = write(plan_of(paths), tmp_path / "o.safetensors")
    wrapped = {f"module.{name}": tensor for name, tensor in states[1].items()}
    save_file(wrapped, tmp_path / "wrapped.safetensors")
    mixed = [paths[0], tmp_path / "wrapped.safetensors", *paths[2:]]
    assert write(plan_of(mixed), tmp_path / "p.safetensors").keys() == expected.keys()
    save_file({f"module.{n}": t for n, t in states[0].items()}, tmp_path / "base2.safetensors")
    found = write(plan_of([tmp_path / "base2.safetensors", *mixed[1:]]), tmp_path / "q.safetensors")
    assert all(torch.equal(found[f"module.{n}"], expected[n]) for n in expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("merge = 3\n[[experts]]\npath = 'a'", "merge is missing or not a text"),
        ("merge = 'ties'\nexperts = 3", "experts is not a list"),
        ("merge = 'ties'\nexperts = []", "no experts"),
        ("merg = 'ties'\n", "no setting 'merg'; did you mean 'merge'"),
        ("merge = 'ties'\nrank = 'x'\n[[experts]]\npath = 'a'", "rank is not a whole number"),
        ("merge = 'ties'\nspace = 'x'\n[[experts]]\npath = 'a'", "space=x: give one of auto"),
        ("merge = 'ties'\n[[experts]]\npath = 'a'\nweight = 'b'", "weight is not a finite"),
        ("merge = 'ties'\n[[experts]]\nfile = 'a'", "no setting 'file'"),
        ("merge = ", "not valid"),
        ("x = " + "[" * 5000, "not valid"),
    ],
)
def test_plans_that_make_no_sense_are_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(AfieldError, match=message) as refused:
        read_plan(tmp_path / "p.toml")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["5", "0GB", "x", "5TB", "-1GB"])
def test_sizes_have_a_number_and_a_unit(text):
    if text == "5":
        assert parse_size(text, option="shards") == 5
    else:
        with pytest.raises(SpecError, match="give a size such as 5GB"):
            parse_size(text, option="shards")


def mergekit(folder, method, paths, *, models=None, **content):
    if models is None:
        models = [{"model": path.name, "parameters": {"weight": 0.5}} for path in paths[1:]]
    usual = {"merge_method": method, "models": models, "base_model": paths[0].name}
    file = folder / "merge.yaml"
    file.write_text(yaml.safe_dump({k: v for k, v in (usual | content).items() if v is not False}))
    return read_plan(file)


def test_merges_of_mergekit_give_its_formulas(tmp_path, paths, states):
    base, *experts = (state["a.weight"] for state in states)
    total = sum(expert - base for expert in experts)
    sums = write(mergekit(tmp_path, "task_arithmetic", paths), tmp_path / "a.safetensors")
    torch.testing.assert_close(sums["a.weight"], base + 0.5 * total)
    weights = [
        {"model": path.name, "parameters": {"weight": w}}
        for path, w in zip(paths[1:], (0.2, 0.4, 1.4), strict=True)
    ]
    uneven = mergekit(
        tmp_path, "task_arithmetic", paths, models=weights, parameters={"lambda": 0.5}
    )
    found = write(uneven, tmp_path / "b.safetensors")["a.weight"]
    parts = zip((0.2, 0.4, 1.4), experts, strict=True)
    torch.testing.assert_close(found, base + 0.5 * sum(w * (e - base) for w, e in parts))
    linear = mergekit(tmp_path, "linear", paths, models=weights, dtype="bfloat16")
    found = write(linear, tmp_path / "c.safetensors")["a.weight"]
    mean = sum(w * e for w, e in zip((0.2, 0.4, 1.4), experts, strict=True)) / 2.0
    torch.testing.assert_close(found, mean.bfloat16())


def test_ties_dare_breadcrumbs_and_slerp_of_mergekit_become_plans(tmp_path, paths):
    ties = mergekit(tmp_path, "ties", paths, parameters={"density": 0.3})
    assert (ties.merge, ties.settings, ties.scale) == ("ties", {"density": 0.3}, 1.0)
    dare = mergekit(tmp_path, "dare_linear", paths, parameters={"density": 0.25})
    assert (dare.merge, dare.settings, dare.scale) == ("dare", {"drop": 0.75}, 0.5)
    crumbs = mergekit(tmp_path, "breadcrumbs", paths, parameters={"density": 0.9, "gamma": 0.02})
    assert crumbs.settings == {"low": 0.08, "high": 0.02}
    assert mergekit(tmp_path, "model_stock", paths).scale == 1.0
    two = [{"model": paths[0].name}, {"model": paths[1].name}]
    slerp = mergekit(tmp_path, "slerp", paths, models=two, parameters={"t": 0.3})
    assert (slerp.merge, slerp.settings) == ("slerp", {"t": 0.3})
    assert slerp.experts == (tmp_path / "base.safetensors", tmp_path / "e0.safetensors")
    whole = [{"sources": [{"model": path.name, "layer_range": [0, 12]} for path in paths[:2]]}]
    sliced = mergekit(tmp_path, "slerp", paths, parameters={"t": 0.3}, models=False, slices=whole)
    assert sliced.merge == "slerp"


@pytest.mark.parametrize(
    ("method", "content", "message"),
    [
        ("della", {}, "merge_method della is not read; known: linear"),
        ("ties", {"parameters": {"normalize": False}}, "normalize: true only"),
        ("ties", {"parameters": {"density": [0.1, 0.9]}}, "density differs between layers"),
        ("ties", {"tokenizer_source": "union"}, "only the tokenizer of the base"),
        ("ties", {"unknown": 1}, "no setting 'unknown'"),
        ("dare_linear", {"parameters": {"rescale": False}}, "rescale: true only"),
        ("slerp", {}, "slerp needs base_model and one other model"),
        ("linear", {"models": [{"model": "../nowhere"}]}, "nowhere is not there; download"),
        ("linear", {"models": []}, "give models"),
        ("linear", {"models": "x"}, "give models"),
    ],
)
def test_what_mergekit_has_and_we_do_not_is_refused(tmp_path, paths, method, content, message):
    with pytest.raises(AfieldError, match=message):
        mergekit(tmp_path, method, paths, **content)


def test_a_plan_of_adapters_has_no_whole_weights(tmp_path, paths):
    with pytest.raises(SpecError, match="not an adapter of PEFT, but the result is to be one"):
        plan_of(paths, rank=4).adapter_merge()
    with pytest.raises(SpecError, match="dtype: not for an adapter"):
        plan_of(paths, rank=4, dtype="float16").adapter_merge()
