"""The shares of the true classes among samples without labels, from the confusions of a model.

    C[i, j]   share of the samples of class i that are predicted as j, over held-out domains
    π         argmax Σ_j n_j log Σ_i π_i C[i, j], found by EM from even shares (Saerens et al.,
              2002, on counts n_j of predictions)

That assumes that classes are confused as on held-out domains, so the estimate is checked there:
each held-out domain is taken away in turn, and its shares are estimated as they are, and after
drawing its samples anew with other shares. Errors are total variation distances. A change is only
reported if it is larger than every error on domains as they are, and if the estimate is closer to
the truth than the old shares are where shares did change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from afield.deployment.held_out import DomainOutputs
from afield.seeds import derive_seed

# Steps of EM; it stops earlier if nothing changes.
STEPS, TOLERANCE = 2000, 1e-9
# Samples that are added to the row of a class, so that no confusion is impossible.
SMOOTHING = 1.0

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class ClassShares:
    """Estimated shares of the classes beside those of the held-out domains.

    Attributes
    ----------
    new, before
        The estimated shares, and the mean of those of the held-out domains.
    change
        The total variation distance of both.
    noise
        The largest error on held-out domains as they are.
    error, unchanged_error
        The mean error on held-out domains with other shares, and that of the old shares there.
    explained
        The accuracy with the new shares minus that with the old ones, if the model recognizes each
        class as well as on held-out domains.
    """

    new: tuple[float, ...]
    before: tuple[float, ...]
    change: float
    noise: float
    error: float
    unchanged_error: float
    explained: float

    @property
    def is_trusted(self) -> bool:
        """Whether the estimate was better than the old shares where shares had changed."""
        return self.error < self.unchanged_error

    @property
    def has_changed(self) -> bool:
        """Whether the shares differ by more than an error."""
        return self.is_trusted and self.change > self.noise


def estimate_class_shares(held_out: Sequence[DomainOutputs], new: DomainOutputs) -> ClassShares:
    """Estimate the shares of the classes among new samples, and check the estimate."""
    noise, errors, unchanged = [], [], []
    for number, domain in enumerate(held_out):
        others = [*held_out[:number], *held_out[number + 1 :]]
        confusion, before = mean_confusion(others), mean_shares(others)
        noise.append(distance(solve_shares(confusion, counts(domain)), true_shares(domain)))
        drawn = with_random_shares(domain, derive_seed("class-shares", number))
        errors.append(distance(solve_shares(confusion, counts(drawn)), true_shares(drawn)))
        unchanged.append(distance(before, true_shares(drawn)))
    confusion, before = mean_confusion(held_out), mean_shares(held_out)
    shares = solve_shares(confusion, counts(new))
    return ClassShares(
        new=tuple(shares.tolist()),
        before=tuple(before.tolist()),
        change=distance(shares, before),
        noise=max(noise),
        error=float(np.mean(errors)),
        unchanged_error=float(np.mean(unchanged)),
        explained=float((shares - before) @ np.diag(confusion)),
    )


def solve_shares(confusion: Shares, predicted: Shares) -> Shares:
    """The shares of true classes with which predictions are most likely.

    >>> solve_shares(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([55.0, 45.0])).round(3).tolist()
    [0.5, 0.5]
    """
    observed = predicted / predicted.sum()
    shares = np.full(len(confusion), 1 / len(confusion))
    for _ in range(STEPS):
        expected = np.maximum(shares @ confusion, 1e-12)
        updated = shares * (confusion @ (observed / expected))
        updated /= updated.sum()
        done = np.abs(updated - shares).sum() < TOLERANCE
        shares = updated
        if done:
            break
    return shares


def mean_confusion(domains: Sequence[DomainOutputs]) -> Shares:
    """The share of each prediction among the samples of each class; domains count alike."""
    classes = domains[0].logits.shape[1]
    total = np.zeros((classes, classes))
    for domain in domains:
        pairs = domain.labels.numpy(), domain.logits.argmax(dim=1).numpy()
        np.add.at(total, pairs, 1 / len(domain))
    # In samples of a domain of mean size, so that the smoothing weighs as much.
    total *= float(np.mean([len(domain) for domain in domains])) * len(domains) / len(domains)
    rights = max(1e-3, float(np.trace(total) / total.sum()))
    prior = np.full((classes, classes), (1 - rights) / max(1, classes - 1))
    np.fill_diagonal(prior, rights)
    smoothed = total + SMOOTHING * prior
    return np.asarray(smoothed / smoothed.sum(axis=1, keepdims=True))


def counts(domain: DomainOutputs) -> Shares:
    """The number of predictions of each class."""
    classes = domain.logits.shape[1]
    return np.bincount(domain.logits.argmax(dim=1).numpy(), minlength=classes).astype(float)


def true_shares(domain: DomainOutputs) -> Shares:
    """The share of each class among the labels."""
    classes = domain.logits.shape[1]
    return np.bincount(domain.labels.numpy(), minlength=classes) / len(domain)


def mean_shares(domains: Sequence[DomainOutputs]) -> Shares:
    """The mean of the shares of domains."""
    return np.asarray(np.mean([true_shares(domain) for domain in domains], axis=0))


def distance(one: Shares, other: Shares) -> float:
    """Total variation: the share of the samples that would have to change their class."""
    return float(np.abs(one - other).sum() / 2)


def with_shares(domain: DomainOutputs, shares: Shares, seed: int) -> DomainOutputs:
    """As many samples, drawn so that the classes have these shares; of the classes it has."""
    present = true_shares(domain)
    wanted = np.where(present > 0, shares, 0.0)
    if not wanted.sum():
        return domain
    labels = domain.labels.numpy()
    weights = (wanted / np.maximum(present, 1e-12))[labels]
    generator = np.random.default_rng(seed)
    rows = generator.choice(len(labels), size=len(labels), p=weights / weights.sum())
    return domain.take(torch.from_numpy(np.sort(rows)))


def with_random_shares(domain: DomainOutputs, seed: int) -> DomainOutputs:
    """As many samples with shares of the classes that are drawn at random, all equally likely."""
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet(np.ones(domain.logits.shape[1]))
    return with_shares(domain, shares, seed)
