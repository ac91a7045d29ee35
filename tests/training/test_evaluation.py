"""Scores against slow computations of the same, and a model that is left as it was."""

import copy
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    recall_score,
    roc_auc_score,
)
from torch import nn

from afield.data.domains import Domain
from afield.networks.inference import MAX_CHUNK_SAMPLES, BatchPredictor
from afield.training.evaluation import Evaluator, combine_scores, without_details
from afield.training.scores import Checkpoint, Score, Scores

CLASSES, FEATURES = 4, 3
DETAILS = ("metrics", "confusion", "groups", "unseen_classes", "unseen_confidence")


def domain(n: int, *, classes: list[int] | None = None, seed: int = 0) -> Domain:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes or list(range(CLASSES)))
    y = labels[torch.randint(len(labels), (n,), generator=generator)]
    return Domain(torch.randn(n, FEATURES, generator=generator), y)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def noisy() -> nn.Module:
    """A model that does something else while it is trained."""
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES))


def slow(model: nn.Module, portion: Domain) -> Score:
    logits = model(portion.x).detach().double()
    predicted, y = logits.argmax(1).numpy(), portion.y.numpy()
    return Score(
        accuracy=accuracy_score(y, predicted),
        balanced_accuracy=recall_score(y, predicted, labels=np.unique(y), average="macro"),
        loss=log_loss(y, logits.softmax(1).numpy(), labels=range(CLASSES)),
        size=len(y),
        calibration_error=slow_calibration_error(logits.softmax(1).amax(1).numpy(), predicted == y),
        accuracy_at_90=slow_accuracy_at_90(logits.softmax(1).amax(1).numpy(), predicted == y),
    )


def slow_calibration_error(confidence: np.ndarray, hits: np.ndarray) -> float:
    """Guo et al. (2017): share of each bin × distance of its accuracy from its confidence."""
    total = 0.0
    for i in range(15):
        inside = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(hits[inside].mean() - confidence[inside].mean())
    return total


def slow_accuracy_at_90(confidence: np.ndarray, hits: np.ndarray) -> float:
    return hits[np.argsort(-confidence)[: math.ceil(round(0.9 * len(hits), 6))]].mean()


def assert_close(result: Score | None, expected: Score) -> None:
    assert result is not None
    names = [field.name for field in fields(Score) if field.name not in DETAILS]
    numbers, expected_numbers = (
        {name: getattr(score, name) for name in names} for score in (result, expected)
    )
    assert numbers == pytest.approx(expected_numbers, rel=1e-5)


def test_scores_are_those_of_a_slow_computation():
    portions = {
        ("photo", "main"): domain(90),
        ("sketch", "probe"): domain(7, seed=1),
        ("photo", "probe"): domain(31, seed=2),
        ("sketch", "sample"): domain(1, seed=3),
    }
    model = linear()
    scores = Evaluator(portions).evaluate(model)
    assert set(scores) == {"photo", "sketch"}
    for (name, part), portion in portions.items():
        assert_close(getattr(scores[name], part), slow(model, portion))
    assert scores["photo"].sample is None
    assert scores["sketch"].main is None


@pytest.mark.parametrize("classes", [[0, 2], [3], [1, 2, 3]])
def test_a_class_missing_from_a_portion_does_not_count_in_its_balanced_accuracy(classes):
    portion = domain(40, classes=classes)
    model = linear()
    scores = Evaluator({("a", "main"): domain(20, seed=5), ("b", "main"): portion}).evaluate(model)
    assert_close(scores["b"].main, slow(model, portion))


def test_balanced_accuracy_counts_classes_and_accuracy_counts_samples():
    always_zero = nn.Linear(FEATURES, CLASSES)
    nn.init.zeros_(always_zero.weight)
    always_zero.bias.data = torch.tensor([1.0, 0.0, 0.0, 0.0])
    portion = Domain(torch.zeros(10, FEATURES), torch.tensor([0] * 9 + [1]))
    (score,) = Evaluator({("a", "main"): portion}).evaluate(always_zero).values()
    assert score.main.accuracy == pytest.approx(0.9)
    assert score.main.balanced_accuracy == pytest.approx(0.5)


def test_many_samples_at_once_are_scored_like_a_few():
    portions = {
        ("a", "main"): domain(2 * MAX_CHUNK_SAMPLES + 3),
        ("b", "main"): domain(MAX_CHUNK_SAMPLES - 1, seed=1),
    }
    model = linear()
    together = Evaluator(portions).evaluate(model)
    for name, part in portions:
        assert_close(together[name].main, slow(model, portions[name, part]))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_examined_in_evaluation_mode_and_left_as_it_was(training):
    portion = domain(50)
    model = noisy()
    model(domain(30, seed=9).x)
    expected = slow(copy.deepcopy(model).eval(), portion)
    model.train(training)
    before = copy.deepcopy(model.state_dict())
    scores = Evaluator({("a", "main"): portion}).evaluate(model)
    assert_close(scores["a"].main, expected)
    assert all(module.training is training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_evaluation_has_no_gradient_and_does_not_keep_a_model_from_training():
    model = linear()
    evaluation = Evaluator({("a", "main"): domain(50)})
    evaluation.evaluate(model)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    nn.functional.cross_entropy(model(evaluation.x.in_memory), evaluation.y).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_an_evaluation_of_no_splits_does_not_call_the_model():
    def never(*_: object) -> None:
        raise AssertionError

    model = linear()
    model.register_forward_hook(never)
    assert Evaluator({}).evaluate(model) == {}


def test_merged_scores_keep_what_was_read_on_either_occasion():
    one, two, three, four = (Score(i / 10, i / 10, 1.0, i) for i in range(4))
    first = {"b": Scores(probe=one), "a": Scores(sample=two)}
    second = {"a": Scores(main=three, probe=four), "c": Scores(main=one)}
    merged = combine_scores(first, second, ("a", "b", "c", "d"))
    assert merged == {
        "a": Scores(main=three, probe=four, sample=two),
        "b": Scores(probe=one),
        "c": Scores(main=one),
    }
    assert list(merged) == ["a", "b", "c"]


def test_of_a_part_that_was_read_twice_the_second_reading_counts():
    zero, other = Score(0.0, 0.0, 0.0, 0), Score(1.0, 1.0, 0.0, 1)
    merged = combine_scores({"a": Scores(main=other)}, {"a": Scores(main=zero)}, ("a",))
    assert merged["a"].main == zero


def test_a_checkpoint_has_no_score_for_what_was_not_read():
    score = Score(0.5, 0.5, 1.0, 4)
    checkpoint = Checkpoint(1, {"a": Scores(probe=score)}, {})
    assert checkpoint.score("a", "probe") == score
    assert checkpoint.score("a", "main") is None
    assert checkpoint.score("elsewhere", "probe") is None


def test_a_frozen_part_in_evaluation_mode_stays_so():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[0].eval()
    Evaluator({("a", "main"): Domain(torch.randn(8, 2), torch.arange(8) % 2)}).evaluate(model)
    assert not model[0].training


def test_a_model_that_accepts_the_domain_is_read_on_its_sources_both_ways():
    class Telling(nn.Module):
        """Class 0, unless the second domain is given."""

        domains = ("first", "second")

        def forward(self, x, domain=None):
            return torch.eye(3)[torch.full((len(x),), 0 if domain != 1 else 1)]

    x, y = torch.zeros(6, 2), torch.tensor([0, 1, 1, 1, 0, 1])
    names = [("first", "probe"), ("other", "probe"), ("second", "probe"), ("other", "main")]
    result = Evaluator({key: Domain(x, y) for key in names}).evaluate(Telling())
    assert result["first"].probe.accuracy == result["first"].known.accuracy == pytest.approx(1 / 3)
    assert result["second"].probe.accuracy == pytest.approx(1 / 3)
    assert result["second"].known.accuracy == pytest.approx(2 / 3)
    assert result["second"].known.size == 6
    assert result["other"].known is None


def test_a_plain_model_is_given_no_domain():
    result = Evaluator({("first", "probe"): Domain(torch.zeros(4, 2), torch.zeros(4).long())})
    assert result.evaluate(nn.Linear(2, 3))["first"].known is None


class Saying(nn.Module):
    """Says for every sample what stands in it: the logits themselves."""

    def forward(self, x):
        return x


def said(confidences: list[float], hits: list[bool]) -> Domain:
    """Samples of two classes that a model which says them is right about, or wrong, so surely."""
    p = torch.tensor(confidences)
    x = torch.stack([p.log(), (1 - p).log()], dim=1)
    return Domain(x, torch.tensor([0 if hit else 1 for hit in hits]))


def score_of(portion: Domain) -> Score:
    return Evaluator({("a", "main"): portion}).evaluate(Saying())["a"].main


def test_the_calibration_error_is_the_one_computed_by_hand():
    # Two bins: 0.61 and 0.62 (one of two right), 0.9, 0.91 and 0.92 (all right).
    result = score_of(said([0.61, 0.9, 0.91, 0.62, 0.92], [True, True, True, False, True]))
    assert result.calibration_error == pytest.approx((abs(1 - 1.23) + abs(3 - 2.73)) / 5)


def test_a_model_that_is_right_as_often_as_it_says_has_no_calibration_error():
    result = score_of(said([0.75] * 8, [True] * 6 + [False] * 2))
    assert result.calibration_error == pytest.approx(0.0, abs=1e-6)


def test_the_accuracy_at_90_leaves_out_the_tenth_that_is_least_sure():
    confidences = [0.6 + 0.01 * i for i in range(20)]
    hits = [False, False, True, *[True] * 16, False]
    assert score_of(said(confidences, hits)).accuracy_at_90 == pytest.approx(17 / 18)


@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 19])
def test_nine_tenths_are_rounded_up(size):
    """Of less than ten nobody is left out: the coverage is at least what it is called."""
    confidences = [0.99 - 0.01 * i for i in range(size)]
    hits = [True] * (size - 1) + [False]
    kept = math.ceil(9 * size / 10)
    right = min(kept, size - 1)
    assert score_of(said(confidences, hits)).accuracy_at_90 == pytest.approx(right / kept)


def test_among_equally_sure_samples_the_order_is_nothing():
    hits = np.array([True] * 12 + [False] * 8)
    result = {
        score_of(
            said([0.8] * 20, np.random.default_rng(i).permutation(hits).tolist())
        ).accuracy_at_90
        for i in range(5)
    }
    assert list(result) == [pytest.approx(12 / 20)]
    # Six of nine places go to seven equals of whom three are right.
    mixed = said([0.9] * 3 + [0.7] * 7, [True, True, False, *[True] * 3, *[False] * 4])
    assert score_of(mixed).accuracy_at_90 == pytest.approx((2 + 6 * 3 / 7) / 9)


def test_confidence_is_that_of_each_portion_alone():
    portions = {
        ("a", "main"): said([0.9] * 10, [True] * 9 + [False]),
        ("b", "main"): said([0.6] * 5 + [0.99] * 5, [False] * 5 + [True] * 5),
    }
    together = Evaluator(portions).evaluate(Saying())
    for (name, _), portion in portions.items():
        assert_close(together[name].main, score_of(portion))


def test_outputs_that_are_no_numbers_give_scores_all_the_same():
    result = score_of(Domain(torch.full((4, 2), math.nan), torch.tensor([0, 1, 0, 1])))
    assert math.isnan(result.loss)
    assert result.calibration_error == result.accuracy_at_90 == result.accuracy


def test_confidence_is_not_looked_at_where_nobody_reads_it():
    portion = {("a", "main"): domain(20)}
    result = Evaluator(portion, confidence=False).evaluate(linear())["a"].main
    assert result.calibration_error is None
    assert result.accuracy_at_90 is None
    assert result.accuracy == Evaluator(portion).evaluate(linear())["a"].main.accuracy


class Listener(BatchPredictor):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[torch.Tensor]] = []

    def reset(self) -> None:
        self.seen.append([])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen[-1].append(x.clone())
        return torch.zeros(len(x), CLASSES)


def test_a_batch_predictor_gets_one_split_at_a_time_in_batches_of_64():
    portions = {("a", "main"): domain(150), ("b", "probe"): domain(70, seed=1)}
    model = Listener()
    Evaluator(portions).evaluate(model)
    assert [[len(batch) for batch in split] for split in model.seen] == [[64, 64, 22], [64, 6]]
    for split, portion in zip(model.seen, portions.values(), strict=True):
        given, own = torch.cat(split), portion.x
        assert not torch.equal(given, own)
        assert torch.equal(given[given[:, 0].argsort()], own[own[:, 0].argsort()])


def test_the_order_of_the_samples_is_drawn_from_the_trial():
    portions = {("a", "main"): domain(100), ("a", "probe"): domain(100)}
    orders = []
    for trial in (0, 0, 1):
        model = Listener()
        Evaluator(portions, trial=trial).evaluate(model)
        orders += [torch.cat(split) for split in model.seen]
    assert torch.equal(orders[0], orders[2])
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[4])


def test_predictions_from_batches_are_scored_against_the_labels_of_their_own_samples():
    class Transparent(BatchPredictor):
        """The linear network as a batch predictor."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    portions = {("a", "main"): domain(150), ("b", "probe"): domain(70, seed=1)}
    scores = Evaluator(portions).evaluate(Transparent())
    assert_close(scores["a"].main, slow(linear(), portions["a", "main"]))
    assert_close(scores["b"].probe, slow(linear(), portions["b", "probe"]))


@pytest.mark.parametrize("classes", [[0, 1, 2, 3], [0, 2], [3]])
def test_details_of_a_split_are_those_of_scikit_learn(classes):
    model, split = linear(), domain(60, classes=classes)
    score = Evaluator({("other", "main"): domain(9, seed=3), ("a", "main"): split}).evaluate(model)
    result = score["a"].main
    predicted, y = model(split.x).argmax(1).numpy(), split.y.numpy()
    assert result.confusion.matrix.tolist() == (
        confusion_matrix(y, predicted, labels=range(CLASSES)).tolist()
    )
    per_class = recall_score(y, predicted, labels=np.unique(y), average=None, zero_division=0)
    assert result.metrics == pytest.approx(
        {
            "macro_f1": f1_score(y, predicted, labels=np.unique(y), average="macro"),
            "worst_class": per_class.min(),
        }
    )


def test_two_classes_have_an_auroc_unless_a_split_has_only_one_of_them():
    torch.manual_seed(1)
    model = nn.Linear(FEATURES, 2)
    split, one = domain(50, classes=[0, 1]), domain(9, classes=[1])
    # Ties count half.
    split = Domain(split.x.round(), split.y)
    result = Evaluator({("a", "main"): split, ("b", "main"): one}).evaluate(model)
    margin = model(split.x).diff(dim=1)[:, 0].detach().numpy()
    expected = roc_auc_score(split.y.numpy(), margin)
    assert result["a"].main.metrics["auroc"] == pytest.approx(expected)
    assert "auroc" not in result["b"].main.metrics


def test_many_classes_have_counts_per_class_instead_of_a_matrix():
    classes = 101
    model = nn.Linear(classes, classes)
    model.weight.data, model.bias.data = torch.eye(classes), torch.zeros(classes)
    y = torch.tensor([0, 0, 5, 100])
    x = torch.eye(classes)[torch.tensor([0, 5, 5, 100])]
    result = Evaluator({("a", "main"): Domain(x, y), ("b", "main"): Domain(x, y)}).evaluate(model)
    confusion = result["b"].main.confusion
    assert confusion.matrix is None
    samples, predictions, hits = confusion.per_class
    assert (samples[0], samples[5], samples[100]) == (2, 1, 1)
    assert (predictions[0], predictions[5], predictions[100]) == (1, 2, 1)
    assert (hits[0], hits[5], hits[100]) == (1, 1, 1)
    # F1: 2/3 (class 0), 2/3 (class 5), 1.
    expected = {"macro_f1": 7 / 9, "worst_class": 0.5}
    assert result["b"].main.metrics == pytest.approx(expected)


def test_groups_are_counted_in_each_split():
    always_zero = nn.Linear(1, 2)
    always_zero.weight.data, always_zero.bias.data = torch.zeros(2, 1), torch.tensor([1.0, 0.0])
    split = Domain(torch.zeros(6, 1), torch.tensor([0, 1, 0, 0, 1, 1]))
    groups = ["slide 1", "slide 1", "slide 2", "slide 2", "slide 2", "slide 3"]
    evaluator = Evaluator(
        {("a", "main"): split, ("b", "main"): split}, groups={("b", "main"): groups}
    )
    result = evaluator.evaluate(always_zero)
    assert result["a"].main.groups is None
    assert result["b"].main.groups == {"slide 1": (1, 2), "slide 2": (2, 3), "slide 3": (0, 1)}
    metrics = result["b"].main.metrics
    assert metrics["worst_group"] == 0
    assert metrics["mean_group"] == pytest.approx((1 / 2 + 2 / 3) / 3)
    # A fifth of the way from the lowest, 0, to the next, 1/2.
    assert metrics["p10_group"] == pytest.approx(0.1)


def test_a_sample_for_curves_has_no_details():
    result = Evaluator({("a", "sample"): domain(5), ("a", "main"): domain(9)}).evaluate(linear())
    assert result["a"].sample.confusion is None
    assert result["a"].sample.metrics is None
    assert result["a"].main.confusion is not None


def test_a_checkpoint_can_do_without_details():
    scores = Evaluator({("a", "main"): domain(9), ("a", "probe"): domain(8)}).evaluate(linear())
    reduced = without_details(Checkpoint(3, scores, {}), ["macro_f1"], detailed=["probe"])
    assert reduced.scores["a"].probe == scores["a"].probe
    main = reduced.score("a", "main")
    assert main.confusion is None
    assert main.metrics == {"macro_f1": scores["a"].main.metrics["macro_f1"]}
    assert main.accuracy == scores["a"].main.accuracy
    assert without_details(reduced).score("a", "main").metrics is None
