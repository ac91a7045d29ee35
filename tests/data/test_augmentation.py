"""Stored pictures become inputs: torchvision is the yardstick where it is matched exactly."""

import re
from itertools import permutations

import pytest
import torch
import torchvision.transforms.functional as tv
from torchvision.transforms import RandomResizedCrop, v2

from afield.data.augmentation import (
    CPU_CHUNK_FLOATS,
    LEVEL_SETTINGS,
    LEVELS,
    MAX_BATCHED_CROP_VALUES,
    Augmentation,
    AugmentParams,
    Resize,
    apply_colors,
    apply_params,
    color_matrices,
    crop_batched,
    crop_one_by_one,
    draw_params,
)
from afield.data.scaling import Scaling
from afield.errors import SpecError
from tests.pairs import every_pair

HALF = Scaling(torch.tensor(127.5), torch.tensor(127.5))
PLAIN = Scaling(torch.tensor(0.0), torch.tensor(1.0))
IMAGENET = Scaling(
    torch.tensor([123.7, 116.3, 103.5])[:, None, None],
    torch.tensor([58.4, 57.1, 57.4])[:, None, None],
)
# Grey levels of 255: torchvision's luma of red is 0.2989, ours, as Pillow's, 0.299.
NEAR = 0.03
AS_IT_IS = (1.0, 1.0, 1.0, 0.0)
# Drawn with seed 3: crops of four images with a side of 40, and of their colors the sums of both
# matrices and the first row of the first.
LIGHT_BOXES = [[3, 1, 36, 36], [1, 5, 37, 35], [2, 3, 37, 37], [0, 0, 40, 40]]
LIGHT_COLORS = [
    [2.95054, 0.31904, 0.98351, 0.0, 0.0],
    [3.0289, 0.12745, 1.00963, 0.0, 0.0],
    [3.27482, -0.20645, 1.09161, 0.0, 0.0],
    [2.79075, 0.10768, 0.93025, 0.0, 0.0],
]
FULL_BOXES = [[4, 1, 34, 33], [1, 8, 37, 32], [2, 4, 36, 36], [1, 0, 39, 40]]
FULL_COLORS = [
    [2.6938, 1.11495, 0.43927, 0.62732, -0.16866],
    [3.04882, 0.42023, 0.2892, -0.1954, 0.92247],
    [3.85207, -0.64695, 0.08022, 0.54754, 0.65626],
    [2.39488, 0.30041, 0.46223, 0.68963, -0.35357],
]
OPERATIONS = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int, channels: int, side: int, low: int = 0, high: int = 256) -> torch.Tensor:
    """Random bytes as the cache hands them over: channels last in memory."""
    stored = torch.randint(low, high, (n, side, side, channels), generator=seeded(n + side))
    return stored.to(torch.uint8).permute(0, 3, 1, 2)


def smooth(n: int, channels: int, side: int) -> torch.Tensor:
    """Pictures in which neighbours are alike, as in photographs."""
    return tv.resize(pictures(n, channels, 6), [side, side], antialias=True)


def coloured(x, factors=AS_IT_IS, scaling=PLAIN):
    """Pictures with one and the same colour operations applied, and nothing else."""
    n, channels = x.shape[:2]
    matrices, lifts = color_matrices(torch.tensor([factors] * n), channels=channels)
    pixels = x.permute(0, 2, 3, 1).float().contiguous()
    out = torch.empty_like(pixels)
    apply_colors(pixels, matrices, lifts, scaling, out)
    return out.permute(0, 3, 1, 2)


def by_torchvision(x, factors, order):
    """The same by torchvision, on floats, so that nothing is rounded in between."""
    result = x / 255
    for i in order:
        result = OPERATIONS[i](result, factors[i])
    return result * 255


def whole(x: torch.Tensor, flip: bool = False) -> AugmentParams:
    """A plan that takes all of every picture and leaves the colours."""
    n, channels, side, _ = x.shape
    maps = color_matrices(torch.tensor([AS_IT_IS] * n), channels=channels)
    return AugmentParams(torch.tensor([[0, 0, side, side]] * n), torch.tensor([flip] * n), *maps)


# Colours


def only(which: int, factor: float) -> list[float]:
    return [*AS_IT_IS[:which], factor, *AS_IT_IS[which + 1 :]]


@pytest.mark.parametrize(
    ("factors", "order", "low", "high"),
    [
        *((only(i, factor), [i], 70, 180) for i in range(3) for factor in (0.7, 1.0, 1.3)),
        # In any order where nothing clamps.
        *(((1.2, 0.75, 1.25, 0.0), order, 90, 160) for order in permutations(range(3))),
        # A third of a turn of hue.
        ((1, 1, 1, -1 / 3), [3], 0, 256),
        ((1, 1, 1, 1 / 3), [3], 0, 256),
    ],
)
def test_operations_are_torchvisions(factors, order, low, high):
    x = pictures(4, 3, 16, low=low, high=high)
    expected = by_torchvision(x, factors, order)
    torch.testing.assert_close(coloured(x, factors), expected, atol=NEAR, rtol=0)


def test_hue_comes_first():
    x = pictures(4, 3, 16, low=110, high=140)
    expected = coloured(coloured(x, (1.0, 1.0, 1.0, 0.2)), (1.2, 0.75, 1.25, 0.0))
    torch.testing.assert_close(coloured(x, (1.2, 0.75, 1.25, 0.2)), expected, atol=1e-3, rtol=0)


def test_grey_pictures_are_torchvisions():
    x = pictures(4, 3, 16)
    expected = 255 * tv.rgb_to_grayscale(x / 255, num_output_channels=3)
    torch.testing.assert_close(coloured(x, (1.0, 1.0, 0.0, 0.0)), expected, atol=NEAR, rtol=0)


def test_nothing_asked_for_is_the_scaling_alone():
    x = pictures(4, 3, 16)
    for scaling in (HALF, IMAGENET):
        torch.testing.assert_close(coloured(x, scaling=scaling), scaling(x), atol=1e-5, rtol=0)


def test_colours_that_leave_the_range_are_clamped_to_it():
    x = pictures(4, 3, 16)
    factors = (1.3, 1.0, 1.0, 0.0)
    expected = IMAGENET(by_torchvision(x, factors, [0]))
    result = coloured(x, factors, scaling=IMAGENET)
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=0)
    assert (result == IMAGENET(torch.full_like(x, 255))).any()


def test_each_picture_has_its_own_colours():
    x = pictures(2, 3, 8, low=90, high=160)
    factors = torch.tensor([[0.8, 1.0, 1.3, 0.1], [1.2, 0.9, 0.0, -0.2]])
    matrices, lifts = color_matrices(factors, channels=3)
    plan = whole(x)._replace(matrices=matrices, mean_matrices=lifts)
    together = apply_params(plan, x, **settings(8))
    for i in range(2):
        alone = coloured(x[i : i + 1], factors[i].tolist())
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-3, rtol=0)


@pytest.mark.parametrize("channels", [1, 2])
def test_other_channels_take_brightness_and_contrast(channels):
    x = pictures(3, channels, 10, low=90, high=160)
    values = x.float() * 1.2
    expected = 0.8 * values + 0.2 * values.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(coloured(x, (1.2, 0.8, 1.0, 0.0)), expected, atol=NEAR, rtol=0)


@pytest.mark.parametrize("level", LEVELS)
def test_factors_fill_the_stated_ranges_evenly(level):
    widest = LEVEL_SETTINGS[level].jitter
    _, _, matrices, lifts = draw_params(LEVEL_SETTINGS[level], 20000, 3, 64, seeded())
    matrices, lifts = matrices.double(), lifts.double()
    both, mean = matrices.sum(2)[:, 0], lifts.sum(2)[:, 0]
    brightness, contrast = both + mean, both / (both + mean)
    # Grey goes through brightness and contrast only; the two other axes through saturation too.
    saturation = (matrices.det().clamp(min=0) / both**3).sqrt()
    in_colour = saturation > 0.1
    for values, width in zip(
        (brightness, contrast, saturation[in_colour]), widest[:3], strict=True
    ):
        assert abs(values.mean() - 1) < 0.01
        assert abs(values.min() - (1 - width)) < 0.002
        assert abs(values.max() - (1 + width)) < 0.002
    luma = torch.tensor([[0.299, 0.587, 0.114]] * 3).double()
    unturned = luma + saturation[:, None, None] * (torch.eye(3).double() - luma)
    turns = (matrices / both[:, None, None])[in_colour]
    turns = unturned[in_colour].inverse() @ turns
    sine = (turns[:, 1, 0] - turns[:, 0, 1]) * 3**0.5 / 2
    cosine = (turns.diagonal(dim1=1, dim2=2).sum(1) - 1) / 2
    hue = torch.atan2(sine, cosine) / (2 * torch.pi)
    assert abs(hue.mean()) < 0.01
    assert abs(hue.min() + widest[3]) < 0.002
    assert abs(hue.max() - widest[3]) < 0.002


@pytest.mark.parametrize("channels", [1, 2])
def test_other_channels_are_never_mixed_by_what_is_drawn(channels):
    matrices = draw_params(LEVEL_SETTINGS["full"], 200, channels, 28, seeded()).matrices
    expected = matrices[:, :1, :1] * torch.eye(channels)
    torch.testing.assert_close(matrices, expected, atol=1e-6, rtol=0)
    assert matrices[:, 0, 0].std() > 0.1


# Hue


def turned(*turns: float) -> torch.Tensor:
    """The matrices of a hue alone."""
    return color_matrices(torch.tensor([(1.0, 1.0, 1.0, turn) for turn in turns]), channels=3)[0]


def test_hue_shifts_add_up_and_a_full_turn_is_the_identity():
    torch.testing.assert_close(turned(0.0, 1.0), torch.eye(3).repeat(2, 1, 1), atol=1e-6, rtol=0)
    first, second, both = turned(0.1, 0.25, 0.35)
    torch.testing.assert_close(first @ second, both, atol=1e-6, rtol=0)


def test_grey_stays_grey_and_the_mean_of_the_channels_is_kept_whatever_the_hue():
    matrices = turned(-0.5, -0.3, -0.1, 0.0, 0.2, 0.4)
    grey = torch.full((3, 1), 90.0)
    torch.testing.assert_close(matrices @ grey, grey.expand(6, 3, 1), atol=1e-3, rtol=0)
    x = pictures(1, 3, 8).float().flatten(2)
    expected = x.mean(1).expand(6, -1)
    torch.testing.assert_close((matrices @ x).mean(1), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("shift", [-0.3, -0.2, -0.1, 0.1, 0.2, 0.3])
def test_any_turn_of_hue_is_nearer_to_torchvisions_than_none(shift):
    x = pictures(4, 3, 16)
    expected = 255 * tv.adjust_hue(x / 255, shift)
    ours, none = ((result - expected).abs().mean() for result in (coloured(x, (1, 1, 1, shift)), x))
    assert ours < 0.7 * none


# Crops


def settings(size, scaling=PLAIN):
    return {"size": size, "scaling": scaling}


def boxes_of(level: str, n: int, side: int = 256) -> torch.Tensor:
    return draw_params(LEVEL_SETTINGS[level], n, 3, side, seeded()).boxes


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("side", [5, 28, 73, 256])
def test_crops_stay_inside(level, side):
    top, left, height, width = boxes_of(level, 5000, side).unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (height > 0).all()
    assert (width > 0).all()
    assert int((top + height).max()) == side
    assert int((left + width).max()) == side


def test_every_place_of_a_crop_is_equally_likely():
    boxes = boxes_of("full", 20000, side=10)
    for start, length in (boxes[:, ::2].unbind(1), boxes[:, 1::2].unbind(1)):
        places = start[length == 8].bincount() / (length == 8).sum()
        torch.testing.assert_close(places, torch.full((3,), 1 / 3), atol=0.03, rtol=0)


@pytest.mark.parametrize("level", LEVELS)
def test_areas_and_ratios_are_within_the_stated_ranges_and_fill_them(level):
    height, width = boxes_of(level, 20000)[:, 2:].double().unbind(1)
    for values, (low, high) in (
        (height * width / 256**2, LEVEL_SETTINGS[level].area),
        (width / height, LEVEL_SETTINGS[level].ratio),
    ):
        # Sides are rounded to whole pixels.
        assert low - 0.01 < values.min() < low + 0.02
        assert high - 0.02 < values.max() < high + 0.01


@pytest.mark.parametrize("level", LEVELS)
def test_crops_are_distributed_as_torchvisions(level):
    n, picture = 4000, torch.empty(3, 256, 256)
    area, ratio = LEVEL_SETTINGS[level].area, LEVEL_SETTINGS[level].ratio
    with torch.random.fork_rng():
        torch.manual_seed(1)
        drawn = [RandomResizedCrop.get_params(picture, area, ratio) for _ in range(n)]
    ours, theirs = boxes_of(level, n).double(), torch.tensor(drawn).double()
    for number in (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 3] / b[:, 2],
        lambda b: b[:, 0],
        lambda b: b[:, 1],
    ):
        a, b = number(ours).sort()[0], number(theirs).sort()[0]
        ends = torch.cat((a, b))
        gap = (
            torch.searchsorted(a, ends, right=True) - torch.searchsorted(b, ends, right=True)
        ) / n
        # Kolmogorov and Smirnov's distance: beyond this one time in ten thousand by chance.
        assert gap.abs().max() < 2.2 * (2 / n) ** 0.5


def test_the_whole_picture_is_taken_when_no_try_fits():
    level = LEVEL_SETTINGS["full"].__class__((1.0, 1.0), (1.2, 1.3), (0.0,) * 4, flip=0.0, gray=0.0)
    boxes = draw_params(level, 50, 3, 100, seeded()).boxes
    assert boxes.tolist() == [[0, 0, 100, 100]] * 50


@pytest.mark.parametrize("crops", [crop_one_by_one, crop_batched])
@pytest.mark.parametrize(("side", "size"), [(73, 64), (20, 33), (64, 16)])
def test_a_crop_is_torchvisions(crops, side, size):
    x = pictures(3, 3, side)
    boxes = torch.tensor([[1, 2, side - 3, side - 2], [0, 0, side, side], [5, 4, 9, 11]])
    flips = torch.tensor([False, True, True])
    result = crops(x, boxes, flips, size).permute(0, 3, 1, 2)
    for picture, box, flip, ours in zip(x, boxes.tolist(), flips, result, strict=True):
        expected = tv.resized_crop(picture, *box, [size, size], antialias=True)
        expected = tv.hflip(expected) if flip else expected
        torch.testing.assert_close(ours, expected.float(), atol=2, rtol=0)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(("side", "size"), [(256, 224), (73, 64), (28, 28)])
def test_crops_at_once_and_one_by_one_agree_within_two_grey_levels(channels, side, size):
    x = pictures(4, channels, side)
    plan = draw_params(LEVEL_SETTINGS["full"], 4, channels, side, seeded())
    a, b = (crops(x, plan.boxes, plan.flips, size) for crops in (crop_one_by_one, crop_batched))
    assert a.shape == b.shape == (4, size, size, channels)
    assert a.is_contiguous()
    assert b.is_contiguous()
    torch.testing.assert_close(a, b, atol=2, rtol=0)


def test_flips_happen_half_the_time_and_never_in_light():
    full, light = (
        draw_params(LEVEL_SETTINGS[level], 10000, 3, 64, seeded()).flips for level in LEVELS[::-1]
    )
    assert abs(full.float().mean() - 0.5) < 0.02
    assert not light.any()


def test_a_flip_mirrors_left_and_right():
    for side in (16, 64):  # At once and one by one.
        x = pictures(3, 3, side)
        there = apply_params(whole(x, flip=True), x, **settings(side))
        torch.testing.assert_close(there, x.flip(3).float(), atol=1e-3, rtol=0)


def test_one_picture_in_ten_is_grey_in_full_and_none_in_light():
    x = smooth(1, 3, 12).expand(1000, -1, -1, -1)
    for level, share in (("full", 0.1), ("light", 0.0)):
        result = Augmentation(level, 12, PLAIN)(x, seeded())
        grey = ((result.amax(1) - result.amin(1)) < 0.01).flatten(1).all(1)
        assert abs(grey.float().mean() - share) < (0.03 if share else 1e-9)


# Whole


@pytest.mark.parametrize(
    ("channels", "sizes", "level"),
    every_pair([1, 2, 3], [(28, 28), (17, 15), (73, 64)], sorted(LEVELS)),
)
def test_any_pictures_become_inputs_of_the_right_form(channels, sizes, level):
    side, size = sizes
    result = Augmentation(level, size, HALF)(smooth(5, channels, side), seeded())
    assert result.shape == (5, channels, size, size)
    assert result.dtype == torch.float32
    assert result.permute(0, 2, 3, 1).is_contiguous()
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert result.min() >= -1
    assert result.max() <= 1
    assert result.std() > 0.1


@pytest.mark.parametrize("level", LEVELS)
def test_values_stay_in_the_scaled_range_of_each_channel(level):
    x = pictures(40, 3, 32)
    result = Augmentation(level, 28, IMAGENET)(x, seeded())
    low, high = (IMAGENET(torch.tensor(end)) for end in (0, 255))
    assert (result >= low).all()
    assert (result <= high).all()
    # Both ends are reached: these pictures have all values, and brightness pushes beyond them.
    assert (result == high).flatten(2).any(2).any(0).all()


@pytest.mark.parametrize("level", LEVELS)
def test_the_memory_layout_of_what_is_stored_changes_nothing(level):
    for side in (28, 73):
        x = smooth(4, 3, side)
        results = [Augmentation(level, 24, HALF)(form, seeded()) for form in (x, x.contiguous())]
        assert torch.equal(*results)


def test_the_same_generator_state_gives_the_same_bytes_and_goes_on():
    x = pictures(6, 3, 73)
    augmented = Augmentation("full", 64, HALF)
    first, second = seeded(3), seeded(3)
    results = [augmented(x, first) for _ in range(2)]
    assert all(map(torch.equal, results, [augmented(x, second) for _ in range(2)]))
    assert not torch.equal(*results)
    assert not torch.equal(results[0], augmented(x, seeded(4)))


def test_how_much_is_drawn_depends_on_the_number_of_pictures_only():
    states = []
    for level in LEVELS:
        for x in (pictures(6, 3, 73), pictures(6, 1, 28), torch.zeros_like(pictures(6, 3, 32))):
            generator = seeded()
            Augmentation(level, 28, HALF)(x, generator)
            states.append(generator.get_state())
    assert all(torch.equal(state, states[0]) for state in states)


def test_neither_the_global_generator_nor_the_stored_pictures_are_touched():
    state = torch.get_rng_state()
    for side in (28, 73):
        for x in (pictures(4, 3, side), pictures(4, 3, side).float()):
            before = x.clone()
            Augmentation("full", side, HALF)(x, seeded())
            Resize(side, HALF)(x)
            assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("side", "size"), [(28, 28), (128, 112)])
def test_a_batch_is_its_pictures_one_by_one(side, size):
    # More than a piece, so that the seams are seen.
    n = 30 if side == 128 else 5
    assert side == 28 or n * 3 * size**2 > CPU_CHUNK_FLOATS
    x = smooth(n, 3, side)
    plan = draw_params(LEVEL_SETTINGS["full"], n, 3, side, seeded())
    together = apply_params(plan, x, **settings(size, IMAGENET))
    for i in range(n):
        own = AugmentParams(*(part[i : i + 1] for part in plan))
        alone = apply_params(own, x[i : i + 1], **settings(size, IMAGENET))
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-5, rtol=0)


def test_on_another_device_nothing_is_read_back():
    # Tensors of the meta device have no values: whoever asks for one gets an error.
    scaling = Scaling(*(part.to("meta") for part in (HALF.mean, HALF.std)))
    x = pictures(4, 3, 73).to("meta")
    result = Augmentation("full", 64, scaling)(x, seeded())
    assert result.device.type == "meta"
    assert result.shape == Resize(64, scaling)(x).shape == (4, 3, 64, 64)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("level", LEVELS)
def test_a_gpu_gives_what_the_cpu_gives(level):
    scaling = Scaling(HALF.mean.cuda(), HALF.std.cuda())
    for x in (smooth(8, 3, 73), smooth(8, 1, 28)):
        there = Augmentation(level, 64, scaling)(x.cuda(), seeded()).cpu()
        torch.testing.assert_close(
            there, Augmentation(level, 64, HALF)(x, seeded()), atol=0.05, rtol=0
        )
        there = Resize(64, scaling)(x.cuda()).cpu()
        torch.testing.assert_close(there, Resize(64, HALF)(x), atol=0.02, rtol=0)


def test_both_ways_to_crop_are_seen_by_these_tests():
    assert 3 * 32**2 <= MAX_BATCHED_CROP_VALUES < 3 * 64**2


def test_an_empty_batch_stays_empty():
    assert Augmentation("full", 28, HALF)(pictures(0, 3, 32), seeded()).shape == (0, 3, 28, 28)


def test_an_unknown_level_is_reported_with_a_guess():
    with pytest.raises(
        SpecError, match=re.escape("no augmentation level 'ful'; did you mean 'full'?")
    ):
        Augmentation("ful", 64, HALF)
    with pytest.raises(SpecError, match="known: light, full"):
        Augmentation("heavy", 64, HALF)


# Evaluation


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(("side", "size"), [(73, 64), (256, 224), (20, 28)])
def test_evaluation_resizes_as_torchvision(channels, side, size):
    x = pictures(3, channels, side)
    expected = v2.functional.resize(x, [size, size], antialias=True)
    result = Resize(size, HALF)(x)
    # torchvision 0.20 rounds some bytes to the next one; 1 / 127.5 is the distance of two bytes.
    early = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
    torch.testing.assert_close(result, HALF(expected), rtol=0, atol=1.001 / 127.5 if early else 0)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert result.dtype == torch.float32


@pytest.mark.parametrize("scaling", [HALF, IMAGENET])
def test_evaluation_only_scales_what_has_the_right_size(scaling):
    x = pictures(3, 3, 28)
    assert torch.equal(Resize(28, scaling)(x), scaling(x))
    assert torch.equal(Resize(28, scaling)(x.contiguous()), scaling(x))


@pytest.mark.parametrize(
    ("level", "boxes", "colors"),
    [("light", LIGHT_BOXES, LIGHT_COLORS), ("full", FULL_BOXES, FULL_COLORS)],
)
def test_the_drawn_crops_and_colors_are_as_ever(level, boxes, colors):
    params = draw_params(LEVEL_SETTINGS[level], 4, 3, 40, seeded(3))
    assert params.boxes.tolist() == boxes
    assert params.flips.tolist() == [False] * 4
    both = torch.stack((params.matrices.sum((1, 2)), params.mean_matrices.sum((1, 2))), dim=1)
    both = torch.cat((both, params.matrices[:, 0]), dim=1)
    torch.testing.assert_close(both, torch.tensor(colors), rtol=1e-4, atol=1e-5)
