"""What changed on samples without labels: how well they are told from held-out domains, and where.

separation   the AUROC with which a logistic regression on the outputs tells new samples from
those of held-out domains, by cross-validation; and the same for each held-out
domain against the others, which shows how large it is among known domains
strange      the mean rank of strangeness of the samples of each predicted class
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afield.deployment.held_out import DomainOutputs

# Samples of each side, held-out domains that are compared, and parts of the cross-validation.
SAMPLES, DOMAINS, FOLDS = 1000, 12, 3
# Logits of classes that a model does not know are far below all others.
LOWEST_LOGIT = -30.0


@dataclass(frozen=True)
class Separation:
    """How well new samples are told from held-out ones, and held-out domains from each other."""

    new: float
    held_out: tuple[float, ...]

    @property
    def is_larger(self) -> bool:
        """Whether new samples differ more than every held-out domain from the others."""
        return self.new > max(self.held_out, default=1.0)


def measure_separation(held_out: Sequence[DomainOutputs], new: DomainOutputs) -> Separation | None:
    """The separation of new samples; None if there are too few of them to measure it."""
    rows = [_columns(domain) for domain in held_out]
    fresh = _columns(new)
    if min(map(len, (fresh, *rows))) < 2 * FOLDS:
        return None
    compared = range(min(len(rows), DOMAINS)) if len(rows) > 1 else ()
    return Separation(
        _auroc(fresh, np.concatenate(rows)),
        tuple(
            _auroc(rows[number], np.concatenate([*rows[:number], *rows[number + 1 :]]))
            for number in compared
        ),
    )


def _columns(domain: DomainOutputs) -> NDArray[np.float64]:
    """The log-probabilities and the distance of every sample, as columns."""
    logits = domain.probabilities().clamp(min=1e-12).log().clamp(min=LOWEST_LOGIT).numpy()
    scores = [domain.scores[name].double().numpy()[:, None] for name in ("distance",)
              if name in domain.scores]  # fmt: skip
    return np.concatenate([logits, *scores], axis=1)


def _auroc(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The cross-validated AUROC of a logistic regression between two sets of rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    generator = np.random.default_rng(0)
    parts = [rows[generator.permutation(len(rows))[:SAMPLES]] for rows in (one, other)]
    x = np.concatenate(parts)
    y = np.repeat([1, 0], [len(part) for part in parts])
    classifier = make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=500, class_weight="balanced")
    )
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    scores = cross_val_predict(classifier, x, y, cv=folds, method="decision_function")
    return float(roc_auc_score(y, scores))


def strange_classes(
    predicted: Sequence[str], ranks: Sequence[float], count: int = 10
) -> tuple[tuple[str, int, float], ...]:
    """The predicted classes with the largest mean rank: name, number of samples, mean rank."""
    names, values = np.asarray(predicted, dtype=object), np.asarray(ranks, dtype=np.float64)
    rows = [
        (str(name), int((names == name).sum()), float(values[names == name].mean()))
        for name in dict.fromkeys(predicted)
    ]
    return tuple(sorted(rows, key=lambda row: -row[2])[:count])
