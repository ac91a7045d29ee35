"""From domains to batches: who is drawn when, and where a stream goes on."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from afield.domains import Domain
from afield.loading import BLOCK, Samples, Scaling, Stream, pooled_samples
from afield.rows import HELD, Rows


def numbered(*sizes: int) -> Samples:
    """Samples that carry their own index, so that one sees who was drawn."""
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    mains = {
        f"domain{i}": Domain(x=torch.arange(a, b).float()[:, None], y=torch.arange(a, b) % 3)
        for i, (a, b) in enumerate(pairwise(ends))
    }
    return pooled_samples(mains)


def drawn(stream: Stream, steps: int) -> list[list[list[int]]]:
    """The indices of every batch of every step."""
    return [[batch.x.flatten().int().tolist() for batch in next(stream)] for _ in range(steps)]


def test_domains_are_pooled_and_numbered_in_their_order():
    mains = {
        "b": Domain(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0])),
        "a": Domain(torch.tensor([[3.0], [4.0], [5.0]]), torch.tensor([0, 1, 1])),
    }
    pooled = pooled_samples(mains)
    assert pooled.x.take(torch.arange(5)).flatten().tolist() == [1, 2, 3, 4, 5]
    assert pooled.y.tolist() == [1, 0, 0, 1, 1]
    assert pooled.domain.tolist() == [0, 0, 1, 1, 1]
    assert [index.tolist() for index in pooled.by_domain()] == [[0, 1], [2, 3, 4]]
    assert len(pooled) == 5


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_every_sample_of_a_group_is_drawn_once_before_any_comes_again(batch):
    sizes = (5, 7, 30)
    steps = drawn(Stream(numbered(*sizes), batch=batch, seed=0), BLOCK)
    first = 0
    for group, size in enumerate(sizes):
        order = [i for step in steps for i in step[group]]
        for start in range(0, len(order) - size + 1, size):
            assert sorted(order[start : start + size]) == list(range(first, first + size))
        first += size


def test_every_step_has_one_batch_of_equal_size_from_each_domain_however_large():
    samples = numbered(3, 50, 11)
    stream = Stream(samples, batch=6, seed=0)
    for _ in range(9):
        batches = next(stream)
        assert [len(batch.y) for batch in batches] == [6, 6, 6]
        for i, batch in enumerate(batches):
            assert (batch.domain == i).all()
            assert torch.equal(batch.y, samples.y[batch.x.flatten().long()])


def test_each_round_of_a_group_has_its_own_order():
    order = [i for (group,) in drawn(Stream(numbered(20), batch=4, seed=0), 10) for i in group]
    assert order[:20] != order[20:]


def test_the_order_depends_on_the_seed_alone():
    first, again, other = (Stream(numbered(9, 30), batch=4, seed=seed) for seed in (5, 5, 6))
    torch.manual_seed(1)
    one = drawn(first, 70)
    torch.manual_seed(2)
    assert drawn(again, 70) == one
    assert drawn(other, 70) != one


def test_two_blocks_of_steps_are_drawn_in_different_order():
    steps = drawn(Stream(numbered(16), batch=4, seed=0), 2 * BLOCK)
    assert steps[:BLOCK] != steps[BLOCK:]


@pytest.mark.parametrize(
    ("count", "sizes"), [(2, [6, 6]), (5, [3, 3, 2, 2, 2]), (12, [1] * 12), (15, [1] * 15)]
)
def test_regrouping_keeps_the_size_of_the_whole_batch(count, sizes):
    stream = Stream(numbered(30, 30), batch=6, seed=0)
    next(stream)
    groups = [list(range(i, 60, count)) for i in range(count)]
    stream.regroup(groups)
    for _ in range(5):
        batches = next(stream)
        # With more groups than places, every group still has one.
        assert [len(batch.y) for batch in batches] == sizes
        for group, batch in zip(groups, batches, strict=True):
            assert set(batch.x.flatten().int().tolist()) <= set(group)


def test_after_regrouping_every_sample_still_comes_once_a_round():
    stream = Stream(numbered(10, 10), batch=2, seed=0)
    stream.regroup([torch.arange(0, 20, 2), torch.arange(1, 20, 2)])
    steps = drawn(stream, 5)
    assert Counter(i for step in steps for batch in step for i in batch) == Counter(range(20))


def test_the_same_groups_again_are_drawn_in_another_order():
    samples = numbered(12, 12)
    stream = Stream(samples, batch=3, seed=0)
    before = drawn(stream, 4)
    stream.regroup(samples.by_domain())
    assert drawn(stream, 4) != before


@pytest.mark.parametrize("regrouped", [False, True])
@pytest.mark.parametrize("position", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7])
def test_a_stream_goes_on_from_its_saved_place(tmp_path, position, regrouped):
    samples = numbered(7, 40, 13)
    stream = Stream(samples, batch=3, seed=4)
    drawn(stream, 5)
    if regrouped:
        stream.regroup([list(range(i, 60, 4)) for i in range(4)])
    drawn(stream, position)
    torch.save(stream.state_dict(), tmp_path / "state.pt")
    expected = drawn(stream, BLOCK + 5)
    again = Stream(samples, batch=3, seed=4)
    drawn(again, 2)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert drawn(again, BLOCK + 5) == expected


def test_a_restored_stream_regroups_as_the_first_would_have():
    samples = numbered(12, 12)
    groups = [list(range(0, 24, 2)), list(range(1, 24, 2))]
    stream, again = (Stream(samples, batch=3, seed=0) for _ in range(2))
    stream.regroup(groups)
    again.load_state_dict(stream.state_dict())
    for each in (stream, again):
        each.regroup(groups[::-1])
    assert drawn(again, 9) == drawn(stream, 9)


def test_bytes_of_pictures_go_from_minus_one_to_one():
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    scaling = Scaling.fitted(Rows([x[..., :3]]))
    torch.testing.assert_close(scaling(x).flatten(), torch.linspace(-1, 1, 256))


@pytest.mark.parametrize("most", [HELD, 0])
@pytest.mark.parametrize("shape", [(3,), (3, 4, 5)])
def test_numbers_are_standardised_per_feature_or_channel_over_all_that_is_given(shape, most):
    torch.manual_seed(0)
    scale = torch.tensor([1.0, 10.0, 0.01]).view(3, *[1] * (len(shape) - 1))
    x = [scale * torch.randn(n, *shape) + 5 * scale for n in (40, 60)]
    scaled = Scaling.fitted(Rows(x, most=most))(torch.cat(x))
    by_feature = scaled.transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(by_feature.mean(1), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(by_feature.std(1, correction=0), torch.ones(3).double())


def test_scaling_changes_nothing_but_scale_and_origin_of_what_it_was_not_fitted_to():
    scaling = Scaling.fitted(Rows([torch.tensor([[0.0, 2.0], [2.0, 6.0]])]))
    found = scaling(torch.tensor([[1.0, 4.0], [11.0, 4.0], [1.0, -16.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, -10.0]]))


@pytest.mark.parametrize("value", [0.0, 0.1, -12345.678])
def test_a_constant_feature_does_not_divide_by_zero(value):
    x = torch.stack([torch.full((1000,), value), torch.arange(1000.0)], dim=1)
    scaling = Scaling.fitted(Rows([x]))
    assert (scaling(x)[:, 0].abs() < 1e-2).all()
    # Where it is not constant, it is not blown up either.
    assert scaling(x + 1)[:, 0].sub(1).abs().max() < 1e-2


def test_scaled_pictures_keep_their_values_in_the_layout_of_convolutions():
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    scaled = Scaling(torch.tensor(0.5), torch.tensor(2.0))(x)
    assert scaled.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(scaled, (x - 0.5) / 2)


@pytest.mark.parametrize(("size", "batch"), [(30, 7), (1000, 8)])
def test_every_sample_of_a_group_is_drawn_once_before_any_comes_again_across_blocks(size, batch):
    steps = drawn(Stream(numbered(size), batch=batch, seed=0), 5 * BLOCK)
    order = [i for (group,) in steps for i in group]
    for start in range(0, len(order) - size + 1, size):
        assert sorted(order[start : start + size]) == list(range(size))


def test_a_group_without_samples_is_refused():
    stream = Stream(numbered(10), batch=4, seed=0)
    with pytest.raises(ValueError, match="without samples"):
        stream.regroup([[0, 1, 2], []])


def test_samples_stay_as_stored_and_batches_are_prepared():
    x = torch.arange(10, dtype=torch.uint8).view(10, 1)
    nothing = torch.zeros(10).long()
    samples = Samples(Rows([x]), nothing, nothing, prepare=lambda x: x / 2)
    found = samples.batch(torch.tensor([3, 8])).x
    assert found.tolist() == [[1.5], [4.0]]
    assert samples.x.dtype == torch.uint8
