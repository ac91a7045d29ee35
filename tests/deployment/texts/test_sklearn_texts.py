"""The scikit-learn classifier on lists of strings."""

import pickle

import numpy as np
import pytest
from sklearn.model_selection import LeaveOneGroupOut, cross_val_score

from afield.deployment.sklearn import DomainClassifier
from afield.errors import DataError, SpecError
from tests.texts import reviews, write_encoder

FRAME = reviews(30)
Y, DOMAINS = FRAME["label"].to_numpy(), FRAME["domain"].to_numpy()


def test_lists_series_and_arrays_of_strings_give_the_same_classifier():
    proba = []
    for texts in (FRAME["text"].tolist(), FRAME["text"], FRAME["text"].to_numpy()):
        classifier = DomainClassifier("erm", steps=40, random_state=0)
        classifier.fit(texts, Y, domains=DOMAINS)
        proba.append(classifier.predict_proba(texts))
    np.testing.assert_array_equal(proba[0], proba[1])
    np.testing.assert_array_equal(proba[0], proba[2])
    assert classifier.score(FRAME["text"].tolist(), Y) > 0.6
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(FRAME["text"]), proba[0])


@pytest.mark.slow
def test_an_encoder_of_hugging_face_can_be_fine_tuned_and_cross_validated(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    classifier = DomainClassifier(
        "erm", backbone=f"hf:{encoder}", steps=3, random_state=0, settings={"tokens": 12}
    )
    scores = cross_val_score(
        classifier,
        FRAME["text"].tolist(),
        Y,
        cv=LeaveOneGroupOut(),
        groups=DOMAINS,
        error_score="raise",
    )
    assert len(scores) == 3


def test_samples_that_are_no_texts_are_refused_in_one_line():
    texts = FRAME["text"].tolist()
    classifier = DomainClassifier("erm", steps=2, random_state=0)
    with pytest.raises(DataError, match="X: sample 1: no text"):
        classifier.fit([texts[0], " ", *texts[2:]], Y, domains=DOMAINS)
    with pytest.raises(SpecError, match="one string; give a list"):
        classifier.fit("good", ["good"])
    with pytest.raises(SpecError, match=r"use small:text, or an encoder"):
        DomainClassifier("erm", backbone="small:mlp", steps=2).fit(texts, Y)
    classifier.fit(texts, Y, domains=DOMAINS)
    with pytest.raises(SpecError, match="was fitted to texts"):
        classifier.predict(np.zeros((2, 3)))
