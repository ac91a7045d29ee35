"""Text encoders from Hugging Face: safetensors only, no code, pooled as their folder says."""

import json

import pytest
import torch

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
    from safetensors.torch import save_file

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
