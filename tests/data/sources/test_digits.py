"""The digits of scikit-learn, read without importing it."""

import numpy as np
from sklearn.datasets import load_digits

from afield.data.sources.digits import read_digits


def test_the_digits_equal_those_of_scikit_learn():
    images, labels = read_digits()
    expected = load_digits()
    assert np.array_equal(images, expected.images)
    assert np.array_equal(labels, expected.target)
    assert labels.dtype == expected.target.dtype
