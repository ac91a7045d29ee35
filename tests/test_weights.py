"""Weights are read from files as tensors, and nothing in a file is run."""

import pickle
import random

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from afield.errors import DataError
from afield.tensors import check_complete, read_weights, weights_digest
from tests.files import Trap
from tests.messages import message_of

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2)}


def assert_same(found: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(TENSORS)
    for name, value in TENSORS.items():
        assert torch.equal(found[name], value)


def test_both_formats_give_the_tensors_by_name(tmp_path):
    save_file(TENSORS, tmp_path / "w.safetensors")
    torch.save(TENSORS, tmp_path / "w.pth")
    torch.save({"state_dict": TENSORS, "epoch": 3, "name": "x"}, tmp_path / "w.tar")
    for name in ("w.safetensors", "w.pth", "w.tar"):
        assert_same(read_weights(str(tmp_path / name)))


def test_a_path_may_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    torch.save(TENSORS, tmp_path / "w.pth")
    assert_same(read_weights("~/w.pth"))
    assert weights_digest("~/w.pth") == weights_digest(str(tmp_path / "w.pth"))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path, wrapped, protocol):
    victim, file = tmp_path / "trapped", tmp_path / "w.pth"
    trap = {**TENSORS, "trap": Trap(victim)} if wrapped else Trap(victim)
    for save in (
        lambda: torch.save(trap, file, pickle_protocol=protocol),
        lambda: file.write_bytes(pickle.dumps(trap, protocol)),
    ):
        save()
        with pytest.raises(DataError, match="no readable weights"):
            read_weights(str(file))
        assert not victim.exists()
    # The trap works: whoever unpickles it is caught.
    pickle.loads(pickle.dumps(Trap(victim)))
    assert victim.exists()


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x80\x02", b"PK\x03\x04" + b"x" * 40])
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_file_that_is_something_else_is_named_in_one_line(tmp_path, name, content):
    file = tmp_path / name
    file.write_bytes(content)
    message = message_of(DataError, read_weights, str(file))
    assert message.startswith(str(file))
    assert "no readable weights" in message
    assert "()" not in message


@pytest.mark.parametrize("zipped", [True, False])
def test_a_broken_file_is_an_error_of_ours_wherever_it_is_broken(tmp_path, zipped):
    file, damage = tmp_path / "w.pth", random.Random(0)
    torch.save(TENSORS, file, _use_new_zipfile_serialization=zipped)
    whole = file.read_bytes()
    refused = 0
    for i in range(100):
        broken = bytearray(whole)
        if i % 2:
            del broken[damage.randrange(len(whole)) :]
        else:
            for _ in range(3):
                broken[damage.randrange(len(whole))] = damage.randrange(256)
        file.write_bytes(broken)
        try:
            read_weights(str(file))
        except DataError:
            refused += 1
    assert refused > 45


@pytest.mark.parametrize("name", ["none.pth", "none.safetensors", "."])
def test_a_file_that_is_not_there_is_reported(tmp_path, name):
    with pytest.raises(DataError, match="no readable weights"):
        read_weights(str(tmp_path / name))
    with pytest.raises(DataError, match=r"cannot be read .* give hub, none or a file"):
        weights_digest(str(tmp_path / name))


NO_DICT = r"not a dict of tensors; save model.state_dict\(\)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], NO_DICT),
        ({"a": torch.ones(2), "steps": 3}, NO_DICT),
        (5, NO_DICT),
        ({0: torch.ones(2)}, "the name 0 is not a string"),
        (nn.Linear(2, 2), "other things than tensors"),
    ],
)
def test_what_is_no_dict_of_tensors_is_reported(tmp_path, content, message):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(DataError, match=message):
        read_weights(str(tmp_path / "w.pth"))


def test_a_file_without_some_of_the_tensors_is_another_networks():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    state = dict(net.state_dict())
    check_complete("w.pth", net, state)
    # Files from before torch counted batches lack the counts, and nothing else.
    check_complete("w.pth", net, {k: v for k, v in state.items() if "num_batches" not in k})
    check_complete("w.pth", net, {**state, "head.weight": torch.ones(1)})
    with pytest.raises(DataError, match=r"w.pth: lacks 2 of the 6 tensors .*e.g. 0.weight"):
        check_complete("w.pth", net, {k: v for k, v in state.items() if not k.startswith("0.")})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, 3, dtype=torch.int64), "weight is int64, but the network needs float32"),
        (torch.ones(2, 3, dtype=torch.complex64), "weight is complex64, but the network needs"),
        (torch.full((2, 3), torch.nan), "NaN or infinity in weight"),
        (torch.full((2, 3), torch.inf), "NaN or infinity in weight"),
    ],
)
def test_numbers_that_no_network_was_trained_to_are_named(value, message):
    network = torch.nn.Linear(3, 2)
    state = {**network.state_dict(), "weight": value}
    with pytest.raises(DataError, match=message):
        check_complete("w.pt", network, state)
