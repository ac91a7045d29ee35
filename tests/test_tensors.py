"""Arithmetic on lists of tensors: the same numbers as one by one, and no history."""

from functools import partial

import pytest
import torch
from torch import nn

from afield.tensors import add, assign, clone_tensors, flatten, mix, set_gradients, unflatten

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


def same(found, expected) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


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
