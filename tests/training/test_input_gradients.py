"""Inputs moved along a gradient: embedded tokens of texts."""

import copy

import pytest
import torch

from afield.data.modalities.image import Image
from afield.data.modalities.text import Text
from afield.data.samples import Batch
from afield.errors import SpecError
from afield.networks.backbone import network
from afield.training.input_gradients import movable_inputs
from afield.training.learner import Task
from afield.training.methods.crossgrad import CrossGrad
from afield.training.methods.erm import ERM
from afield.training.methods.labelgrad import LabelGrad
from tests.texts import write_encoder


def batches():
    """Two domains of three texts each, with padding."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 22, (6, 7), generator=draw, dtype=torch.int32)
    ids[torch.arange(7) >= torch.tensor([7, 5, 3, 6, 4, 7])[:, None]] = -1
    y, domain = torch.arange(6) % 2, torch.arange(6) // 3
    fields = (field.split(3) for field in (ids, y, domain, domain))
    return [Batch(*values) for values in zip(*fields, strict=True)]


@pytest.fixture(params=["small:text", "encoder"])
def model(request, tmp_path):
    name = request.param if request.param == "small:text" else f"hf:{write_encoder(tmp_path)}"
    torch.manual_seed(0)
    return network(name, (7,), 2).eval()


def trained(method, model, steps=2):
    model = copy.deepcopy(model)
    task = Task(
        ("a", "b"),
        ("x", "y"),
        steps,
        network=lambda outputs: network("small:text", (7,), outputs),
        optimizer=lambda parameters, lr=0.1: torch.optim.SGD(parameters, lr=lr),
        shape=(7,),
    )
    torch.manual_seed(1)
    learner = method.setup(model, task)
    logs = [method.update(learner, batches()) for _ in range(steps)]
    return model.state_dict(), logs


def test_without_a_share_of_moved_inputs_both_methods_are_erm(model):
    expected, _ = trained(ERM(), model)
    for method in (LabelGrad(alpha=0.0), CrossGrad(alpha_label=0.0)):
        result, _ = trained(method, model)
        for name, value in expected.items():
            torch.testing.assert_close(result[name], value)


def test_embedded_tokens_are_moved_and_every_weight_is_trained(model):
    for method in (LabelGrad(), CrossGrad()):
        result, logs = trained(method, model)
        assert all(each["shift"] > 0 for each in logs)
        same = [name for name, value in model.state_dict().items() if value.equal(result[name])]
        # The position and type embeddings that no token uses, and buffers.
        assert not [name for name in same if "weight" in name and "embeddings" not in name]
        embeddings = [name for name in result if "embedding" in name and "weight" in name]
        assert embeddings[0] not in same


def test_a_frozen_embedding_does_not_prevent_moving(model):
    model.features.requires_grad_(requires_grad=False)
    x = movable_inputs(model, batches()[0].x, "labelgrad")
    assert x.is_leaf
    assert x.requires_grad


def test_ids_without_an_embedding_are_refused():
    with pytest.raises(SpecError, match="labelgrad moves inputs along a gradient"):
        movable_inputs(torch.nn.Linear(7, 2), batches()[0].x, "labelgrad")


def test_crossgrad_on_texts_refuses_a_domain_network_that_embeds_tokens_itself():
    for method in (CrossGrad(guided=True), CrossGrad(domain_net="small:mlp")):
        method.check_modality(Image())
        with pytest.raises(SpecError, match="crossgrad on texts needs guided=false"):
            method.check_modality(Text())
