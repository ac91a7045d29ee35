"""Text encoders from Hugging Face: safetensors only, no code, pooled as their folder says."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from afield.data.domains import data_root
from afield.errors import AfieldError
from afield.networks.backbone import find_backbone, network
from tests.texts import change_json, write_encoder, write_tokenizer


@pytest.fixture
def folder(tmp_path):
    return write_encoder(tmp_path / "encoder")


def refusal(name, shape=(8,), **options):
    with pytest.raises(AfieldError) as error:
        network(name, shape, 2, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_weights_of_the_folder_are_loaded_without_the_pooler(folder):
    from transformers import AutoModel

    ids = torch.tensor([[2, 4, 13, 3]], dtype=torch.int32)
    net = network(f"hf:{folder}", (8,), 2, weights="hub").eval()
    reference = AutoModel.from_pretrained(folder).eval()
    states = reference(input_ids=ids.long()).last_hidden_state
    torch.testing.assert_close(net.features(ids), states.mean(dim=1))
    first = network(f"hf:{folder}?pooling=first", (8,), 2, weights="hub").eval()
    torch.testing.assert_close(first.features(ids), states[:, 0])
    assert not [name for name in net.state_dict() if "pooler" in name]
    assert {value.dtype for value in net.state_dict().values()} == {torch.float32}


def test_random_weights_and_a_file_of_weights_are_other_starts(folder, tmp_path):
    names = [network(f"hf:{folder}", (8,), 2) for _ in range(2)]
    weights = [next(net.features.parameters()) for net in names]
    assert not torch.equal(*weights)
    file = tmp_path / "weights.safetensors"
    save_file(dict(names[0].features.state_dict()), file)
    loaded = network(f"hf:{folder}", (8,), 2, weights=str(file))
    assert torch.equal(next(loaded.features.parameters()), weights[0])


def test_pooling_is_as_the_folder_says(folder):
    assert find_backbone(f"hf:{folder}").pooling == "mean"
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    backbone = find_backbone(f"hf:{folder}")
    assert backbone.pooling == "first"
    assert backbone.tagged_name() == f"hf:{folder}?pooling=first"
    assert find_backbone(backbone.tagged_name()).source == str(folder)
    assert "pooling is mean or first" in refusal(f"hf:{folder}?pooling=max")


def test_the_digest_depends_on_every_file_and_not_on_the_path(folder, tmp_path):
    other = write_encoder(tmp_path / "other")
    digests = [find_backbone(f"hf:{each}").start_digest("hub") for each in (folder, other)]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 16
    changed = {digests[0], find_backbone(f"hf:{other}").start_digest("")}
    write_encoder(other, seed=1)
    changed.add(find_backbone(f"hf:{other}").start_digest("hub"))
    change_json(other / "tokenizer.json", version="1.1")
    changed.add(find_backbone(f"hf:{other}").start_digest("hub"))
    change_json(other / "config.json", hidden_dropout_prob=0.5)
    changed.add(find_backbone(f"hf:{other}").start_digest("hub"))
    assert len(changed) == 5


def test_what_is_missing_or_unsafe_is_refused_in_one_line(folder, tmp_path):
    assert "no such folder" in refusal(f"hf:{tmp_path}/nowhere")
    assert "names no encoder" in refusal("hf:")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "only pytorch_model.bin, a pickle" in refusal(f"hf:{folder}", weights="hub")
    (folder / "pytorch_model.bin").unlink()
    assert "no weights" in refusal(f"hf:{folder}", weights="hub")
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer.json; save the encoder with its tokenizer" in refusal(f"hf:{folder}")
    write_tokenizer(folder)
    (folder / "config.json").write_text("[]")
    assert "not a JSON object" in refusal(f"hf:{folder}")
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(f"hf:{folder}")


def test_an_encoder_that_does_not_fit_is_refused_in_one_line(folder):
    assert "takes texts, not samples of shape (3, 8, 8)" in refusal(f"hf:{folder}", (3, 8, 8))
    assert "cannot be built for inputs of shape (25,)" in refusal(f"hf:{folder}", (25,))
    change_json(folder / "config.json", vocab_size=10)
    assert "its tokenizer has 22 tokens, its encoder knows 10" in refusal(f"hf:{folder}")
    change_json(folder / "config.json", model_type="unheard_of", auto_map={"AutoModel": "m.M"})
    (folder / "m.py").write_text("raise SystemExit('code of a folder was run')")
    assert "cannot be built" in refusal(f"hf:{folder}")


def weights_of(folder):
    # Copies, because the file is mapped into memory, and is overwritten.
    return {name: each.clone() for name, each in load_file(folder / "model.safetensors").items()}


def with_value(tensors, value):
    name = "embeddings.word_embeddings.weight"
    changed = tensors[name].clone()
    changed[0, 0] = value
    return {**tensors, name: changed}


def test_broken_weights_of_a_folder_are_one_line_as_broken_files_are(folder):
    file = folder / "model.safetensors"
    tensors, content = weights_of(folder), file.read_bytes()
    whole = {name: tensor.long() for name, tensor in tensors.items()}
    eight = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()}
    for broken, message in (
        (b"", "not readable safetensors"),
        (content[: len(content) // 2], "not readable safetensors"),
        (b"<html>not found</html>" * 100, "not readable safetensors"),
        ({}, "has no tensors"),
        (with_value(tensors, float("nan")), "NaN or infinity in embeddings.word_embeddings"),
        (with_value(tensors, float("inf")), "NaN or infinity in embeddings.word_embeddings"),
        (whole, "is int64, but the network needs float32"),
        (eight, "is float8_e4m3fn, but the network needs float32"),
        ({"encoder.nothing": torch.zeros(1)}, "its weights lack 37 tensors"),
    ):
        save_file(broken, file) if isinstance(broken, dict) else file.write_bytes(broken)
        assert message in refusal(f"hf:{folder}", weights="hub")


def test_other_types_of_real_numbers_become_float32_with_a_word(folder, caplog):
    tensors = weights_of(folder)
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        save_file({n: t.to(kind) for n, t in tensors.items()}, folder / "model.safetensors")
        net = network(f"hf:{folder}", (8,), 2, weights="hub")
        assert {value.dtype for value in net.state_dict().values()} == {torch.float32}
        expected = tensors["embeddings.word_embeddings.weight"].to(kind).float()
        assert torch.equal(net.features.encoder.embeddings.word_embeddings.weight, expected)
        name = str(kind).removeprefix("torch.")
        assert f"its weights are {name}; they become float32" in caplog.text


def test_an_index_names_files_of_its_own_folder(folder, tmp_path):
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    names = list(load_file(tmp_path / "outside.safetensors"))
    index = folder / "model.safetensors.index.json"

    def refused(place):
        index.write_text(json.dumps({"weight_map": dict.fromkeys(names, place)}))
        (folder / "other.safetensors").touch()
        return refusal(f"hf:{folder}", weights="hub")

    assert "not an index" in refused("../outside.safetensors")
    assert "not an index" in refused(str(tmp_path / "outside.safetensors"))
    assert "no gone.safetensors, which its index names" in refused("gone.safetensors")
    (folder / "linked.safetensors").symlink_to(tmp_path / "outside.safetensors")
    assert "a link that leads out of the folder" in refused("linked.safetensors")
    (folder / "linked.safetensors").unlink()
    shutil.copy(tmp_path / "outside.safetensors", folder / "inside.safetensors")
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "inside.safetensors")}))
    network(f"hf:{folder}", (8,), 2, weights="hub")


def test_an_adapter_is_not_taken_for_a_model(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/name"}')
    assert "holds an adapter, not a model" in refusal(f"hf:{folder}", weights="hub")


@pytest.mark.parametrize("weights", ["hub", ""])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, above 2000"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000000000000000"),
        ({"vocab_size": 2**31 - 1, "hidden_size": 2**20}, "asks for more parameters"),
        ({"max_position_embeddings": 2**31 - 1, "hidden_size": 1024}, "more parameters"),
        ({"vocab_size": "many"}, "cannot be built"),
        ({"hidden_act": "unheard_of"}, "cannot be built"),
        ({"num_attention_heads": 0}, "cannot be built"),
        ({"hidden_size": None}, "cannot be built"),
        ({"model_type": None}, "its model_type is None"),
        ({"model_type": []}, "its model_type is []"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized weights"),
    ],
)
def test_a_tampered_configuration_is_one_line_at_once(folder, values, message, weights):
    change_json(folder / "config.json", **values)
    assert message in refusal(f"hf:{folder}", weights=weights)


@pytest.mark.parametrize("values", [{"num_hidden_layers": 200}, {"intermediate_size": 10**7}])
def test_a_configuration_cannot_ask_for_more_than_the_weights_have(folder, values):
    change_json(folder / "config.json", **values)
    assert "asks for more parameters" in refusal(f"hf:{folder}", weights="hub")


def test_values_that_name_heads_code_and_other_files_do_not_matter(folder):
    reference = network(f"hf:{folder}", (8,), 2, weights="hub").state_dict()
    change_json(
        folder / "config.json",
        num_labels=10**9,
        auto_map={"AutoModel": "code.Net"},
        attn_implementation="owner/kernel",
        transformers_weights="../other.safetensors",
    )
    same = network(f"hf:{folder}", (8,), 2, weights="hub").state_dict()
    assert all(torch.equal(same[k], v) for k, v in reference.items() if "head" not in k)


def test_a_token_beyond_the_vocabulary_is_refused_before_training(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["the"] = 10**6
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "a token with the id 1000000, its encoder knows 22" in refusal(f"hf:{folder}")


@pytest.mark.data
@pytest.mark.slow
def test_a_published_encoder_puts_similar_sentences_close_together():
    from afield.data.modalities.text import tokenize

    backbone = find_backbone(f"hf:{data_root() / 'weights' / 'minilm_l6'}")
    sentences = ("a great film", "a wonderful movie", "the train is late")
    rows = [tokenize(each, backbone.tokenizer, 8)[1:] for each in sentences]
    net = network(backbone.name, (8,), 2, weights="hub").eval()
    with torch.no_grad():
        vectors = net.features(torch.stack([torch.from_numpy(row) for row in rows]))
    close = torch.nn.functional.cosine_similarity(vectors[0], vectors[1:])
    assert close[0] > 0.7 > 0.3 > close[1]
