"""Bags of words: stored n-grams, the vocabulary of the training texts, and TF-IDF vectors."""

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from afield.data.bag_of_words import (
    ALL_HASHES,
    COUNTS,
    HASHES,
    BagScaling,
    Vocabulary,
    encode_ngrams,
)
from afield.data.modalities.text import Text
from afield.data.samples import Rows
from afield.errors import SpecError
from tests.texts import reviews

TEXTS = reviews()["text"].tolist()


def stored(texts, most=256):
    return torch.stack([torch.from_numpy(Text("ngrams", most).tokenize(t)[1:]) for t in texts])


def test_an_ngram_is_stored_with_its_hash_and_count():
    numbers, is_cut = encode_ngrams("red red blue", 64)
    counts = sorted((numbers % COUNTS)[numbers // COUNTS < HASHES].tolist())
    # red, blue, "red red" and "red blue"
    assert counts == [1, 1, 1, 2]
    assert not is_cut
    assert numbers.max() // COUNTS < ALL_HASHES
    assert len(np.unique(numbers // COUNTS)) == len(numbers)
    assert (encode_ngrams("Red RED blue", 64)[0] == numbers).all()


def test_a_count_does_not_run_into_the_hash():
    numbers, _ = encode_ngrams("no " * 3000, 64)
    assert (numbers % COUNTS).max() == COUNTS - 1
    assert set(numbers // COUNTS) == set(encode_ngrams("no no", 64)[0] // COUNTS)


def test_a_long_text_keeps_words_and_characters_of_its_beginning():
    long, short = " ".join(f"word{i}" for i in range(100)), " ".join(f"word{i}" for i in range(9))
    numbers, is_cut = encode_ngrams(long, 40)
    assert is_cut
    assert len(numbers) == 40
    words = numbers // COUNTS < HASHES
    assert words.sum() == 20
    beginning = encode_ngrams(short, 400)[0]
    assert np.isin(numbers[words][:9], beginning).all()
    # Words take what characters leave.
    assert not encode_ngrams("aa bb cc dd ee ff", 64)[1]


def test_every_text_has_an_ngram():
    for text in ("!", "?!", "7", "日本語", "🙂"):
        assert len(encode_ngrams(text, 64)[0])


def test_word_vectors_are_those_of_scikit_learn():
    bag = BagScaling.fit(Rows([stored(TEXTS)]))
    ours = bag(stored(TEXTS))[:, : bag.vocabulary.words]
    theirs = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, min_df=2, token_pattern=r"\b\w+\b"
    ).fit_transform(TEXTS)
    assert ours.shape == theirs.shape
    # The order of the columns differs; inner products of texts do not depend on it.
    np.testing.assert_allclose(ours @ ours.T, (theirs @ theirs.T).toarray(), atol=1e-5)


def test_words_and_characters_have_length_one_each():
    bag = BagScaling.fit(Rows([stored(TEXTS)]))
    vectors, words = bag(stored(TEXTS)), bag.vocabulary.words
    for part in (vectors[:, :words], vectors[:, words:]):
        np.testing.assert_allclose(part.norm(dim=1), 1.0, atol=1e-5)
    unknown = bag(stored(["xyzzy"]))
    assert not unknown[:, :words].any()


def test_the_sparse_matrix_equals_the_vectors():
    rows = Rows([stored(TEXTS)])
    bag = BagScaling.fit(rows)
    sparse = bag.sparse(rows)
    np.testing.assert_array_equal(sparse.toarray(), bag(stored(TEXTS)).numpy())
    assert sparse.nnz < 0.5 * sparse.shape[0] * sparse.shape[1]


def test_padding_changes_nothing():
    bag = BagScaling.fit(Rows([stored(TEXTS)]))
    torch.testing.assert_close(bag(stored(TEXTS, 256)), bag(stored(TEXTS, 300)))


def test_the_vocabulary_has_what_most_of_the_training_texts_have(monkeypatch):
    monkeypatch.setattr("afield.data.bag_of_words.MAX_COLUMNS", (3, 4))
    vocabulary = Vocabulary.fit(Rows([stored(["a b", "a b", "a c", "a d d"])]))
    assert vocabulary.texts == 4
    assert vocabulary.words == 3
    assert sorted(vocabulary.frequencies[:3]) == [2, 2, 4]
    # Of the characters, only " a " and " b " are in two texts.
    assert len(vocabulary.hashes) == 5


def test_a_vocabulary_of_one_text_keeps_its_ngrams():
    bag = BagScaling.fit(Rows([stored(["one text"])]))
    assert bag(stored(["one text"])).norm() > 1


def test_a_scaling_is_restored_from_its_numbers():
    bag = BagScaling.fit(Rows([stored(TEXTS)]))
    other = BagScaling.fit(Rows([stored(TEXTS[:9])]))
    again = other.restored(bag.to_dict())
    assert again == bag
    torch.testing.assert_close(again(stored(TEXTS)), bag(stored(TEXTS)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("texts", "hashes", "frequencies", "message"),
    [
        (2, (), (), "hashes must be from 0"),
        (2, (-1, 3), (1, 1), "hashes must be from 0"),
        (2, (1, ALL_HASHES), (1, 1), "hashes must be from 0"),
        (2, (3, 3), (1, 1), "ascending"),
        (2, (1, 5, 3), (1, 1, 1), "ascending"),
        (2, (1, 3), (1,), "a number for every hash"),
        (2, (1, 3), (0, 1), "from 1 to the number of texts"),
        (2, (1, 3), (3, 1), "from 1 to the number of texts"),
    ],
)
def test_an_impossible_vocabulary_is_refused(texts, hashes, frequencies, message):
    with pytest.raises(SpecError, match=message):
        Vocabulary(texts, hashes, frequencies)
