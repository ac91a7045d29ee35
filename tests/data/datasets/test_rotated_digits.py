import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.datasets import load_digits

from afield.data.datasets.rotated_digits import ANGLES, rotated_digits
from afield.data.domains import missing_class_warnings


@pytest.fixture(scope="module")
def domains():
    return rotated_digits.load()


def test_it_has_all_1797_digits_in_six_domains_of_about_equal_size(domains):
    assert tuple(domains) == rotated_digits.domains
    sizes = [len(domain.y) for domain in domains.values()]
    assert sum(sizes) == len(load_digits().target) == 1797
    assert max(sizes) - min(sizes) <= 1
    assert all(domain.x.shape[1:] == (1, 16, 16) for domain in domains.values())
    assert all(domain.x.dtype == torch.uint8 for domain in domains.values())


def test_no_domain_lacks_a_digit(domains):
    assert missing_class_warnings(domains, rotated_digits.classes) == []


def test_the_labels_of_all_domains_are_those_of_the_digits(domains):
    labels = torch.cat([domain.y for domain in domains.values()])
    assert labels.bincount().tolist() == np.bincount(load_digits().target).tolist()


def test_it_is_the_same_whatever_was_drawn_before(domains):
    torch.manual_seed(5)
    again = rotated_digits.load()
    for name, domain in domains.items():
        assert torch.equal(domain.x, again[name].x)
        assert torch.equal(domain.y, again[name].y)


def originals() -> np.ndarray:
    """The digits upright, brought to the frame by another interpolation than the dataset's."""
    enlarged = ndimage.zoom(
        load_digits().images, (1, 1.5, 1.5), order=1, grid_mode=True, mode="nearest"
    )
    return np.pad(enlarged, ((0, 0), (2, 2), (2, 2)))


def flat(pictures: np.ndarray) -> np.ndarray:
    """Pictures as unit vectors around their mean, so that a product is a correlation."""
    rows = pictures.reshape(len(pictures), -1).astype(float)
    rows = rows - rows.mean(axis=1, keepdims=True)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_every_digit_is_in_exactly_one_domain_turned_by_its_angle(domains):
    upright, target = originals(), load_digits().target
    used = []
    for angle, domain in zip(ANGLES, domains.values(), strict=True):
        turned = ndimage.rotate(upright, angle, axes=(1, 2), reshape=False, order=1)
        likeness = flat(domain.x[:, 0].numpy()) @ flat(turned).T
        source = likeness.argmax(axis=1)
        assert likeness.max(axis=1).min() > 0.99
        assert (target[source] == domain.y.numpy()).all()
        used.extend(source.tolist())
    assert sorted(used) == list(range(len(target)))


def test_turning_loses_little_ink(domains):
    ink = [domain.x.float().mean().item() for domain in domains.values()]
    assert min(ink) > 0.95 * max(ink)


def test_the_brightest_pixels_use_the_whole_range(domains):
    assert all(domain.x.max() > 240 for domain in domains.values())
    assert all(domain.x.min() == 0 for domain in domains.values())


def test_upright_digits_have_the_ink_of_the_originals(domains):
    upright = originals()
    result = domains["0deg"].x[:, 0].numpy()
    expected = upright[(flat(result) @ flat(upright).T).argmax(axis=1)].sum() * 255 / 16
    assert result.astype(float).sum() == pytest.approx(expected, rel=1e-3)
