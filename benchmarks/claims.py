"""How often the report and the card claim too much, by simulation.

    python benchmarks/claims.py [--count 2000] [--seed 0] [--parts headline,trials,shared,card]

`headline`: false positives and power of the headline.

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

`trials`: the headline says how many trials it takes to settle a lead that may be chance ("6 to 12
trials"). One rival is truly better by no, half a point, one or two points. The number of trials
that detect it with 80 % is found by simulation too. The table has how often the upper end is at
least that number (goal: 80 %), how often the lower end is at most that number, and how often the
number from the observed lead, without a range, is enough. A lead of a method that is no better is
settled by no number; there, only "at least" is right.

`shared`: the uncorrected 95 % interval assumes that the results of a trial are correlated alike in
all methods. One method breaks it: its results of a trial have a correlation of 0.6 or 0.9, those of
the others have none. The tables have the coverage of its interval, and how often the headline is
false.

`card`: how often the accuracy on one more domain lies in the prediction interval of a model card,
for 3 to 12 left-out domains (goal: 85 to 95 %). Log-odds of domains are drawn from several
distributions, and accuracies are measured on 500 samples.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import special

from afield.deployment.model_folder import Estimate
from afield.reporting.claims import MAX_TRIALS, Claim, estimate_power, make_claim
from afield.runs.row import Row

SHAPES = ((3, 4), (3, 6), (5, 4))
RIVALS = (1, 4, 9, 19)
GAINS = (1, 2, 4)
POINT, MEAN = 0.01, 0.7
LIMIT = 0.06
# The probability with which enough trials detect a difference.
DETECTED = 0.8
NOISES = ("independent", "correlated 0.3")
# Noise and number of rivals for which ranges of trials are judged.
RANGES = (("independent", 1), ("independent", 4), ("independent", 9), ("correlated 0.3", 1))

Array = NDArray[np.float64]
Shape = tuple[int, int, int]
Generator = np.random.Generator
Draw = Callable[[Generator, Shape], Array]


def independent(generator: Generator, shape: Shape) -> Array:
    """All runs alike."""
    return generator.normal(size=shape)


def unequal_methods(generator: Generator, shape: Shape) -> Array:
    """Some methods vary more than others."""
    return generator.normal(size=shape) * generator.choice([0.5, 1, 2], size=(shape[0], 1, 1))


def unequal_domains(generator: Generator, shape: Shape) -> Array:
    """One domain varies more than the others."""
    return generator.normal(size=shape) * np.array([3.0] + [0.5] * (shape[2] - 1))


def heavy_tails(generator: Generator, shape: Shape) -> Array:
    """Some runs are far off."""
    return generator.standard_t(3, size=shape)


def correlated(correlation: float) -> Draw:
    """Runs of a trial have something in common."""

    def draw(generator: Generator, shape: Shape) -> Array:
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
    kind: str, shape: Shape, count: int, generator: Generator
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


def new_domain_errors(kind: str, shape: Shape, count: int, generator: Generator) -> float:
    """How often the interval for new domains excludes 0 though methods are equal on average."""
    wrong = 0
    for _ in range(count):
        effects = generator.normal(size=(shape[0], 1, shape[2]))
        claim = claim_of(MEAN + POINT * (KINDS[kind](generator, shape) + effects))
        wrong += claim.comparison is not None and claim.comparison.interval(new_domain=True).low > 0
    return wrong / count


def power(gain: float, kind: str, shape: Shape, count: int, generator: Generator) -> float:
    """How often the headline finds the one rival that is better, by so many points."""
    found = 0
    for _ in range(count):
        accuracies = MEAN + POINT * KINDS[kind](generator, shape)
        accuracies[1] += gain * POINT
        claim = claim_of(accuracies)
        found += claim.is_more_than_chance and claim.leader == "rival1"
    return found / count


def detected(gain: float, kind: str, shape: Shape, count: int, generator: Generator) -> float:
    """How often the better rival is found to be better than erm, wherever it is in the ranking."""
    found = 0
    for _ in range(count):
        accuracies = MEAN + POINT * KINDS[kind](generator, shape)
        accuracies[1] += gain * POINT
        claim = claim_of(accuracies)
        (own,) = (each for each in claim.comparisons if each.method == "rival1")
        found += own.verdict == "better"
    return found / count


def sufficient_trials(
    gain: float, kind: str, shape: Shape, count: int, generator: Generator
) -> float:
    """The fewest trials with which the better rival is detected with 80 %."""
    methods, _, domains = shape

    def is_enough(trials: int) -> bool:
        return detected(gain, kind, (methods, trials, domains), count, generator) >= DETECTED

    if gain == 0:
        return math.inf
    high = 2
    while not is_enough(high):
        high *= 2
    low = high // 2
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def judge_ranges(
    gain: float, kind: str, shape: Shape, count: int, generator: Generator
) -> list[float]:
    """Shares of benchmarks in which the range of trials, and the single number, are right."""
    needed = sufficient_trials(gain, kind, shape, 400, generator)
    judged: list[tuple[bool, ...]] = []
    while len(judged) < count:
        accuracies = MEAN + POINT * KINDS[kind](generator, shape)
        accuracies[1] += gain * POINT
        claim = claim_of(accuracies)
        ends, compared = claim.trials_range, claim.comparison
        if claim.verdict != "unclear" or ends is None or compared is None:
            continue
        is_better = claim.leader == "rival1" and compared.reference == "erm"
        truth = needed if is_better else math.inf
        low, high = (math.inf if end is None else end for end in ends)
        single = estimate_power(compared).trials_for(compared.difference) or math.inf
        # More than the greatest number that is searched is right if that is not enough.
        truth = math.inf if truth > MAX_TRIALS else truth
        judged.append((high >= truth, low <= truth, high < math.inf, single >= truth))
    return [needed, *(float(share) for share in 100 * np.mean(judged, axis=0))]


def print_trials(count: int, generator: Generator) -> None:
    """Print how often ranges of trials are right."""
    titles = ["enough trials", "upper end", "lower end", "closed ranges", "one number"]
    print(f"| lead that may be chance | {' | '.join(titles)} |")
    print("| --- |" + " ---: |" * len(titles))
    for (kind, rivals), gain in product(RANGES, (0, 0.5, 1, 2)):
        needed, *shares = judge_ranges(gain, kind, (rivals + 1, 3, 4), count, generator)
        name = f"3 × 4, {kind}, {rivals} rival{'s' * (rivals > 1)}, {gain:g} points"
        cells = ["–" if math.isinf(needed) else f"{needed:.0f}", *(f"{s:.0f}" for s in shares)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(flush=True)


def one_shared(correlation: float, scale: float) -> Draw:
    """The results of the last method have something in common in a trial, those of others not."""

    def draw(generator: Generator, shape: Shape) -> Array:
        results = generator.normal(size=shape)
        shared = generator.normal(size=(shape[1], 1))
        own = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * results[-1]
        results[-1] = scale * own
        return results

    return draw


def covered_and_false(
    draw: Draw, shape: Shape, count: int, generator: Generator
) -> tuple[float, float]:
    """Coverage of the uncorrected interval of the last method, and the rate of false headlines."""
    covered = wrong = 0
    for _ in range(count):
        claim = claim_of(MEAN + POINT * draw(generator, shape))
        name = f"rival{shape[0] - 1}"
        (own,) = (each for each in claim.comparisons if each.method == name)
        low, high = own.interval(corrected=False)
        covered += low <= 0 <= high
        wrong += claim.is_more_than_chance
    return covered / count, wrong / count


def print_shared(count: int, generator: Generator) -> None:
    """Print what one method does whose noise is shared within a trial."""
    titles = [f"{rivals} rival{'s' * (rivals > 1)}" for rivals in RIVALS]
    print(f"| coverage (false headlines), in percent | {' | '.join(titles)} |")
    print("| --- |" + " ---: |" * len(titles))
    for (correlation, scale), (trials, domains) in product(((0.9, 2), (0.6, 1), (0.0, 1)), SHAPES):
        draw = one_shared(correlation, scale)
        shapes = [(rivals + 1, trials, domains) for rivals in RIVALS]
        pairs = [covered_and_false(draw, shape, count, generator) for shape in shapes]
        cells = [f"{100 * covered:.0f} ({100 * wrong:.1f})" for covered, wrong in pairs]
        name = f"{trials} × {domains}, correlation {correlation:g}"
        name += ", twice the noise" * (scale == 2)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(flush=True)


def one_far(generator: Generator, size: tuple[int, ...]) -> Array:
    """A quarter of the domains is far below the others."""
    return generator.normal(size=size) - 3.0 * (generator.random(size=size) < 0.25)


# Log-odds of the accuracy on domains: centre, spread, and how they are drawn.
DOMAINS: Mapping[str, tuple[float, float, Callable[[Generator, tuple[int, ...]], Array]]] = {
    "normal around 70 %": (0.85, 0.7, lambda g, size: g.normal(size=size)),
    "normal around 70 %, alike": (0.85, 0.1, lambda g, size: g.normal(size=size)),
    "normal around 97 %": (3.5, 0.7, lambda g, size: g.normal(size=size)),
    "uniform": (0.85, 0.7, lambda g, size: g.uniform(-1.73, 1.73, size=size)),
    "heavy tails (t, 3 degrees of freedom)": (
        0.85,
        0.5,
        lambda g, size: g.standard_t(3, size=size),
    ),
    "skewed (exponential)": (1.2, 0.7, lambda g, size: -g.exponential(size=size)),
    "a quarter far below": (1.2, 0.4, one_far),
}
DOMAIN_COUNTS = (3, 4, 5, 6, 8, 12)
SAMPLES = 500


def card_coverage(kind: str, domains: int, count: int, generator: Generator) -> tuple[float, float]:
    """How often the interval of a card holds one more domain, and its mean width."""
    centre, spread, draw = DOMAINS[kind]
    shares = special.expit(centre + spread * draw(generator, (count, domains + 1)))
    measured = generator.binomial(SAMPLES, shares) / SAMPLES
    held, widths = 0, 0.0
    for *known, new in measured.tolist():
        by_name = {str(number): share for number, share in enumerate(known)}
        estimate = Estimate(float(np.mean(known)), min(known), 1.0, by_name, 1, None, None)
        low, high = estimate.interval or (0.0, 1.0)
        held += low <= new <= high
        widths += high - low
    return held / count, widths / count


def print_card(count: int, generator: Generator) -> None:
    """Print coverage and width of the prediction interval for one more domain."""
    print(f"| one more domain | {' | '.join(f'{n} domains' for n in DOMAIN_COUNTS)} |")
    print("| --- |" + " ---: |" * len(DOMAIN_COUNTS))
    for kind in DOMAINS:
        pairs = [card_coverage(kind, n, count, generator) for n in DOMAIN_COUNTS]
        cells = [f"{100 * held:.1f} ({100 * width:.0f})" for held, width in pairs]
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)
    print(flush=True)


def print_table(title: str, rows: Mapping[str, Sequence[float]]) -> None:
    """Print rates in percent, with a column for every number of rivals."""
    print(
        f"| {title} | {' | '.join(f'{n} rivals' for n in RIVALS).replace('1 rivals', '1 rival')} |"
    )
    print("| --- |" + " ---: |" * len(RIVALS))
    for name, rates in rows.items():
        print(f"| {name} | {' | '.join(f'{100 * rate:.1f}' for rate in rates)} |", flush=True)
    print(flush=True)


def print_headline(count: int, generator: Generator) -> None:
    """Print false positives and power of the headline, and its largest rate."""
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
            if kind in NOISES:
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
    print(f"largest false-positive rate of the headline: {100 * largest:.1f} % ({verdict})\n")


PARTS = {
    "headline": print_headline,
    "trials": lambda count, generator: print_trials(count // 5, generator),
    "shared": lambda count, generator: print_shared(count // 2, generator),
    "card": lambda count, generator: print_card(5 * count, generator),
}


def main() -> None:
    """Print the tables of the parts that are asked for; each begins with the seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--count", type=int, default=2000, help="benchmarks per number, more for few rivals"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", default=",".join(PARTS), help="which tables, by name")
    options = parser.parse_args()
    for part in options.parts.split(","):
        PARTS[part](options.count, np.random.default_rng(options.seed))


if __name__ == "__main__":
    main()
