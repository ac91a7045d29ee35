"""How often the report claims too much: false positives and power of its headline, by simulation.

    python benchmarks/claims.py [--count 2000] [--seed 0]

Every benchmark has erm and some rivals with the same true accuracy. The leader is picked and judged
by the code of the report. A false positive is a headline that calls the leader better than chance.
Accuracies vary by one point from run to run:

- independent: normal, all runs alike;
- no erm: the same, but the leader is compared with the second best method;
- unequal methods: standard deviations of 0.5, 1 or 2 points, at random for each method;
- unequal domains: the first domain varies by 3 points, the others by 0.5 points;
- heavy tails: Student's t with 3 degrees of freedom;
- correlated 0.3, 0.6: results of one method and trial have this correlation.

The second table has the same rates without the correction for the number of methods. The third has
rates for new domains: methods differ by one point (standard deviation) from domain to domain, and
a false positive is an interval for new domains that excludes 0. The fourth has the probability to
find a method that is truly better. The largest rate of the headline is printed last; it must be at
most 6 %.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from afield.reporting.claims import Claim, make_claim
from afield.runs.row import Row

SHAPES = ((3, 4), (3, 6), (5, 4))
RIVALS = (1, 4, 9, 19)
GAINS = (1, 2, 4)
POINT, MEAN = 0.01, 0.7
LIMIT = 0.06

Array = NDArray[np.float64]
Shape = tuple[int, int, int]
Draw = Callable[[np.random.Generator, Shape], Array]


def independent(generator: np.random.Generator, shape: Shape) -> Array:
    """All runs alike."""
    return generator.normal(size=shape)


def unequal_methods(generator: np.random.Generator, shape: Shape) -> Array:
    """Some methods vary more than others."""
    return generator.normal(size=shape) * generator.choice([0.5, 1, 2], size=(shape[0], 1, 1))


def unequal_domains(generator: np.random.Generator, shape: Shape) -> Array:
    """One domain varies more than the others."""
    return generator.normal(size=shape) * np.array([3.0] + [0.5] * (shape[2] - 1))


def heavy_tails(generator: np.random.Generator, shape: Shape) -> Array:
    """Some runs are far off."""
    return generator.standard_t(3, size=shape)


def correlated(correlation: float) -> Draw:
    """Runs of a trial have something in common."""

    def draw(generator: np.random.Generator, shape: Shape) -> Array:
        shared = generator.normal(size=(*shape[:2], 1))
        own = generator.normal(size=shape)
        return np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own

    return draw


KINDS: Mapping[str, Draw] = {
    "independent": independent,
    "no erm": independent,
    "unequal methods": unequal_methods,
    "unequal domains": unequal_domains,
    "heavy tails": heavy_tails,
    "correlated 0.3": correlated(0.3),
    "correlated 0.6": correlated(0.6),
}


def claim_of(accuracies: Array, *, erm: bool = True) -> Claim:
    """What the report claims about accuracies by method, trial and domain."""
    names = [f"rival{n}" for n in range(len(accuracies))]
    names[0] = "erm" if erm else names[0]
    measured = {
        name: {(trial, f"domain{d}"): float(a) for (trial, d), a in np.ndenumerate(of_method)}
        for name, of_method in zip(names, accuracies, strict=True)
    }
    means = dict(zip(names, accuracies.mean(axis=(1, 2)).tolist(), strict=True))
    ranked = dict(sorted(means.items(), key=lambda pair: -pair[1]))
    rows = {name: Row(name) for name in names}
    against = dict.fromkeys(names[1:], "erm") if erm else {}
    return make_claim(ranked, measured, against, rows=rows)


def false_positives(
    kind: str, shape: Shape, count: int, generator: np.random.Generator
) -> tuple[float, float]:
    """The rates of false headlines, as the report has them and without correction."""
    corrected = alone = 0
    # Small benchmarks are cheap, and their rates are the closest to the limit.
    count *= max(1, 10 // shape[0])
    for _ in range(count):
        accuracies = MEAN + POINT * KINDS[kind](generator, shape)
        claim = claim_of(accuracies, erm=kind != "no erm")
        corrected += claim.is_more_than_chance
        alone += claim.comparison is not None and claim.comparison.interval(corrected=False).low > 0
    return corrected / count, alone / count


def new_domain_errors(kind: str, shape: Shape, count: int, generator: np.random.Generator) -> float:
    """How often the interval for new domains excludes 0 though methods are equal on average."""
    wrong = 0
    for _ in range(count):
        effects = generator.normal(size=(shape[0], 1, shape[2]))
        claim = claim_of(MEAN + POINT * (KINDS[kind](generator, shape) + effects))
        wrong += claim.comparison is not None and claim.comparison.interval(new_domain=True).low > 0
    return wrong / count


def power(
    gain: float, kind: str, shape: Shape, count: int, generator: np.random.Generator
) -> float:
    """How often the headline finds the one rival that is better, by so many points."""
    found = 0
    for _ in range(count):
        accuracies = MEAN + POINT * KINDS[kind](generator, shape)
        accuracies[1] += gain * POINT
        claim = claim_of(accuracies)
        found += claim.is_more_than_chance and claim.leader == "rival1"
    return found / count


def print_table(title: str, rows: Mapping[str, Sequence[float]]) -> None:
    """Print rates in percent, with a column for every number of rivals."""
    print(
        f"| {title} | {' | '.join(f'{n} rivals' for n in RIVALS).replace('1 rivals', '1 rival')} |"
    )
    print("| --- |" + " ---: |" * len(RIVALS))
    for name, rates in rows.items():
        print(f"| {name} | {' | '.join(f'{100 * rate:.1f}' for rate in rates)} |", flush=True)
    print(flush=True)


def main() -> None:
    """Print all tables, and the largest rate of the headline."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--count", type=int, default=2000, help="benchmarks per number, more for few rivals"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator, count = np.random.default_rng(options.seed), options.count
    rates: dict[str, list[float]] = {}
    uncorrected: dict[str, list[float]] = {}
    new_domains: dict[str, list[float]] = {}
    powers: dict[str, list[float]] = {}
    for trials, domains in SHAPES:
        for kind in KINDS:
            name = f"{trials} × {domains}, {kind}"
            shapes = [(rivals + 1, trials, domains) for rivals in RIVALS]
            found = [false_positives(kind, shape, count, generator) for shape in shapes]
            rates[name], uncorrected[name] = map(list, zip(*found, strict=True))
            if kind in ("independent", "correlated 0.3", "correlated 0.6"):
                new_domains[name] = [
                    new_domain_errors(kind, shape, count // 2, generator) for shape in shapes
                ]
            if kind in ("independent", "correlated 0.3"):
                for gain in GAINS:
                    powers[f"{name}, {gain} point{'s' * (gain > 1)} better"] = [
                        power(gain, kind, shape, count // 4, generator) for shape in shapes
                    ]
    print_table("false positives of the headline (%)", rates)
    print_table("without correction (%)", uncorrected)
    print_table("false positives for new domains (%)", new_domains)
    print_table("true positives of the headline (%)", powers)
    largest = max(rate for of_kind in rates.values() for rate in of_kind)
    verdict = "ok" if largest <= LIMIT else f"above {LIMIT:.0%}"
    print(f"largest false-positive rate of the headline: {100 * largest:.1f} % ({verdict})")


if __name__ == "__main__":
    main()
