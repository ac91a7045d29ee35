"""Rows of several arrays as one: the same whether they are held in memory or read when asked."""

import resource

import numpy as np
import pytest
import torch

from afield.data import samples as module
from afield.data.domains import Domain
from afield.data.samples import Rows, Samples, pool_domains, trim_padding

MUCH = 2**30
LAYOUTS = ("features", "bytes", "pictures", "channels_last", "half")


def arrays(layout: str) -> list[torch.Tensor]:
    """Three arrays of unequal length whose values tell where they are from."""
    result = []
    for number, size in enumerate((7, 1, 12)):
        shape = (size, 5) if layout == "features" else (size, 3, 4, 6)
        values = torch.arange(number * 1000, number * 1000 + torch.Size(shape).numel())
        if layout == "channels_last":
            # As pictures lie in the cache: colours last, and seen with colours first.
            x = values.view(size, 4, 6, 3).to(torch.uint8).permute(0, 3, 1, 2)
        else:
            kind = {"bytes": torch.uint8, "half": torch.float16}.get(layout, torch.float32)
            x = values.view(shape).to(kind)
        result.append(x)
    return result


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chosen", [None, [[6, 0, 3], [0], [11, 2, 2, 5]], [[], [0], [4, 1]]])
def test_held_or_not_the_rows_are_the_same(layout, chosen):
    x = arrays(layout)
    index = chosen and [torch.tensor(part, dtype=torch.int64) for part in chosen]
    whole = torch.cat([a[i] for a, i in zip(x, index, strict=True)] if index else x)
    held, read = Rows(x, index, max_bytes=MUCH), Rows(x, index, max_bytes=0)
    assert held.in_memory is not None
    assert read.in_memory is None
    generator = torch.Generator().manual_seed(0)
    asked = torch.randint(len(whole), (40,), generator=generator)
    for each in (held, read):
        assert len(each) == len(whole)
        assert each.shape == whole.shape[1:]
        assert each.dtype == whole.dtype
        for some in (asked, asked[:1], torch.arange(len(whole)).flip(0)):
            result = each.take(some)
            assert result.dtype == whole.dtype
            assert torch.equal(result, whole[some])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_held_or_not_the_memory_layout_is_that_of_the_arrays(layout):
    x = arrays(layout)
    colours_last = layout == "channels_last"
    for max_bytes in (MUCH, 0):
        result = Rows(x, max_bytes=max_bytes).take(torch.tensor([3, 0, 9]))
        assert result.is_contiguous() != colours_last
        assert result.ndim < 4 or not colours_last or result.permute(0, 2, 3, 1).is_contiguous()


@pytest.mark.parametrize("max_bytes", [MUCH, 0])
@pytest.mark.parametrize(("size", "lengths"), [(6, [6, 6, 6, 2]), (20, [20]), (99, [20])])
def test_chunks_are_all_rows_in_order(max_bytes, size, lengths):
    x = arrays("features")
    chunks = list(Rows(x, max_bytes=max_bytes).chunks(size))
    assert [len(chunk) for chunk in chunks] == lengths
    assert torch.equal(torch.cat(chunks), torch.cat(x))


def test_rows_as_large_as_what_may_be_held_are_held_and_larger_ones_are_not():
    x = [torch.zeros(10, 4), torch.zeros(6, 4)]
    size = 16 * 4 * 4
    assert Rows(x, max_bytes=size).in_memory is not None
    assert Rows(x, max_bytes=size - 1).in_memory is None
    # What is chosen counts, not what there is.
    chosen = [torch.arange(3), torch.arange(2)]
    assert Rows(x, chosen, max_bytes=5 * 4 * 4).in_memory is not None
    assert Rows(x, chosen, max_bytes=5 * 4 * 4 - 1).in_memory is None


def test_how_much_is_held_by_default_is_the_module_s_to_say(monkeypatch):
    x = [torch.zeros(10, 4)]
    assert Rows(x).in_memory is not None
    monkeypatch.setattr(module, "MAX_BYTES_CPU", 159)
    assert Rows(x).in_memory is None


def test_rows_in_memory_are_asked_for_where_they_are_and_others_on_the_cpu():
    x = [torch.zeros(10, 4)]
    assert Rows(x, device="meta", max_bytes=MUCH).index_device == torch.device("meta")
    assert Rows(x, device="meta", max_bytes=0).index_device == torch.device("cpu")


def test_what_is_held_does_not_change_with_the_arrays():
    x = torch.zeros(4, 2)
    rows = Rows([x], max_bytes=MUCH)
    x += 1
    assert not rows.take(torch.arange(4)).any()


def test_of_a_map_larger_than_memory_only_what_is_asked_for_is_read(tmp_path):
    # A file of holes: eight gigabytes that take no room until they are written to.
    shape = (8 * 2**30 // (3 * 2**10), 32, 32, 3)
    disk = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.uint8, shape)
    last = shape[0] - 1
    disk[0], disk[last] = 7, 9
    disk.flush()
    mapped = torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = Rows([mapped.permute(0, 3, 1, 2)])
    assert rows.in_memory is None
    result = rows.take(torch.tensor([last, 0, last // 2, 0]))
    assert result.shape == (4, 3, 32, 32)
    assert [int(picture.unique()) for picture in result] == [9, 7, 0, 7]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # An index for every row is all that there is: 8 bytes for each of 2.8 million.
    assert grown < 256 * 2**10, f"{grown} KB"


def test_domains_are_pooled_and_numbered_in_their_order():
    mains = {
        "b": Domain(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0])),
        "a": Domain(torch.tensor([[3.0], [4.0], [5.0]]), torch.tensor([0, 1, 1])),
    }
    pooled = pool_domains(mains)
    assert pooled.x.take(torch.arange(5)).flatten().tolist() == [1, 2, 3, 4, 5]
    assert pooled.y.tolist() == [1, 0, 0, 1, 1]
    assert pooled.domain.tolist() == [0, 0, 1, 1, 1]
    assert [index.tolist() for index in pooled.by_domain()] == [[0, 1], [2, 3, 4]]
    assert len(pooled) == 5


def test_samples_stay_as_stored_and_batches_are_prepared():
    x = torch.arange(10, dtype=torch.uint8).view(10, 1)
    nothing = torch.zeros(10).long()
    samples = Samples(Rows([x]), nothing, nothing, prepare=lambda x: x / 2)
    assert samples.batch(torch.tensor([3, 8])).x.tolist() == [[1.5], [4.0]]
    assert samples.x.dtype == torch.uint8


def test_the_first_token_of_a_vocabulary_is_a_token_and_not_padding():
    x = torch.tensor([[0, 0, -1, -1], [3, 0, 0, -1], [0, -1, -1, -1]], dtype=torch.int32)
    assert Rows([x]).lengths.tolist() == [2, 3, 1]
    assert torch.equal(trim_padding(x), x[:, :3])
    assert torch.equal(trim_padding(x[::2]), x[::2, :2])
