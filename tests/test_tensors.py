"""Arithmetic on lists of tensors: the same numbers as one by one, and no history."""

import pickle
import random
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from afield.errors import DataError
from afield.tensors import (
    add,
    assign,
    check_complete,
    clone_tensors,
    flatten,
    mix,
    read_weights,
    set_gradients,
    unflatten,
    weights_digest,
)
from tests.files import Trap
from tests.messages import message_of

SHAPES = [(2, 3), (4,), (), (1, 2, 2)]


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


@pytest.fixture
def others(tensors) -> list[torch.Tensor]:
    return [tensor.cos() for tensor in tensors]


@pytest.fixture
def parameters(tensors) -> list[nn.Parameter]:
    return [nn.Parameter(tensor.clone()) for tensor in tensors]


def same(result, expected) -> bool:
    return all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


def test_a_flat_vector_has_every_entry_in_order(tensors):
    vector = flatten(tensors)
    assert vector.tolist() == [x for tensor in tensors for x in tensor.reshape(-1).tolist()]


def test_a_flat_vector_is_new_and_has_no_history(parameters):
    vector = flatten(parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    vector.zero_()
    assert not vector.requires_grad
    assert same(parameters, before)
    only = torch.ones(3)
    flatten([only]).zero_()
    assert only.sum() == 3


def test_what_is_transposed_is_flattened_as_it_reads():
    assert flatten([torch.arange(6).view(2, 3).T]).tolist() == [0, 3, 1, 4, 2, 5]


def test_shaping_takes_a_vector_apart_again(tensors):
    assert same(unflatten(flatten(tensors), tensors), tensors)


def test_what_is_written_to_the_shaped_pieces_is_written_to_the_vector(tensors, others):
    vector = flatten(tensors)
    assign(unflatten(vector, tensors), others)
    assert torch.equal(vector, flatten(others))


@pytest.mark.parametrize("entries", [10, 12, 16])
def test_a_vector_of_another_length_is_not_shaped(tensors, entries):
    assert flatten(tensors).numel() == 15
    with pytest.raises((RuntimeError, ValueError)):
        unflatten(torch.zeros(entries), tensors)


def test_copies_are_equal_apart_and_without_history(parameters):
    made = clone_tensors(parameters)
    assert same(made, parameters)
    assert not any(each.requires_grad for each in made)
    assert not any(isinstance(each, nn.Parameter) for each in made)
    add(made, made)
    assert not same(made, parameters)


def test_copies_keep_type_and_memory_layout():
    pictures = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    wide, whole = clone_tensors([pictures, torch.tensor([3])])
    assert wide.is_contiguous(memory_format=torch.channels_last)
    assert wide.stride() == pictures.stride()
    assert whole.dtype == torch.int64
    assert whole.item() == 3


def test_parameters_are_written_in_place_although_they_are_trained(parameters, others):
    places = [parameter.data_ptr() for parameter in parameters]
    assign(parameters, others)
    assert same(parameters, others)
    assert [parameter.data_ptr() for parameter in parameters] == places
    assert all(p.requires_grad and p.is_leaf and p.grad_fn is None for p in parameters)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        *((partial(add, times=n), lambda a, b, n=n: a + n * b) for n in (1.0, -0.25, 0.0)),
        # Added once unless told otherwise.
        (add, lambda a, b: a + b),
        *(
            (partial(mix, share=s), lambda a, b, s=s: (1 - s) * a + s * b)
            for s in (0.05, 0.3, 0.5, 0.9)
        ),
    ],
)
def test_adding_and_mixing_are_as_one_by_one(parameters, tensors, others, change, expected):
    change(parameters, others)
    for parameter, a, b in zip(parameters, tensors, others, strict=True):
        assert parameter.is_leaf
        torch.testing.assert_close(parameter.detach(), expected(a, b), rtol=1e-15, atol=1e-15)


def test_mixing_ends_where_it_should_to_the_last_bit(tensors, others):
    made = clone_tensors(tensors)
    mix(made, others, share=0.0)
    assert same(made, tensors)
    mix(made, others, share=1.0)
    assert same(made, others)


def test_what_is_added_or_mixed_stays_as_it_is(tensors, others):
    before = clone_tensors(others)
    add(tensors, others, times=2.0)
    mix(tensors, others, share=0.5)
    assign(tensors, others)
    assert same(others, before)


def test_a_network_without_parameters_is_no_special_case():
    assert clone_tensors([]) == []
    assign([], [])
    add([], [], times=2.0)
    mix([], [], share=0.5)


@pytest.mark.parametrize("change", [assign, add, lambda a, b: mix(a, b, share=0.5)])
def test_lists_of_different_lengths_are_refused(tensors, others, change):
    with pytest.raises(RuntimeError):
        change(tensors, others[:-1])


def test_tensors_of_several_types_can_be_in_one_list():
    both = [torch.zeros(2), torch.zeros(2, dtype=torch.float64)]
    ones = [torch.ones(2), torch.ones(2, dtype=torch.float64)]
    add(both, ones, times=0.5)
    mix(both, ones, share=0.5)
    assert [each.tolist() for each in both] == [[0.75, 0.75]] * 2
    assert [each.dtype for each in both] == [torch.float32, torch.float64]


def test_gradients_are_set_in_the_layout_of_their_parameters():
    parameters = [
        torch.nn.Parameter(torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)),
        torch.nn.Parameter(torch.randn(3)),
    ]
    slope = [torch.randn(4, 3, 2, 2), torch.randn(3)]
    set_gradients(parameters, slope)
    for parameter, expected in zip(parameters, slope, strict=True):
        assert torch.equal(parameter.grad, expected)
        assert parameter.grad.stride() == parameter.stride()
        assert parameter.grad.data_ptr() != expected.data_ptr()


TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2)}


def assert_same(result: dict[str, torch.Tensor]) -> None:
    assert set(result) == set(TENSORS)
    for name, value in TENSORS.items():
        assert torch.equal(result[name], value)


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
