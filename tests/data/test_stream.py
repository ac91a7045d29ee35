"""From domains to batches: who is drawn when, and where a stream goes on."""

import threading
from collections import Counter
from dataclasses import replace
from itertools import chain, pairwise, product

import pytest
import torch

from afield.compute import preserve_torch_state
from afield.data.domains import Domain
from afield.data.samples import Rows, Samples, pool_domains
from afield.data.stream import STEPS_PER_BLOCK, Stream
from afield.errors import DataError
from tests.pairs import every_pair

POSITIONS = [1, STEPS_PER_BLOCK, 2 * STEPS_PER_BLOCK + 7]


def numbered(*sizes: int) -> Samples:
    """Samples that carry their own index, so that one sees who was drawn."""
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    mains = {
        f"domain{i}": Domain(x=torch.arange(a, b).float()[:, None], y=torch.arange(a, b) % 3)
        for i, (a, b) in enumerate(pairwise(ends))
    }
    return pool_domains(mains)


def drawn(stream: Stream, steps: int) -> list[list[list[int]]]:
    """The indices of every batch of every step."""
    return [[batch.x.flatten().int().tolist() for batch in next(stream)] for _ in range(steps)]


def assert_in_rounds(order: list[int], members: list[int]) -> None:
    """Every member once before any comes again, to the last round, which may be unfinished."""
    rounds = [order[i : i + len(members)] for i in range(0, len(order), len(members))]
    for drawn_round in rounds:
        assert len(set(drawn_round)) == len(drawn_round)
        assert set(drawn_round) <= set(members)


@pytest.mark.parametrize(
    ("sizes", "batch"),
    [((5, 7, 30), 1), ((5, 7, 30), 3), ((5, 7, 30), 8), ((30,), 7), ((1000,), 8)],
)
def test_every_sample_of_a_group_is_drawn_once_before_any_comes_again(sizes, batch):
    steps = drawn(Stream(numbered(*sizes), batch=batch, seed=0), 5 * STEPS_PER_BLOCK)
    first = 0
    for group, size in enumerate(sizes):
        order = [i for step in steps for i in step[group]]
        assert_in_rounds(order, list(range(first, first + size)))
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


def test_each_round_of_a_group_and_each_block_of_steps_has_its_own_order():
    steps = drawn(Stream(numbered(20), batch=4, seed=0), 2 * STEPS_PER_BLOCK)
    order = [i for (group,) in steps for i in group]
    assert order[:20] != order[20:40]
    steps = drawn(Stream(numbered(16), batch=4, seed=0), 2 * STEPS_PER_BLOCK)
    assert steps[:STEPS_PER_BLOCK] != steps[STEPS_PER_BLOCK:]


@pytest.mark.parametrize("per_step", [0, 2])
def test_the_order_and_the_choice_of_domains_depend_on_the_seed_alone(per_step):
    first, again, other = (
        Stream(numbered(9, 30, *[4] * 7), batch=4, seed=seed, per_step=per_step)
        for seed in (5, 5, 6)
    )
    torch.manual_seed(1)
    expected = drawn(first, 70)
    torch.manual_seed(2)
    assert drawn(again, 70) == expected
    assert drawn(other, 70) != expected


@pytest.mark.parametrize(
    ("count", "sizes"), [(2, [6, 6]), (5, [3, 3, 2, 2, 2]), (12, [1] * 12), (15, [1] * 12)]
)
def test_regrouping_keeps_the_size_of_the_whole_batch(count, sizes):
    stream = Stream(numbered(30, 30), batch=6, seed=0)
    next(stream)
    groups = [list(range(i, 60, count)) for i in range(count)]
    stream.regroup(groups)
    for _ in range(5):
        batches = next(stream)
        # With more groups than places, some groups wait.
        assert [len(batch.y) for batch in batches] == sizes
        for batch in batches:
            (number,) = batch.group.unique().tolist()
            assert set(batch.x.flatten().int().tolist()) <= set(groups[number])
        assert len({int(batch.group[0]) for batch in batches}) == len(batches)


def test_groups_are_the_domains_until_a_method_regroups():
    for per_step in (0, 2):
        stream = Stream(numbered(9, 9, 9), batch=2, seed=0, per_step=per_step)
        for batch in next(stream):
            assert torch.equal(batch.group, batch.domain)


def test_of_more_groups_than_a_batch_has_places_all_come_equally_often():
    stream = Stream(numbered(30, 30), batch=4, seed=0)
    stream.regroup([list(range(i, 60, 24)) for i in range(24)])
    seen = Counter(int(batch.group[0]) for _ in range(3 * 50) for batch in next(stream))
    assert set(seen.values()) == {50}


def test_after_regrouping_every_sample_still_comes_once_a_round():
    stream = Stream(numbered(10, 10), batch=2, seed=0)
    stream.regroup([torch.arange(0, 20, 2), torch.arange(1, 20, 2)])
    steps = drawn(stream, 5)
    assert Counter(i for step in steps for batch in step for i in batch) == Counter(range(20))


def test_the_same_groups_again_go_on_where_they_are():
    samples = numbered(12, 12)
    stream, undisturbed = (Stream(samples, batch=3, seed=0) for _ in range(2))
    expected = drawn(undisturbed, 9)
    plot = drawn(stream, 4)
    stream.regroup(samples.by_domain())
    assert plot + drawn(stream, 5) == expected


def test_other_groups_of_the_same_samples_are_drawn_in_another_order():
    samples = numbered(12, 12)
    stream = Stream(samples, batch=3, seed=0)
    before = drawn(stream, 4)
    stream.regroup(samples.by_domain()[::-1])
    stream.regroup(samples.by_domain())
    assert drawn(stream, 4) != before


@pytest.mark.parametrize(
    ("options", "position", "regrouped"),
    [
        *product([{}], [0, STEPS_PER_BLOCK - 1, STEPS_PER_BLOCK + 1, *POSITIONS], [False, True]),
        ({"batch": 0}, 70, False),
        *every_pair(
            [{"per_step": 2}, {"balance": True}, {"per_step": 2, "balance": True}],
            POSITIONS,
            [False, True],
        ),
    ],
    ids=str,
)
def test_a_stream_continues_from_its_saved_position(tmp_path, position, regrouped, options):
    samples, options = numbered(7, 40, 13, 5, 11), {"batch": 3, **options}
    stream = Stream(samples, seed=4, **options)
    drawn(stream, 5)
    if regrouped:
        stream.regroup([list(range(i, 76, 7)) for i in range(7)])
    drawn(stream, position)
    torch.save(stream.state_dict(), tmp_path / "state.pt")
    expected = drawn(stream, STEPS_PER_BLOCK + 5)
    again = Stream(samples, seed=4, **options)
    drawn(again, 2)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert drawn(again, STEPS_PER_BLOCK + 5) == expected


def test_a_restored_stream_regroups_as_the_first_would_have():
    samples = numbered(12, 12)
    groups = [list(range(0, 24, 2)), list(range(1, 24, 2))]
    stream, again = (Stream(samples, batch=3, seed=0) for _ in range(2))
    stream.regroup(groups)
    again.load_state_dict(stream.state_dict())
    for each in (stream, again):
        each.regroup(groups[::-1])
    assert drawn(again, 9) == drawn(stream, 9)


def test_a_group_without_samples_is_refused():
    stream = Stream(numbered(10), batch=4, seed=0)
    with pytest.raises(ValueError, match="without samples"):
        stream.regroup([[0, 1, 2], []])


def groups_of(step: list[list[int]], *sizes: int) -> list[int]:
    """Which domain each batch of a step is from, by the indices of its samples."""
    ends = torch.tensor(sizes).cumsum(0)
    result = [torch.bucketize(torch.tensor(batch), ends, right=True).unique() for batch in step]
    assert all(len(domain) == 1 for domain in result)
    return [int(domain) for domain in result]


def test_the_order_without_a_choice_of_domains_is_what_it_has_always_been():
    # Other numbers here are other batches in every run that is kept.
    stream = Stream(numbered(9, 30, 5), batch=4, seed=5)
    steps = drawn(stream, 2 * STEPS_PER_BLOCK + 3)
    assert steps[0] == [[7, 0, 5, 6], [16, 33, 24, 13], [40, 39, 43, 41]]
    assert steps[STEPS_PER_BLOCK - 1] == [[5, 8, 2, 1], [38, 35, 14, 10], [39, 41, 43, 41]]
    assert steps[STEPS_PER_BLOCK] == [[4, 7, 0, 6], [24, 17, 20, 31], [43, 40, 39, 42]]
    assert steps[-1] == [[6, 4, 3, 2], [19, 12, 11, 32], [39, 41, 42, 40]]
    stream.regroup([list(range(i, 44, 4)) for i in range(4)])
    steps = drawn(stream, STEPS_PER_BLOCK + 2)
    assert steps[0] == [[40, 32, 8], [25, 1, 13], [2, 42, 6], [23, 35, 43]]
    assert steps[-1] == [[20, 8, 28], [9, 33, 21], [18, 22, 38], [3, 39, 11]]


@pytest.mark.parametrize("per_step", [0, 3, 4, 99])
def test_as_many_domains_a_step_as_there_are_is_all_of_them(per_step):
    all_of_them = drawn(Stream(numbered(9, 30, 5), batch=4, seed=5), STEPS_PER_BLOCK + 1)
    some = Stream(numbered(9, 30, 5), batch=4, seed=5, per_step=per_step)
    assert drawn(some, STEPS_PER_BLOCK + 1) == all_of_them


@pytest.mark.parametrize(("domains", "per_step"), [(5, 1), (5, 2), (7, 3), (12, 4), (90, 1)])
def test_a_step_draws_from_so_many_different_domains(domains, per_step):
    sizes = [3 + i % 4 for i in range(domains)]
    stream = Stream(numbered(*sizes), batch=2, seed=0, per_step=per_step)
    for step in drawn(stream, STEPS_PER_BLOCK + 9):
        assert [len(batch) for batch in step] == [2] * per_step
        assert len(set(groups_of(step, *sizes))) == per_step


# Rounds of 70 and 130 steps are longer than a block, those of 10 do not end with one.
@pytest.mark.parametrize(("domains", "per_step"), [(4, 2), (30, 3), (70, 1), (260, 2)])
def test_no_domain_comes_again_before_all_have_had_their_turn(domains, per_step):
    sizes = [2] * domains
    stream = Stream(numbered(*sizes), batch=1, seed=0, per_step=per_step)
    steps = 2 * STEPS_PER_BLOCK + domains // per_step
    order = [group for step in drawn(stream, steps) for group in groups_of(step, *sizes)]
    assert_in_rounds(order, list(range(domains)))
    assert order[:domains] != order[domains : 2 * domains]


def test_domains_that_do_not_divide_evenly_still_come_about_equally_often():
    sizes = [2] * 7
    stream = Stream(numbered(*sizes), batch=1, seed=0, per_step=3)
    steps = [groups_of(step, *sizes) for step in drawn(stream, 700)]
    counts = Counter(group for step in steps for group in step)
    assert all(abs(counts[group] - 300) < 30 for group in range(7))
    for first, second in zip(steps[::2], steps[1::2], strict=True):
        assert not set(first) & set(second)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_domain_that_is_drawn_now_and_then_goes_on_where_it_was(batch):
    sizes = (5, 9, 2, 30, 7)
    stream = Stream(numbered(*sizes), batch=batch, seed=3, per_step=2)
    orders: dict[int, list[int]] = {}
    for step in drawn(stream, 3 * STEPS_PER_BLOCK):
        for group, indices in zip(groups_of(step, *sizes), step, strict=True):
            orders.setdefault(group, []).extend(indices)
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    for group, order in orders.items():
        assert_in_rounds(order, list(range(ends[group], ends[group + 1])))


@pytest.mark.parametrize(
    ("per_step", "batch", "count", "sizes"),
    [(1, 8, 3, [8]), (3, 8, 10, [8, 8, 8]), (3, 3, 17, [2, 2, 2, 2, 1]), (3, 3, 50, [1] * 9)],
)
def test_regrouping_keeps_the_share_of_groups_and_the_whole_batch(per_step, batch, count, sizes):
    stream = Stream(numbered(*[10] * 10), batch=batch, seed=0, per_step=per_step)
    stream.regroup([list(range(i, 100, count)) for i in range(count)])
    orders: dict[int, list[int]] = {}
    for step in drawn(stream, 3 * STEPS_PER_BLOCK):
        assert [len(indices) for indices in step] == sizes
        for indices in step:
            (group,) = {i % count for i in indices}
            orders.setdefault(group, []).extend(indices)
    for group, order in orders.items():
        assert_in_rounds(order, list(range(group, 100, count)))


def labelled(*labels: list[int]) -> Samples:
    """Numbered samples with these labels, a list for each domain."""
    plain = numbered(*map(len, labels))
    return Samples(plain.x, torch.tensor([*chain(*labels)]), plain.domain)


@pytest.mark.parametrize("per_step", [0, 1])
@pytest.mark.parametrize("batch", [1, 6, 32])
def test_balanced_classes_come_equally_often_however_rare(batch, per_step):
    samples = labelled([0] * 20 + [1], [2] * 3 + [0] * 7 + [1] * 15)
    stream = Stream(samples, batch=batch, seed=0, balance=True, per_step=per_step)
    orders: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(3 * STEPS_PER_BLOCK):
        for one in next(stream):
            orders[int(one.domain[0])] += one.x.flatten().int().tolist()
    for domain, classes in ((0, [0, 1]), (1, [0, 1, 2])):
        assert_in_rounds(samples.y[orders[domain]].tolist(), classes)
        for label in classes:
            members = ((samples.y == label) & (samples.domain == domain)).nonzero().flatten()
            order = [i for i in orders[domain] if samples.y[i] == label]
            assert_in_rounds(order, members.tolist())


def test_without_balance_classes_come_as_they_are():
    stream = Stream(labelled([0] * 20 + [1]), batch=21, seed=0)
    for _ in range(3):
        (batch,) = next(stream)
        assert batch.y.bincount().tolist() == [20, 1]


def test_classes_take_turns_in_an_order_that_changes():
    stream = Stream(labelled([0, 1, 2] * 5), batch=3, seed=0, balance=True)
    orders = {tuple(next(stream)[0].y.tolist()) for _ in range(60)}
    assert len(orders) == 6


class Noted:
    """An augmentation that tells by what numbers it was called."""

    def __init__(self) -> None:
        self.numbers: list[float] = []

    def __call__(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        noise = torch.rand(len(x), 1, generator=generator)
        self.numbers.append(float(noise[0]))
        return x + noise


def test_training_batches_are_augmented_and_others_prepared():
    noted = Noted()
    samples = replace(numbered(6, 9), prepare=lambda x: -x, augment=noted)
    index = torch.tensor([3, 8])
    assert samples.batch(index).x.flatten().tolist() == [-3, -8]
    assert not noted.numbers
    varied = samples.batch(index, torch.Generator().manual_seed(0)).x.flatten()
    assert varied.int().tolist() == [3, 8]
    assert (varied != varied.round()).all()
    batches = next(Stream(samples, batch=2, seed=0))
    assert all((batch.x != batch.x.round()).all() for batch in batches)
    assert len(noted.numbers) == 2


def test_without_an_augmentation_a_generator_changes_nothing():
    samples = replace(numbered(6, 9), prepare=lambda x: -x)
    result = samples.batch(torch.tensor([3, 8]), torch.Generator().manual_seed(0)).x
    assert result.flatten().tolist() == [-3, -8]


@pytest.mark.parametrize("options", [{}, {"per_step": 1, "balance": True}], ids=str)
def test_the_augmentation_of_a_step_depends_on_its_position_alone(options):
    def numbers(*, after: int = 0) -> list[float]:
        noted = Noted()
        stream = Stream(replace(numbered(6, 9), augment=noted), batch=2, seed=0, **options)
        stream.load_state_dict({**stream.state_dict(), "drawn": after})
        torch.manual_seed(after)
        for _ in range(2 * STEPS_PER_BLOCK - after):
            next(stream)
        return noted.numbers

    straight = numbers()
    assert len(set(straight)) == len(straight)
    for after in (1, STEPS_PER_BLOCK - 1, STEPS_PER_BLOCK, STEPS_PER_BLOCK + 9):
        assert numbers(after=after) == straight[after:]


def test_after_regrouping_and_with_another_seed_the_augmentation_is_another():
    def first(*, seed: int, regrouped: bool) -> float:
        noted = Noted()
        stream = Stream(replace(numbered(6, 9), augment=noted), batch=2, seed=seed)
        if regrouped:
            stream.regroup(stream.groups[::-1])
        next(stream)
        return noted.numbers[0]

    cases = [(seed, regrouped) for seed in (0, 1) for regrouped in (False, True)]
    assert len({first(seed=seed, regrouped=regrouped) for seed, regrouped in cases}) == 4


@pytest.mark.parametrize(
    "options", [{}, {"per_step": 2}, {"balance": True}, {"per_step": 1, "balance": True}], ids=str
)
@pytest.mark.parametrize("position", [0, 3, STEPS_PER_BLOCK + 5])
def test_a_stream_begun_afresh_is_as_it_was_at_its_beginning(position, options):
    samples = numbered(7, 40, 13)
    stream, same = (Stream(samples, batch=3, seed=4, **options) for _ in range(2))
    expected = drawn(Stream(samples, batch=3, seed=4, **options), STEPS_PER_BLOCK + 2)
    drawn(stream, position)
    drawn(same, position)
    assert drawn(stream.fresh_copy(), STEPS_PER_BLOCK + 2) == expected
    # Nobody notices on the stream itself that another was begun.
    assert stream.drawn == position
    assert drawn(stream, STEPS_PER_BLOCK + 2) == drawn(same, STEPS_PER_BLOCK + 2)


@pytest.mark.parametrize("options", [{}, {"per_step": 2, "balance": True}], ids=str)
def test_a_stream_begun_afresh_draws_from_the_domains_whatever_the_groups_are_now(options):
    samples = numbered(9, 30, 5)
    stream = Stream(samples, batch=4, seed=5, **options)
    stream.regroup([list(range(i, 44, 4)) for i in range(4)])
    drawn(stream, 2)
    fresh = drawn(stream.fresh_copy(), 9)
    assert fresh == drawn(Stream(samples, batch=4, seed=5, **options), 9)
    assert [len(batch) for batch in fresh[0]] == [4] * options.get("per_step", 3)
    assert (stream.generation, stream.drawn, len(stream.groups)) == (1, 2, 4)


def test_a_stream_begun_afresh_augments_as_at_the_beginning():
    noted = Noted()
    stream = Stream(replace(numbered(6, 9), augment=noted), batch=2, seed=0)
    drawn(stream, 5)
    drawn(stream.fresh_copy(), 5)
    drawn(stream, 2)
    first, again, later = noted.numbers[:5], noted.numbers[5:10], noted.numbers[10:]
    assert again == first
    assert len({*first, *later}) == 7


def test_a_pooled_step_draws_from_all_domains_together_and_keeps_them_apart():
    stream = Stream(numbered(3, 40, 11), batch=9, seed=0, pooled=True)
    steps = [next(stream) for _ in range(2 * STEPS_PER_BLOCK)]
    for batches in steps:
        domains = [batch.domain.unique().tolist() for batch in batches]
        assert all(len(names) == 1 for names in domains)
        assert domains == sorted(domains)
        assert sum(len(batch.y) for batch in batches) == 9
        assert all(torch.equal(batch.group, batch.domain) for batch in batches)
    # A domain comes as often as it has samples: each sample once in six steps of nine.
    order = [i for step in steps for batch in step for i in batch.x.flatten().int().tolist()]
    assert_in_rounds(order, list(range(54)))
    assert min(len(batches) for batches in steps) < 3


def test_a_pooled_stream_goes_on_from_its_saved_place_and_begins_afresh():
    stream = Stream(numbered(3, 40, 11), batch=9, seed=0, pooled=True)
    first = drawn(stream, 5)
    state, rest = stream.state_dict(), drawn(stream, 70)
    other = Stream(numbered(3, 40, 11), batch=9, seed=0, pooled=True)
    other.load_state_dict(state)
    assert drawn(other, 70) == rest
    assert drawn(other.fresh_copy(), 5) == first
    other.regroup([[0, 1, 2, 3], [10, 11, 12, 13, 14]])
    assert [len(batch.y) for batch in next(other)] == [5, 4]


def test_a_batch_of_all_has_every_sample_of_every_group_in_every_step():
    stream = Stream(numbered(5, 7), batch=0, seed=0)
    steps = drawn(stream, 3)
    for step in steps:
        assert [sorted(batch) for batch in step] == [list(range(5)), list(range(5, 12))]
    assert steps[0] != steps[1]
    assert drawn(stream.fresh_copy(), 3) == steps
    stream.regroup([[0, 5], [1], [2, 3, 4]])
    assert [sorted(batch) for batch in drawn(stream, 1)[0]] == [[0, 5], [1], [2, 3, 4]]


def test_a_batch_of_all_is_repeated_for_methods_that_take_several():
    (step,) = drawn(Stream(numbered(5, 7), batch=0, seed=0, repeats=2), 1)
    assert [Counter(batch) for batch in step] == [
        Counter([*range(5), *range(5)]),
        Counter([*range(5, 12), *range(5, 12)]),
    ]


def texts(*sizes: int) -> Samples:
    """Texts of 1 to 32 tokens; the first token is the index of the text."""
    draw, start, domains = torch.Generator().manual_seed(0), 0, {}
    for number, size in enumerate(sizes):
        x = torch.full((size, 32), -1, dtype=torch.int32)
        for row, length in enumerate(torch.randint(1, 33, (size,), generator=draw).tolist()):
            x[row, :length] = start + row
        domains[f"domain{number}"] = Domain(x=x, y=torch.arange(size) % 2)
        start += size
    return pool_domains(domains)


def test_texts_are_padded_to_the_longest_of_their_step_and_have_similar_lengths():
    samples = texts(70, 90)
    widths = []
    for _, batches in zip(range(STEPS_PER_BLOCK), Stream(samples, batch=4, seed=0), strict=False):
        rows = torch.cat([batch.x for batch in batches])
        longest = int((rows >= 0).sum(dim=1).max())
        assert rows.shape == (8, longest)
        widths.append(longest)
    # The longest of eight random texts has 29 tokens on average.
    assert sum(widths) / len(widths) < 22
    assert sorted(widths) != widths


def test_bucketing_exchanges_texts_within_a_window_and_keeps_the_samples_that_the_seed_draws():
    samples = texts(70, 90)
    plain = replace(samples, x=type(samples.x)([samples.x.in_memory.long()]))
    bucketed, drawn_plainly = (Stream(each, batch=4, seed=3) for each in (samples, plain))
    ids = [
        [[batch.x[:, 0].tolist() for batch in next(stream)] for _ in range(STEPS_PER_BLOCK)]
        for stream in (bucketed, drawn_plainly)
    ]
    for group in (0, 1):
        for start in range(0, STEPS_PER_BLOCK, 16):
            windows = [
                Counter(i for step in steps[start : start + 16] for i in step[group])
                for steps in ids
            ]
            assert windows[0] == windows[1]
    assert ids[0] != ids[1]


def test_no_step_has_a_text_twice_when_a_domain_is_small():
    stream = Stream(texts(6, 60), batch=4, seed=0)
    for _ in range(STEPS_PER_BLOCK):
        small = next(stream)[0].x[:, 0].tolist()
        assert len(set(small)) >= 2
    whole = Stream(texts(6, 60), batch=0, seed=0)
    assert sorted(next(whole)[0].x[:, 0].tolist()) == list(range(6))


@pytest.mark.parametrize("options", [{}, {"pooled": True}, {"balance": True}, {"per_step": 1}])
def test_a_stream_of_texts_goes_on_where_it_was_saved(options):
    samples = texts(40, 50)
    stream = Stream(samples, batch=4, seed=1, **options)
    for _ in range(70):
        next(stream)
    other = Stream(samples, batch=4, seed=1, **options)
    other.load_state_dict(stream.state_dict())
    for _ in range(5):
        for ours, theirs in zip(next(stream), next(other), strict=True):
            assert torch.equal(ours.x, theirs.x)
            assert torch.equal(ours.y, theirs.y)


def mapped(*, augment=None) -> Samples:
    """Samples that are not held in memory, such as those of the decode cache."""
    samples = numbered(70, 90)
    x = Rows(list(samples.x.in_memory.split([70, 90])), max_bytes=0)
    return replace(samples, x=x, augment=augment)


def of_numbers(x, generator):
    return x + torch.rand(len(x), 1, generator=generator)


def test_batches_that_are_read_ahead_are_the_same_and_do_not_count_yet():
    for options in ({}, {"per_step": 1}, {"balance": True}, {"pooled": True}):
        streams = [Stream(mapped(augment=of_numbers), batch=8, seed=0, **options) for _ in "ab"]
        plain, ahead = streams
        groups = [[0, 3, 5, 100], [1, 2, 159]]
        with ahead.reading_ahead():
            for step in range(STEPS_PER_BLOCK + 9):
                if step in (5, STEPS_PER_BLOCK):
                    for stream in streams:
                        stream.regroup(groups if step == 5 else [*groups, [7]])
                for batches in zip(next(plain), next(ahead), strict=True):
                    assert all(map(torch.equal, *batches))
                assert ahead.state_dict()["drawn"] == plain.state_dict()["drawn"]
        assert next(plain)[0].x.equal(next(ahead)[0].x)


def test_a_stream_that_reads_ahead_continues_from_a_saved_position():
    stream = Stream(mapped(), batch=8, seed=0)
    with stream.reading_ahead():
        first = drawn(stream, 5)
        saved = stream.state_dict()
        second = drawn(stream, 4)
        stream.load_state_dict(saved)
        assert drawn(stream, 4) == second
    assert first != second


def test_the_thread_has_the_number_of_threads_of_the_run_and_ends_with_it():
    seen = []

    def note(x, generator):
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return x

    before = threading.active_count()
    for threads in (1, 2):
        with preserve_torch_state(threads, cuda=False):
            stream = Stream(mapped(augment=note), batch=8, seed=0)
            with stream.reading_ahead():
                drawn(stream, 3)
        assert threading.active_count() == before
    assert [count for _, count in seen] == 4 * [1] + 4 * [2]
    main = threading.current_thread().name
    assert [name == main for name, _ in seen] == 2 * [True, False, False, False]


def test_an_error_in_the_thread_is_raised_by_the_stream():
    def fail(x, generator):
        if threading.current_thread() is not threading.main_thread():
            raise DataError("rows.npy: cannot be read")
        return x

    stream = Stream(mapped(augment=fail), batch=8, seed=0)
    before = threading.active_count()
    with pytest.raises(DataError, match=r"^rows\.npy: cannot be read$"), stream.reading_ahead():
        drawn(stream, 2)
    assert threading.active_count() == before


def test_samples_in_memory_are_read_without_a_thread_unless_they_are_large_and_augmented():
    large = Domain(x=torch.zeros(4, 3, 128, 128, dtype=torch.uint8), y=torch.zeros(4).long())
    cases = [(numbered(6, 9), False), (mapped(), True), (pool_domains({"a": large}), False)]
    cases += [(replace(pool_domains({"a": large}), augment=of_numbers), True)]
    for samples, expected in cases:
        stream = Stream(samples, batch=2, seed=0)
        with stream.reading_ahead():
            assert (stream.thread is not None) == expected


@pytest.mark.parametrize("pooled", [False, True])
def test_no_text_of_a_batch_is_cut_and_the_longest_has_no_padding(pooled):
    lengths = [1 + (5 * i) % 17 for i in range(60)]
    x = torch.full((60, 20), -1, dtype=torch.int32)
    for row, length in enumerate(lengths):
        x[row, :length] = row
    y = torch.zeros(30).long()
    samples = pool_domains({"one": Domain(x[:30], y), "two": Domain(x[30:], y)})
    stream = Stream(samples, batch=4, seed=0, pooled=pooled)
    widths = set()
    for _ in range(2 * STEPS_PER_BLOCK):
        texts = [text for batch in next(stream) for text in batch.x]
        found = [(int(text[0]), int((text >= 0).sum())) for text in texts]
        assert found == [(row, lengths[row]) for row, _ in found]
        assert {len(text) for text in texts} == {max(length for _, length in found)}
        widths.add(len(texts[0]))
    assert len(widths) > 5
