"""The network for sounds: loudness does not matter, and masks are for training only."""

import torch

from afield.networks.backbone import network
from afield.networks.sound_features import MAX_MASKED, mask_bands, pool_time
from tests.networks.inputs import inputs

SHAPE = (1, 16, 24)


def test_a_louder_recording_has_the_same_features():
    features = network("small:audio", SHAPE, 3).features.eval()
    x = inputs(SHAPE)
    torch.testing.assert_close(features(5 * x + 7), features(x), rtol=1e-3, atol=1e-4)
    assert features(torch.full((1, *SHAPE), -9.0)).isfinite().all()


def test_a_band_of_every_recording_is_masked_in_training():
    torch.manual_seed(0)
    x = torch.ones(2000, 1, 50, 4)
    masked = (mask_bands(x, axis=2) == 0)[:, 0]
    assert (masked.any(2) == masked.all(2)).all()
    counts = masked[:, :, 0].sum(1)
    assert counts.max() <= MAX_MASKED * 50 + 1
    assert abs(counts.float().mean() / 50 - MAX_MASKED / 2) < 0.01
    edges = masked[:, 1:, 0] != masked[:, :-1, 0]
    assert edges.sum(1).max() <= 2
    # Every place is masked at some time.
    assert masked[:, :, 0].any(0).all()


def test_training_repeats_with_the_seed_and_evaluation_has_no_masks():
    model = network("small:audio", SHAPE, 3)
    x = inputs(SHAPE)
    torch.manual_seed(1)
    first, second = model(x), model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(model(x), first)
    assert not torch.equal(first, second)
    model.eval()
    torch.testing.assert_close(model(x), model(x))


def test_pooled_features_do_not_depend_on_the_order_of_frames():
    x = inputs((3, 2, 8))
    torch.testing.assert_close(pool_time(x.flip(3)), pool_time(x))
    torch.testing.assert_close(
        pool_time(x)[:, 6:], x.std(dim=3, correction=0).flatten(1), atol=1e-4, rtol=1e-3
    )
