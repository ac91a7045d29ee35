"""The classifier keeps scikit-learn's contract, and is trained as every other model of afield."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import parametrize_with_checks

from afield import registry
from afield.deployment.sklearn import DomainClassifier
from afield.errors import (
    DataError,
    DivergedError,
    IncompatibleMethodError,
    SpecError,
    UnknownNameError,
)
from afield.runs.store import Store
from afield.studies.benchmarking import train
from tests.pairs import OF_IMAGES
from tests.texts import reviews, write_encoder

CLASSES, PLACES = ("cup", "jug", "pot"), ("ann", "bob", "cyd", "dan")


def quick(method: str = "erm", **options) -> DomainClassifier:
    return DomainClassifier(method, **{"steps": 20, "batch": 8, "random_state": 0, **options})


@pytest.fixture(scope="module")
def data():
    """Three classes that lie apart, in four places that shift them a little."""
    generator = np.random.default_rng(0)
    n = 96
    label, place = np.arange(n) % 3, np.arange(n) // 3 % 4
    x = 3 * np.eye(5)[label] + 0.3 * place[:, None] + 0.3 * generator.normal(size=(n, 5))
    return x, np.array(CLASSES)[label], np.array(PLACES)[place]


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.slow
@parametrize_with_checks([DomainClassifier(steps=80)])
def test_all_checks_of_scikit_learn_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_the_check_that_scipy_has_to_be_asked_for_passes_as_well():
    """It is skipped above: scipy reads this from the environment, when it is imported."""
    code = (
        "from sklearn.utils.estimator_checks import check_array_api_input as check\n"
        "from afield.sklearn import DomainClassifier\n"
        "check('DomainClassifier', DomainClassifier(steps=20), array_namespace='numpy',"
        " expect_only_array_outputs=False)\n"
    )
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize("method", sorted({*registry.names("methods")} - OF_IMAGES))
def test_every_method_learns_predicts_and_comes_back_from_a_pickle(data, method):
    x, y, place = data
    # The usual penalty, for thousands of steps, leaves little of the risk in sixty.
    settings = {"iga.penalty": 0.1} if method == "iga" else None
    fitted = quick(method, lr=0.01, steps=60, settings=settings).fit(x, y, domains=place)
    result = fitted.predict_proba(x)
    assert result.shape == (len(x), 3)
    np.testing.assert_allclose(result.sum(axis=1), 1.0)
    assert fitted.score(x, y) > 0.8
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(x), result)


@pytest.mark.parametrize("average", registry.names("averages"))
def test_every_average_can_be_deployed(data, average):
    x, y, place = data
    fitted = quick(average=average, lr=0.01, steps=60).fit(x, y, domains=place)
    assert fitted.score(x, y) > 0.8


def test_the_weights_are_those_of_the_same_run_on_a_file(data, tmp_path):
    x, y, place = data
    options = {"steps": 20, "batch": 8, "vrex.penalty": 3.0}
    np.savez(tmp_path / "mine.npz", X=x.astype(np.float32), y=y, domain=place)
    store = Store(tmp_path / "runs")
    trial = int(check_random_state(7).randint(2**31 - 1))
    kept = train(
        tmp_path / "mine.npz", "vrex", trial=trial, average="ema", settings=options, store=store
    )
    fitted = quick("vrex", average="ema", random_state=7, settings={"vrex.penalty": 3.0})
    fitted.fit(x, y, domains=place)
    expected = store.weights(kept.run)
    result = fitted.model_.state_dict()
    assert set(result) == set(expected)
    assert all(torch.equal(value, expected[name]) for name, value in result.items())
    for ours, theirs in zip(fitted.checkpoints_, kept.checkpoints, strict=True):
        pairs = [(ours.score(name, "probe"), theirs.score(name, "probe")) for name in theirs.scores]
        assert all(one.accuracy == two.accuracy and one.loss == two.loss for one, two in pairs)
        assert ours.logs == theirs.logs


def test_a_random_state_repeats_itself_and_another_is_another(data):
    x, y, place = data

    def probabilities(state):
        return quick(random_state=state).fit(x, y, domains=place).predict_proba(x)

    np.testing.assert_array_equal(probabilities(3), probabilities(3))
    np.testing.assert_array_equal(probabilities(np.random.RandomState(3)), probabilities(3))
    assert not np.array_equal(probabilities(3), probabilities(4))
    assert not np.array_equal(probabilities(None), probabilities(None))


def test_domains_matter(data):
    x, y, place = data
    apart, together = (quick("groupdro").fit(x, y, domains=d) for d in (place, None))
    assert apart.domains_.tolist() == list(PLACES)
    assert together.domains_.tolist() == ["all"]
    assert not np.array_equal(apart.predict_proba(x), together.predict_proba(x))


@pytest.mark.parametrize(
    "form", [list, pd.Series, lambda d: pd.Series(d, dtype="category"), lambda d: d.astype(object)]
)
def test_domains_come_in_any_form_of_one_a_sample(data, form):
    x, y, place = data
    expected = quick().fit(x, y, domains=place)
    result = quick().fit(x, y, domains=form(place))
    np.testing.assert_array_equal(result.predict_proba(x), expected.predict_proba(x))


def test_one_domain_will_do_where_a_method_needs_no_other(data):
    x, y, _ = data
    assert quick("arith", lr=0.01, steps=60).fit(x, y).score(x, y) > 0.8
    for method in ("mldg", "metareg"):
        with pytest.raises(
            IncompatibleMethodError, match=f"{method} .*give fit the domain of each sample"
        ):
            quick(method).fit(x, y)


@pytest.mark.parametrize("wanted", [{}, {"domains": True}, {"domains": "groups"}])
def test_groups_of_the_splitter_are_the_domains_of_the_fit(data, routing, wanted):
    x, y, place = data
    classifier = quick().set_fit_request(**wanted) if wanted else quick()
    params = {"groups": place} | ({} if "groups" in wanted.values() else {"domains": place})
    result = cross_validate(
        classifier, x, y, cv=LeaveOneGroupOut(), params=params, return_estimator=True
    )
    seen = [fitted.domains_.tolist() for fitted in result["estimator"]]
    assert seen == [[name for name in PLACES if name != out] for out in PLACES]


def test_a_fit_that_must_not_take_domains_refuses_them(data, routing):
    x, y, place = data
    deaf = make_pipeline(StandardScaler(), quick().set_fit_request(domains=None))
    with pytest.raises(ValueError, match="domains"):
        deaf.fit(x, y, domains=place)


def test_cross_validation_without_routing_passes_domains_on(data):
    x, y, place = data
    scores = cross_val_score(
        quick("arith", lr=0.01, steps=60),
        x,
        y,
        groups=place,
        cv=LeaveOneGroupOut(),
        params={"domains": place},
    )
    assert len(scores) == 4
    assert scores.min() > 0.8


def test_a_pipeline_passes_domains_on(data, routing):
    x, y, place = data
    fitted = make_pipeline(StandardScaler(), quick()).fit(x, y, domains=place)
    assert fitted[-1].domains_.tolist() == list(PLACES)
    scores = cross_val_score(
        make_pipeline(StandardScaler(), quick(lr=0.01, steps=60)),
        x,
        y,
        cv=LeaveOneGroupOut(),
        params={"groups": place, "domains": place},
    )
    assert scores.min() > 0.8


@pytest.mark.slow
def test_a_search_goes_over_methods_steps_and_settings(data, routing):
    x, y, place = data
    grid = [
        {"method": ["erm"], "steps": np.array([1, 60])},
        {"method": ["vrex"], "settings": [{"vrex.penalty": 1e5}, None], "lr": np.array([0.01])},
    ]
    search = GridSearchCV(quick(lr=0.01), grid, cv=LeaveOneGroupOut())
    search.fit(x, y, groups=place, domains=place)
    worse, better = search.cv_results_["mean_test_score"][:2]
    assert worse < better
    assert search.best_params_ == {"method": "erm", "steps": 60}
    assert search.best_estimator_.domains_.tolist() == list(PLACES)
    assert search.predict(x).tolist() == search.best_estimator_.predict(x).tolist()


def test_a_clone_has_the_settings_and_nothing_else(data):
    x, y, place = data
    fitted = quick("vrex", settings={"vrex.penalty": 2.0}, average="ema").fit(x, y, domains=place)
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params()
    assert not hasattr(fresh, "model_")


def test_the_network_is_a_plain_module_that_says_the_same(data):
    x, y, place = data
    fitted = quick().fit(x, y, domains=place)
    with torch.no_grad():
        logits = fitted.model_(fitted.prepare_(torch.from_numpy(x).float()))
    np.testing.assert_allclose(logits.softmax(1).numpy(), fitted.predict_proba(x), atol=1e-6)
    assert next(fitted.model_.parameters()).dtype == torch.float32
    assert not fitted.model_.training


def test_a_row_has_the_same_result_alone_and_among_others(data):
    x, y, place = data
    fitted = quick().fit(x, y, domains=place)
    alone = np.concatenate([fitted.predict_proba(x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_allclose(alone, fitted.predict_proba(x), rtol=1e-7)


@pytest.fixture
def pictures():
    """A bright or a dark half, in two places that are lighter and darker."""
    generator = np.random.default_rng(0)
    label, place = np.arange(48) % 2, np.arange(48) // 24
    grey = generator.integers(0, 60, (48, 1, 12, 10)) + 60 * place[:, None, None, None]
    for i, side in enumerate(label):
        grey[i, :, :6] += 120 * side
        grey[i, :, 6:] += 120 * (1 - side)
    return grey.astype(np.uint8), label, place


@pytest.mark.slow
def test_pictures_are_taken_as_bytes_or_numbers_in_any_usual_order(pictures):
    x, y, place = pictures
    fitted = quick(lr=0.01, steps=60).fit(x, y, domains=place)
    assert fitted.score(x, y) > 0.9
    assert fitted.classes_.dtype == y.dtype
    expected = fitted.predict_proba(x)
    for other in (x[:, 0], x.transpose(0, 2, 3, 1)):
        same = quick(lr=0.01, steps=60).fit(other, y, domains=place)
        np.testing.assert_array_equal(same.predict_proba(other), expected)
    numbers = quick(lr=0.01, steps=60).fit(x / 255, y, domains=place)
    assert numbers.score(x / 255, y) > 0.9


def test_pictures_can_be_brought_to_size_and_come_back_from_a_pickle(pictures):
    x, y, place = pictures
    fitted = quick(settings={"size": 16}).fit(x, y, domains=place)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))


def test_a_named_backbone_sees_the_samples(data):
    x, y, place = data
    with pytest.raises(SpecError, match="takes images"):
        quick(backbone="small:cnn").fit(x, y, domains=place)
    assert quick(backbone="small:mlp").fit(x, y, domains=place).model_.width == 64


def test_samples_of_another_shape_are_refused(data, pictures):
    x, y, place = pictures
    fitted = quick(steps=2).fit(x, y, domains=place)
    with pytest.raises(SpecError, match=r"shape \(1, 8, 10\).* fitted to \(1, 12, 10\)"):
        fitted.predict(x[:, :, :8])
    rows, label, _ = data
    with pytest.raises(ValueError, match="4 features, but DomainClassifier is expecting 5"):
        quick(steps=2).fit(rows, label).predict(rows[:, :4])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "ermm"}, "did you mean 'erm'"),
        ({"average": "emma"}, "did you mean 'ema'"),
        ({"steps": 0}, "steps=0"),
        ({"steps": "many"}, "steps='many'"),
        ({"settings": {"vrex.penalty": 1.0}}, "'vrex' is not in this run"),
        ({"settings": {"penalty": 1.0}}, "penalty"),
        ({"settings": {"steps": 5}}, "steps is a parameter of its own"),
    ],
)
def test_wrong_settings_are_reported_when_it_is_fitted(data, wrong, message):
    x, y, place = data
    with pytest.raises((SpecError, UnknownNameError), match=message) as caught:
        quick(**wrong).fit(x, y, domains=place)
    assert "\n" not in str(caught.value)


def test_domains_that_do_not_fit_are_refused(data):
    x, y, place = data
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick().fit(x, y, domains=place[1:])
    unknown = place.astype(object)
    unknown[3] = None
    with pytest.raises(SpecError, match="sample 3 has no domain"):
        quick().fit(x, y, domains=unknown)
    alone = place.copy()
    alone[0] = "eve"
    with pytest.raises(SpecError, match="'eve' has 1 sample"):
        quick().fit(x, y, domains=alone)


def test_a_domain_that_lacks_a_class_is_fine(data):
    x, y, place = data
    kept = (place != "ann") | (y == "cup")
    fitted = quick().fit(x[kept], y[kept], domains=place[kept])
    assert fitted.predict_proba(x).shape == (len(x), 3)


def test_a_training_that_diverges_says_so(data):
    x, y, place = data
    with pytest.raises(DivergedError, match="smaller lr"):
        quick(lr=1e30).fit(x, y, domains=place)


def test_it_leaves_threads_generators_and_folders_alone(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    x, y, place = data
    before = x.copy()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(5)
        np.random.seed(5)  # noqa: NPY002
        expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
        torch.manual_seed(5)
        np.random.seed(5)  # noqa: NPY002
        quick().fit(x, y, domains=place).predict(x)
        assert torch.equal(torch.rand(3), expected[0])
        assert np.array_equal(np.random.rand(3), expected[1])  # noqa: NPY002
        assert torch.get_num_threads() == 2
        assert not list(tmp_path.iterdir())
        assert np.array_equal(x, before)
    finally:
        torch.set_num_threads(1)


def test_a_data_frame_gives_its_names(data):
    x, y, place = data
    frame = pd.DataFrame(x, columns=list("abcde"))
    fitted = quick().fit(frame, y, domains=place)
    assert fitted.feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[list("edcba")])


@pytest.mark.slow
def test_it_is_a_module_of_afield_that_is_imported_when_it_is_used():
    code = (
        "import sys, afield\n"
        "assert not {'torch', 'sklearn'} & set(sys.modules)\n"
        "print(afield.sklearn.DomainClassifier().method)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "arith\n"


@pytest.mark.slow
def test_processes_of_scikit_learn_can_share_the_work(data):
    x, y, place = data
    options = {"groups": place, "cv": LeaveOneGroupOut(), "params": {"domains": place}}
    one, two = (cross_val_score(quick(), x, y, n_jobs=n, **options) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


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
    with pytest.raises(SpecError, match=r"use bag:, or an encoder"):
        DomainClassifier("erm", backbone="small:mlp", steps=2).fit(texts, Y)
    classifier.fit(texts, Y, domains=DOMAINS)
    with pytest.raises(SpecError, match="was fitted to texts"):
        classifier.predict(np.zeros((2, 3)))
