"""CLIP: what open_clip computes, a head of names that does not train, and clear words."""

import json
import logging
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import afield
from afield.data.lookup import find_dataset
from afield.data.prompts import DEFAULT_TEMPLATES, Prompts
from afield.errors import DataError, SpecError, UnknownNameError
from afield.networks.backbone import Form, find_backbone, network
from afield.networks.masks import MaskedNetwork
from afield.networks.stages import late_modules
from afield.runs.finished import reopen
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.settings import resolve_run, resolve_settings

# Importing open_clip takes some seconds: whichever test is the first.
pytestmark = pytest.mark.slow

NAMES = ("big_dog", "cat", "guitar")
TEXT = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
TRANSFORMER = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
CONVOLUTIONS = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 16}
MODELS = {
    "little-vit": {"embed_dim": 16, "vision_cfg": TRANSFORMER, "text_cfg": TEXT},
    "little-rn": {"embed_dim": 16, "vision_cfg": CONVOLUTIONS, "text_cfg": TEXT},
    "little-coca": {
        "embed_dim": 16,
        "vision_cfg": {**TRANSFORMER, "attentional_pool": True, "output_tokens": True},
        "text_cfg": {**TEXT, "embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {"context_length": 16, "width": 16, "heads": 2, "layers": 1},
        "custom_text": True,
    },
}


@pytest.fixture(autouse=True, scope="module")
def little_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Architectures that are small enough for tests, known to open_clip for that time."""
    from open_clip import add_model_config, factory

    before, paths = dict(factory._MODEL_CONFIGS), list(factory._MODEL_CONFIG_PATHS)
    folder = tmp_path_factory.mktemp("models")
    for name, config in MODELS.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    add_model_config(folder)
    yield
    factory._MODEL_CONFIGS, factory._MODEL_CONFIG_PATHS = before, paths


def peer(name: str = "little-vit") -> nn.Module:
    """A whole model of open_clip, with weights unlike fresh ones."""
    from open_clip import create_model

    torch.manual_seed(1)
    net = create_model(name)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        net.logit_scale.fill_(2.5)
    return net.eval()


@pytest.fixture
def file(tmp_path):
    save_file(peer().state_dict(), tmp_path / "clip.safetensors")
    return str(tmp_path / "clip.safetensors")


@pytest.fixture
def tag(file, monkeypatch) -> str:
    """Weights "of the hub" that need none, made for other colours and the quick activation."""
    from open_clip import pretrained

    made = {"file": file, "mean": (0.5, 0.4, 0.3), "std": (0.1, 0.2, 0.3), "quick_gelu": True}
    monkeypatch.setitem(pretrained._PRETRAINED, "little-vit", {"mine": made})
    return "clip:little-vit/mine"


def pictures(n: int = 4, side: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(0))


def tokens(texts: list[str]) -> torch.Tensor:
    from open_clip import get_tokenizer

    return get_tokenizer("little-vit")(texts)


@torch.no_grad()
def expected_logits(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Written out: the mean over templates, by class."""
    rows = []
    for name in ("big dog", "cat", "guitar"):
        each = net.encode_text(tokens([template.format(name) for template in DEFAULT_TEMPLATES]))
        mean = (each / each.norm(dim=1, keepdim=True)).mean(dim=0)
        rows.append(mean / mean.norm())
    image = net.encode_image(x)
    image = image / image.norm(dim=1, keepdim=True)
    return net.logit_scale.exp() * image @ torch.stack(rows).T


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("form", ["safetensors", "pth", "training"])
def test_logits_are_those_of_open_clip_for_the_names_of_the_classes(name, form, tmp_path):
    net, path = peer(name), tmp_path / "clip.pt"
    state = net.state_dict()
    if form == "safetensors":
        path = tmp_path / "clip.safetensors"
        save_file({key: value.clone() for key, value in state.items()}, path)
    elif form == "pth":
        torch.save(state, path)
    else:
        # As open_clip's training writes it.
        wrapped = {f"module.{key}": value for key, value in state.items()}
        torch.save({"epoch": 3, "name": "x", "state_dict": wrapped}, path)
    model = network(f"clip:{name}", (3, 32, 32), 3, weights=str(path), class_names=NAMES).eval()
    x = pictures()
    with torch.no_grad():
        result = model(x)
    torch.testing.assert_close(result, expected_logits(net, x), rtol=1e-5, atol=1e-5)
    assert result.std() > 0.1
    assert model.width == 16
    torch.testing.assert_close(model.features(x).norm(dim=1), torch.ones(4))


def test_with_one_template_logits_are_what_the_whole_model_says(file):
    prompts = Prompts(("big dog", "{cat}_", "guitar"), ("a drawing of {}",))
    model = network("clip:little-vit", (3, 32, 32), 3, weights=file, class_names=prompts).eval()
    texts = tokens(["a drawing of big dog", "a drawing of {cat}_", "a drawing of guitar"])
    x = pictures()
    torch.testing.assert_close(model(x), peer().get_logits(x, texts)[0], rtol=1e-5, atol=1e-5)


def test_the_head_is_frozen_and_has_no_bias_and_the_text_encoder_is_not_kept(file):
    model = network("clip:little-vit", (3, 32, 32), 3, weights=file, class_names=NAMES)
    assert not any(part.requires_grad for part in model.head.parameters())
    assert all(part.requires_grad for part in model.features.parameters())
    assert not model.head.bias.any()
    state = model.state_dict()
    visual = {f"features.visual.{key}" for key in peer().visual.state_dict()}
    assert set(state) == {*visual, "head.weight", "head.bias"}
    # What trains is under open_clip's own names.
    kept = {key.removeprefix("features."): value for key, value in state.items()}
    assert torch.equal(kept["visual.proj"], peer().state_dict()["visual.proj"])


def test_without_names_the_head_is_fresh_and_trains(file):
    def built(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return network("clip:little-vit", (3, 32, 32), 5, weights=file)

    first, again, other = built(0), built(0), built(1)
    assert all(part.requires_grad for part in first.parameters())
    assert first.head.weight.shape == (5, 16)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)
    named = network("clip:little-vit", (3, 32, 32), 3, weights=file, class_names=NAMES)
    torch.testing.assert_close(first.eval().features(pictures()), named.features(pictures()))


def test_random_weights_are_drawn_from_the_generator_of_torch():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = network("clip:little-vit", (3, 32, 32), 3, class_names=NAMES)
        return torch.cat([part.flatten() for part in model.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_a_picture_without_colours_is_seen_as_one_whose_colours_are_equal(file):
    grey = network("clip:little-vit", (1, 32, 32), 3, weights=file, class_names=NAMES).eval()
    colours = network("clip:little-vit", (3, 32, 32), 3, weights=file, class_names=NAMES).eval()
    x = pictures(channels=1)
    torch.testing.assert_close(grey(x), colours(x.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize("side", [16, 64])
def test_positions_are_interpolated_for_pictures_of_another_size(file, side):
    model = network("clip:little-vit", (3, side, side), 3, weights=file, class_names=NAMES)
    own = peer().visual.positional_embedding
    result = model.features.visual.positional_embedding
    assert result.shape == (1 + (side // 8) ** 2, 32)
    assert torch.equal(result[0], own[0])
    # The whole is what is interpolated, so its mean stays about where it was.
    torch.testing.assert_close(result[1:].mean(dim=0), own[1:].mean(dim=0), rtol=0, atol=0.05)
    assert model(pictures(side=side)).shape == (4, 3)


def test_sizes_that_cannot_be_are_refused_with_one_that_can(tmp_path):
    torch.save(peer("little-rn").state_dict(), tmp_path / "rn.pt")
    weights = str(tmp_path / "rn.pt")
    with pytest.raises(SpecError, match=r"squares of 8 × 8, which do not fill 30 × 32; .*size=32"):
        network("clip:little-vit", (3, 30, 32), 2)
    with pytest.raises(SpecError, match=r"weights for images of 32 × 32, not 64 × 64; .*size=32"):
        network("clip:little-rn", (3, 64, 64), 2, weights=weights)
    with pytest.raises(SpecError, match="takes color or gray images, not 2 channels"):
        network("clip:little-vit", (2, 32, 32), 2)
    with pytest.raises(SpecError, match=r"takes images, .* use small:mlp"):
        network("clip:little-vit", (7,), 2)
    # Random ones have no size of their own.
    assert network("clip:little-rn", (3, 64, 64), 2)(pictures(side=64)).shape == (4, 2)


def test_statistics_of_convolutions_stay_where_they_are_frozen(tmp_path):
    torch.save(peer("little-rn").state_dict(), tmp_path / "rn.pt")
    weights = str(tmp_path / "rn.pt")
    model = network("clip:little-rn", (3, 32, 32), 2, weights=weights, freeze_bn=True).train()
    before = [buffer.clone() for buffer in model.buffers()]
    model(pictures())
    assert before
    assert all(torch.equal(*pair) for pair in zip(before, model.buffers(), strict=True))


def test_a_tag_says_which_weights_colours_and_activation(tag, file):
    from open_clip.transformer import QuickGELU

    assert find_backbone(tag).input_form() == Form(32, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
    assert find_backbone(tag).has_pretrained_weights()
    assert find_backbone(tag).tagged_name() == tag
    for weights in ("hub", file):
        model = network(tag, (3, 32, 32), 3, weights=weights, class_names=NAMES).eval()
        assert torch.equal(model.state_dict()["features.visual.proj"], peer().visual.proj)
        assert sum(isinstance(module, QuickGELU) for module in model.modules()) == 2
    plain = network("clip:little-vit", (3, 32, 32), 3, weights=file, class_names=NAMES).eval()
    assert not any(isinstance(module, QuickGELU) for module in plain.modules())
    assert not torch.allclose(plain(pictures()), model(pictures()), atol=1e-4)


def test_known_models_have_the_forms_that_they_were_published_with():
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    assert (
        find_backbone("clip:ViT-B-32/openai").input_form()
        == find_backbone("clip:ViT-B-32").input_form()
        == Form(224, mean, std)
    )
    assert find_backbone("clip:ViT-L-14-336/openai").input_form().size == 336
    assert find_backbone("clip:ViT-B-16-SigLIP/webli").input_form() == Form(
        224, (0.5,) * 3, (0.5,) * 3
    )


def test_weights_of_the_hub_are_never_guessed(tag):
    for name in ("clip:ViT-B-32", "clip:little-vit"):
        assert find_backbone(name).has_pretrained_weights()
        with pytest.raises(SpecError, match=rf"{name}: which weights .* write {name}/\w+, or give"):
            find_backbone(name).tagged_name()
    with pytest.raises(SpecError, match="which weights of the hub"):
        network("clip:little-vit", (3, 32, 32), 2, weights="hub")
    assert not find_backbone("clip:little-rn").has_pretrained_weights()
    dataset = find_dataset("rotated_digits")
    training = {**vars(dataset.training), "backbone": "clip:ViT-B-32"}
    with pytest.raises(SpecError, match="which weights of the hub"):
        resolve_settings(training, dataset)
    assert not resolve_settings({**training, "weights": "none"}, dataset)["weights"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clip:ViT-B-33", "did you mean 'clip:ViT-B-32'"),
        ("clip:ViT-B/32", "did you mean 'clip:ViT-B-"),
        ("clip:ViT-B-32/opena", "did you mean 'clip:ViT-B-32/openai'"),
        ("clip:ViT-B-32/", "did you mean 'clip:ViT-B-32'"),
        ("clip:little-rn/openai", "did you mean 'clip:little-rn'"),
        ("clip:", "did you mean 'clip:"),
    ],
)
def test_unknown_models_and_tags_are_answered_with_a_hint(name, message):
    backbone = find_backbone(name)
    for call in (backbone.input_form, partial(network, name, (3, 32, 32), 2)):
        with pytest.raises(UnknownNameError, match=f"no backbone '{name}'; {message}") as error:
            call()
        assert len(str(error.value)) < 400


def test_without_the_package_it_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    name = "clip:ViT-B-32/openai"
    backbone = find_backbone(name)
    build = partial(network, name, (3, 32, 32), 2)
    for call in (backbone.input_form, backbone.has_pretrained_weights, build):
        with pytest.raises(SpecError, match=r"pip install 'afield\[clip\]'$") as error:
            call()
        assert "\n" not in str(error.value)


def test_a_hub_that_cannot_be_reached_is_reported_with_what_to_give_instead(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    name = "clip:ViT-B-32/openai"
    with pytest.raises(DataError, match=f"{name}: its weights could not be fetched") as error:
        network(name, (3, 224, 224), 2, weights="hub")
    assert "give --weights FILE, or --weights none" in str(error.value)
    assert "\n" not in str(error.value)


def test_files_of_something_else_are_refused_in_one_line(tmp_path, file):
    state = peer().state_dict()
    visual = {key: value for key, value in state.items() if key.startswith("visual.")}
    lacking = {key: value for key, value in state.items() if "resblocks.1.mlp" not in key}
    message = {
        "visual": "not a complete CLIP",
        "lacking": "same architecture",
        "other": "same architecture",
    }
    for name, kept in (("visual", visual), ("lacking", lacking)):
        torch.save(kept, tmp_path / f"{name}.pt")
    torch.save(peer("little-rn").state_dict(), tmp_path / "other.pt")
    (tmp_path / "broken.pt").write_bytes(b"not weights")
    for name in ("visual", "lacking", "other", "broken"):
        weights = str(tmp_path / f"{name}.pt")
        with pytest.raises(DataError, match=message.get(name, "no readable weights")) as error:
            network("clip:little-vit", (3, 32, 32), 3, weights=weights, class_names=NAMES)
        assert str(error.value).startswith(weights)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 500


def test_building_says_nothing_and_leaves_the_root_logger_as_it_is(caplog):
    root = logging.getLogger()
    before = list(root.handlers), list(root.filters)
    network("clip:little-vit", (3, 32, 32), 3, class_names=NAMES)
    assert (list(root.handlers), list(root.filters)) == before
    assert not caplog.records


def test_masks_go_before_the_last_blocks_and_the_head(file):
    model = network("clip:little-vit", (3, 32, 32), 3, weights=file, class_names=NAMES)
    blocks = [f"features.visual.transformer.resblocks.{i}" for i in range(2)]
    assert late_modules(model, pictures(1)) == [*blocks, "head"]
    masked = MaskedNetwork(model, pictures(1), ("a", "b")).eval()
    with torch.no_grad():
        each = [masked(pictures(), domain) for domain in range(2)]
        torch.testing.assert_close(masked(pictures()), torch.stack(each).mean(dim=0))


@pytest.mark.parametrize(
    ("method", "average"), [("erm", "ema"), ("arith", "last"), ("dmg", "last"), ("mldg", "swad")]
)
def test_a_run_trains_the_image_encoder_alone_and_keeps_the_head_to_the_byte(
    method, average, file, tmp_path
):
    dataset = find_dataset("rotated_digits")
    settings = {
        "backbone": "clip:little-vit",
        "weights": file,
        "optimizer": "adamw",
        "weight_decay": 0.1,
        "lr": 0.01,
        "steps": 6,
        "every": 2,
    }
    sources = ("0deg", "30deg", "60deg")
    run = resolve_run(dataset, method, sources, average=average, settings=settings)
    store = Store(tmp_path / "runs")
    record = execute(run, store)
    assert "open_clip_torch" in record.versions
    prefix = "net." if method == "dmg" else ""
    state = store.weights(run)
    start = network(
        "clip:little-vit", (1, 16, 16), 10, weights=file, class_names=dataset.classes
    ).state_dict()
    assert torch.equal(state[f"{prefix}head.weight"], start["head.weight"])
    assert not state[f"{prefix}head.bias"].any()
    trained = [key for key in start if key.startswith("features.")]
    still = [key for key in trained if torch.equal(state[prefix + key], start[key])]
    assert not still
    # Brought back, it is what was kept.
    again = reopen(store.folder(run)).model
    for key, value in again.state_dict().items():
        assert torch.equal(value, state[key])
    assert again(pictures(side=16, channels=1)).shape == (4, 10)


@pytest.mark.slow
def test_zero_shot_experts_and_merges_share_the_head_of_their_prompts(file, tmp_path):
    names, templates = tmp_path / "names.csv", tmp_path / "templates.txt"
    names.write_text("class,name\n0,big dog\n1,cat\n")
    templates.write_text("a scan of the {}.\n")
    images = pictures(24).permute(0, 2, 3, 1).numpy()
    own, y = tmp_path / "own.npz", [0, 1] * 12
    np.savez(own, X=images, y=y, domain=np.repeat(["a", "b", "c"], 8))
    records = afield.bench(
        own,
        merges="average",
        store=tmp_path / "runs",
        trials=1,
        settings={"backbone": "clip:little-vit", "weights": file, "steps": 2},
        class_names=str(names),
        templates=str(templates),
    )
    prompts = Prompts(("big dog", "cat"), ("a scan of the {}.",))
    assert {record.run.role for record in records} == {"base", "expert", "merged"}
    assert {record.run.prompts for record in records} == {prompts.digest}
    head = network("clip:little-vit", (3, 32, 32), 2, weights=file, class_names=prompts).head
    store = Store(tmp_path / "runs")
    for record in records:
        weights = store.weights(record.run)
        heads = [value for key, value in weights.items() if key.endswith("head.weight")]
        assert heads
        assert all(torch.equal(value, head.weight) for value in heads)
