"""Adapters are merged as the changes they make, in the space that they span where that is equal."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from afield import registry
from afield.errors import AfieldError, DataError, MergeError
from afield.hyperparameters import defaults
from afield.merging.adapter_files import AdapterMerge, extract_adapter
from afield.merging.adapters import Adapter, is_adapter
from afield.merging.core_space import rotates, span, truncate
from afield.merging.files import FileMerge
from afield.merging.scopes import LowRankDelta, needs_statistics, needs_validation
from tests.merging.adapters import (
    PREFIX,
    adapted,
    base_state,
    config,
    factors,
    family,
    normal,
    write_adapter,
)

MERGES = [
    name
    for name in registry.names("merges")
    if name != "slerp"
    and not needs_statistics(registry.find("merges", name))
    and not needs_validation(registry.find("merges", name))
]
ROTATING = ["average", "task_arithmetic", "model_stock", "tsv", "iso_c", "score"]


def relative(found, expected, base):
    """The largest difference of two results, relative to how far one moved from the base."""
    return max(
        float((found[name] - expected[name]).norm() / (expected[name] - base[name]).norm())
        for name in base
        if not torch.equal(expected[name], base[name])
    )


def merged(how, paths, out, **choices):
    FileMerge(how, paths[0], tuple(paths[1:]), **choices).write(out)
    return load_file(out)


@pytest.mark.parametrize("how", MERGES)
def test_merging_adapters_is_merging_the_models_that_they_make(tmp_path, how):
    base, adapters, models = family(tmp_path)
    expected = merged(how, [base, *models], tmp_path / "models.safetensors")
    found = merged(how, [base, *adapters], tmp_path / "adapters.safetensors")
    assert relative(found, expected, base_state()) < 1e-5


@pytest.mark.parametrize("how", ROTATING)
def test_merges_that_claim_it_give_the_same_in_the_core_space(tmp_path, how):
    params = {"center": "zero"} if how == "score" else {}
    base, adapters, _ = family(tmp_path)
    expected = merged(
        how, [base, *adapters], tmp_path / "f.safetensors", space="full", params=params
    )
    found = merged(how, [base, *adapters], tmp_path / "c.safetensors", space="core", params=params)
    assert relative(found, expected, base_state()) < 1e-5
    with safe_open(tmp_path / "c.safetensors", "pt") as file:
        assert json.loads(file.metadata()["afield"])["space"] == "core"


# `cart` keeps a share of the rank, which is 1 for all of these small matrices.
@pytest.mark.parametrize("how", [name for name in MERGES if name not in (*ROTATING, "cart")])
def test_merges_that_differ_in_the_core_space_do_not_claim_it(tmp_path, how):
    base, adapters, _ = family(tmp_path, ranks=(4, 4))
    settings = defaults(registry.find("merges", how))
    assert not rotates(how, settings)
    full = merged(how, [base, *adapters], tmp_path / "f.safetensors", space="full")
    core = merged(how, [base, *adapters], tmp_path / "c.safetensors", space="core")
    assert relative(core, full, base_state()) > 1e-3


def test_changes_are_their_cores_without_loss():
    deltas = [LowRankDelta(normal(r, 30, r), normal(r + 9, r, 20)) for r in (1, 5, 3)]
    left, cores, right = span(deltas, dtype=torch.float64)
    assert cores.shape == (3, 15, 15)
    for delta, core in zip(deltas, cores, strict=True):
        torch.testing.assert_close(
            left @ core @ right.mT, (delta.left @ delta.right).double(), rtol=0, atol=1e-5
        )
    eye = torch.eye(9, dtype=torch.float64)
    torch.testing.assert_close((left.mT @ left)[:9, :9], eye, rtol=0, atol=1e-9)


def test_ties_in_the_core_space_is_ties_of_the_cores(tmp_path):
    base, adapters, _ = family(tmp_path, ranks=(2, 2))
    name = "enc.q.weight"
    found = merged("ties", [base, *adapters], tmp_path / "c.safetensors", space="core")[name]
    opened = [Adapter(path) for path in adapters]
    cores = [
        span([a.delta(n, a.shape(n)) for a in opened], dtype=torch.float32)
        for n in ("enc.q.weight", "enc.v.weight")
    ]
    rows = torch.cat([each.cores.flatten(1) for each in cores], dim=1)
    kept = rows.abs().sort(dim=1).values[:, rows.shape[1] - int(0.2 * rows.shape[1]) - 1]
    trimmed = rows * (rows.abs() >= kept[:, None])
    elected = trimmed.sum(0).sign()
    agree = trimmed.sign() == elected
    mean = (trimmed * agree).sum(0) / agree.sum(0).clamp(min=1) * (elected != 0)
    core = mean[: cores[0].cores[0].numel()].view(cores[0].cores.shape[1:])
    expected = base_state()[name] + cores[0].left @ core @ cores[0].right.mT
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("space", ["auto", "full"])
def test_a_merged_adapter_is_the_best_of_its_rank(tmp_path, space):
    base, adapters, _ = family(tmp_path)
    whole = merged("tsv", [base, *adapters], tmp_path / "whole.safetensors")
    kept = AdapterMerge("tsv", tuple(adapters), rank=4, space=space).write(tmp_path / "out")
    state = base_state()
    squares = []
    result = adapted(state, load_file(tmp_path / "out" / "adapter_model.safetensors"), scale=1.0)
    for name in ("enc.q.weight", "enc.v.weight"):
        change = whole[name] - state[name]
        u, s, v = torch.linalg.svd(change, full_matrices=False)
        torch.testing.assert_close(
            result[name] - state[name], (u[:, :4] * s[:4]) @ v[:4], rtol=0, atol=1e-4
        )
        squares.append((s[:4].square().sum(), s.square().sum()))
    share = (sum(one for one, _ in squares) / sum(all_ for _, all_ in squares)).sqrt()
    assert kept.share == pytest.approx(float(share), abs=1e-5)
    assert kept.rank == 4
    again = Adapter(tmp_path / "out")
    assert (again.config["r"], again.config["lora_alpha"]) == (4, 4)


def test_an_adapter_of_full_rank_keeps_everything(tmp_path):
    base, adapters, models = family(tmp_path)
    kept = AdapterMerge("average", tuple(adapters), rank=16).write(tmp_path / "out")
    assert kept.share == pytest.approx(1.0, abs=1e-6)
    expected = merged("average", [base, *models], tmp_path / "whole.safetensors")
    found = merged("average", [base, tmp_path / "out"], tmp_path / "again.safetensors")
    assert relative(found, expected, base_state()) < 1e-5


def test_without_a_rank_the_largest_is_taken_and_one_tensor_may_be_missing(tmp_path):
    family(tmp_path, ranks=(2,))
    tensors = factors(7, 5, modules=("enc.q",))
    other = write_adapter(tmp_path / "other", tensors, config(5))
    kept = AdapterMerge("task_arithmetic", (tmp_path / "lora1", other)).write(tmp_path / "out")
    assert kept.rank == 5
    assert set(Adapter(tmp_path / "out").pairs) == {"enc.q.weight", "enc.v.weight"}


def test_a_truncated_product_has_balanced_factors():
    delta = LowRankDelta(normal(1, 20, 6), normal(2, 6, 10))
    kept, part, whole = truncate(delta, 3)
    u, s, v = torch.linalg.svd(delta.left @ delta.right)
    torch.testing.assert_close(
        kept.left @ kept.right, (u[:, :3] * s[:3]) @ v[:3], rtol=0, atol=1e-4
    )
    assert part / whole == pytest.approx(float(s[:3].square().sum() / s.square().sum()), abs=1e-5)
    torch.testing.assert_close(kept.left.norm(dim=0), kept.right.norm(dim=1))


def test_patterns_and_rslora_give_the_scale_of_each_module(tmp_path):
    tensors = factors(1, 4)
    tensors |= factors(1, 2, modules=("enc.v",))
    settings = config(4, rank_pattern={"v": 2}, alpha_pattern={"enc.q": 3}, use_rslora=True)
    adapter = Adapter(write_adapter(tmp_path / "a", tensors, settings))
    assert adapter.pairs["enc.q.weight"].scale == pytest.approx(3 / 2)
    assert adapter.pairs["enc.v.weight"].scale == pytest.approx(8 / 2**0.5)
    assert adapter.ranks() == {"enc.q.weight": 4, "enc.v.weight": 2}


def test_a_prefix_of_the_model_is_found(tmp_path):
    state = {f"bert.{name}": tensor for name, tensor in base_state().items()}
    save_file(state, tmp_path / "base.safetensors")
    tensors = factors(1, 2)
    write_adapter(tmp_path / "a", tensors, config(2))
    found = merged(
        "average", [tmp_path / "base.safetensors", tmp_path / "a"], tmp_path / "o.safetensors"
    )
    expected = adapted(base_state(), tensors)
    torch.testing.assert_close(found["bert.enc.q.weight"], expected["enc.q.weight"])


def test_extraction_approximates_a_fine_tuned_model(tmp_path):
    base, _, models = family(tmp_path)
    state = load_file(models[0]) | {"norm": normal(5, 16), "enc.v.bias": normal(6, 16)}
    save_file(state, tmp_path / "tuned.safetensors")
    kept = extract_adapter(base, tmp_path / "tuned.safetensors", tmp_path / "out", rank=2)
    assert kept.share == pytest.approx(1.0, abs=1e-6)
    assert kept.left_out == ("enc.v.bias", "norm")
    found = merged("average", [base, tmp_path / "out"], tmp_path / "o.safetensors")
    torch.testing.assert_close(found["enc.q.weight"], state["enc.q.weight"])
    one = extract_adapter(
        base, tmp_path / "tuned.safetensors", tmp_path / "out", rank=1, overwrite=True
    )
    assert one.share < 0.95
    with pytest.raises(MergeError, match="has the same weights as"):
        extract_adapter(base, base, tmp_path / "same", rank=1)


def tampered(folder, *, tensors=None, remove=(), **changes):
    given = {n: t for n, t in (tensors or factors(1, 2)).items() if not n.endswith(tuple(remove))}
    return write_adapter(folder, given, config(2) | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "an adapter of the kind IA3; only LORA can be merged"),
        ({"peft_type": None}, "an adapter of the kind NONE"),
        ({"use_dora": True}, r"uses DoRA \(use_dora\)"),
        ({"lora_bias": True}, "LoRA with biases"),
        ({"target_parameters": ["w"]}, "LoRA on parameters"),
        ({"init_lora_weights": "pissa_niter_4"}, "was started with pissa"),
        ({"r": 10**9}, "says rank 1000000000 for enc.q, but its factors have rank 2"),
        ({"r": "x" * 10**5}, "says rank xxxxxxxxxxxxxxxxxxxx for"),
        ({"rank_pattern": {"enc.q": 10**30}}, "says rank 1000000000000000000"),
        ({"lora_alpha": "many"}, "lora_alpha in adapter_config.json is not a number"),
        ({"lora_alpha": 1e308 * 10}, "lora_alpha in adapter_config.json is not finite"),
        ({"lora_alpha": 10**400}, "lora_alpha in adapter_config.json is not finite"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "the pattern .* is not understood"),
        ({"alpha_pattern": {".*.*.*.*x": 1}}, "the pattern .* is not understood"),
        ({"alpha_pattern": [1]}, "not a JSON object"),
        ({"remove": ("q.lora_A.weight",)}, "enc.q.lora_A.weight is missing"),
        ({"remove": ("v.lora_B.weight",)}, "enc.v.lora_B.weight is missing"),
        ({"remove": (".weight",), "tensors": {"x.weight": torch.ones(2)}}, "has no factors"),
        (
            {"tensors": factors(1, 2) | {f"{PREFIX}enc.q.lora_B.weight": torch.ones(24, 3)}},
            "which have no product",
        ),
        (
            {"tensors": factors(1, 2) | {f"{PREFIX}q.lora_magnitude_vector": torch.ones(2)}},
            "is not a factor of a LoRA",
        ),
        (
            {"tensors": {n: t.int() for n, t in factors(1, 2).items()}},
            "are not floating point",
        ),
    ],
)
def test_what_is_no_plain_lora_is_refused_in_one_line(tmp_path, changes, message):
    with pytest.raises(AfieldError, match=message) as refused:
        Adapter(tampered(tmp_path / "a", **changes))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_nan_in_a_factor_and_other_shapes_are_refused(tmp_path):
    base, adapters, _ = family(tmp_path)
    bad = factors(1, 2)
    bad[f"{PREFIX}enc.q.lora_A.weight"][0, 0] = torch.nan
    tampered(tmp_path / "nan", tensors=bad)
    with pytest.raises(MergeError, match="nan: NaN or infinity in base_model"):
        merged("tsv", [base, tmp_path / "nan", adapters[0]], tmp_path / "o.safetensors")
    wide = {
        f"{PREFIX}enc.q.lora_A.weight": torch.ones(2, 9),
        f"{PREFIX}enc.q.lora_B.weight": torch.ones(24, 2),
    }
    tampered(tmp_path / "wide", tensors=wide)
    with pytest.raises(MergeError, match=r"changes enc.q.weight with the shape \[24, 9\], but"):
        merged("tsv", [base, tmp_path / "wide", adapters[0]], tmp_path / "o.safetensors")
    with pytest.raises(MergeError, match="another adapter has"):
        AdapterMerge("tsv", (tmp_path / "wide", adapters[0])).write(tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_other_bases_pickles_links_and_broken_configs_are_refused(tmp_path):
    _, adapters, _ = family(tmp_path)
    save_file({"other.weight": torch.ones(3, 3)}, tmp_path / "other.safetensors")
    with pytest.raises(MergeError, match="does not have; give the base that the adapter was"):
        merged("tsv", [tmp_path / "other.safetensors", adapters[0]], tmp_path / "o.safetensors")
    weights = adapters[0] / "adapter_model.safetensors"
    weights.rename(adapters[0] / "adapter_model.bin")
    with pytest.raises(DataError, match=r"no adapter_model.safetensors in it; save the adapter"):
        Adapter(adapters[0])
    Path(tmp_path / "secret").write_text("{}")
    (adapters[0] / "adapter_model.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="a link that leads out of the folder"):
        Adapter(adapters[0])
    for text in ("{", "[]", "[" * 10**5, '"' + "x" * (2 << 20) + '"'):
        (adapters[1] / "adapter_config.json").write_text(text)
        assert is_adapter(adapters[1])
        with pytest.raises(DataError):
            Adapter(adapters[1])


def test_the_core_space_needs_adapters_and_no_base(tmp_path):
    base, adapters, models = family(tmp_path, ranks=(2, 2))
    with pytest.raises(MergeError, match="the core space needs adapters"):
        merged("tsv", [base, *models], tmp_path / "o.safetensors", space="core")
    with pytest.raises(MergeError, match="slerp needs full matrices"):
        merged("slerp", [base, *adapters], tmp_path / "o.safetensors", space="core")
    with pytest.raises(MergeError, match="exists and is no adapter"):
        AdapterMerge("tsv", tuple(adapters)).write(tmp_path, overwrite=True)
    with pytest.raises(MergeError, match="rank=1000000000: give a rank from"):
        AdapterMerge("tsv", tuple(adapters), rank=10**9).write(tmp_path / "o")


class Net(nn.Module):
    """Every kind of layer that a LoRA changes."""

    def __init__(self):
        super().__init__()
        self.emb, self.q, self.conv = nn.Embedding(30, 24), nn.Linear(24, 40), nn.Conv2d(3, 8, 3)
        self.norm, self.head = nn.LayerNorm(40), nn.Linear(40, 2)

    def forward(self, x):
        return self.head(self.norm(self.q(self.emb(x)))).sum() + self.conv(torch.ones(1, 3, 5, 5))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_peft_writes_what_we_read_and_reads_what_we_write(tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = Net()
    save_file(base.state_dict(), tmp_path / "base.safetensors")
    for i, rank in enumerate((2, 4)):
        net = Net()
        net.load_state_dict(base.state_dict())
        settings = peft.LoraConfig(
            r=rank,
            lora_alpha=8,
            target_modules=["q", "conv", "emb"],
            modules_to_save=["head"],
            rank_pattern={"q": 3},
            alpha_pattern={"conv": 16},
            bias="lora_only",
            use_rslora=bool(i),
            init_lora_weights=False,
        )
        model = peft.get_peft_model(net, settings)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "modules_to_save" in name or name.endswith("q.base_layer.bias"):
                    parameter.add_(0.1)
        model.save_pretrained(tmp_path / f"lora{i}")
        whole = model.merge_and_unload().state_dict()
        save_file(
            {name: tensor.contiguous() for name, tensor in whole.items()},
            tmp_path / f"model{i}.safetensors",
        )
    paths = [tmp_path / "base.safetensors", tmp_path / "lora0", tmp_path / "lora1"]
    models = [paths[0], tmp_path / "model0.safetensors", tmp_path / "model1.safetensors"]
    for how in ("average", "tsv", "magmax"):
        found = merged(how, paths, tmp_path / f"{how}-a.safetensors")
        expected = merged(how, models, tmp_path / f"{how}-m.safetensors")
        assert relative(found, expected, load_file(paths[0])) < 1e-5
    AdapterMerge("average", tuple(paths[1:]), rank=24).write(tmp_path / "out")
    net = Net()
    net.load_state_dict(base.state_dict())
    loaded = peft.PeftModel.from_pretrained(net, tmp_path / "out").merge_and_unload()
    expected = load_file(tmp_path / "average-m.safetensors")
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-4, msg=name)
    save_file(
        {name: tensor.contiguous() for name, tensor in loaded.state_dict().items()},
        tmp_path / "tuned.safetensors",
    )
    extract_adapter(paths[0], tmp_path / "tuned.safetensors", tmp_path / "extracted", rank=30)
    net = Net()
    net.load_state_dict(base.state_dict())
    again = peft.PeftModel.from_pretrained(net, tmp_path / "extracted").merge_and_unload()
    for name in ("q.weight", "conv.weight", "emb.weight", "head.weight"):
        torch.testing.assert_close(again.state_dict()[name], loaded.state_dict()[name])
