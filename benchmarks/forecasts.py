"""Does the prediction interval of a model card hold? One more domain is left out of real datasets.

    python benchmarks/forecasts.py spirals rotated_digits heart.csv?label=diagnosis&domain=hospital

Every domain of a dataset is the new one in turn. The others are all that `afield fit` would know:
each of them is left out of the training of a model that has not seen the new domain either (the
runs of `--rules all` that leave out two domains), and their accuracies give the interval of the
card. The accuracy of the model that was trained on all of them is then measured on the new domain.
"""

import argparse
from itertools import permutations
from statistics import fmean

from afield import Record, bench
from afield.data.lookup import find_dataset
from afield.deployment.estimates import unseen_accuracies
from afield.deployment.model_folder import Estimate


def forecasts(records: list[Record]) -> list[tuple[str, float, tuple[float, float]]]:
    """Every domain of a trial as the new one: its accuracy, and the interval from the others."""
    known: dict[tuple[str, frozenset[str]], float] = {}
    for record in records:
        for name, accuracy in unseen_accuracies(record).items():
            known[name, frozenset(record.unseen)] = accuracy
    names = records[0].domains
    of_others: dict[str, dict[str, float]] = {name: {} for name in names}
    for new, other in permutations(names, 2):
        of_others[new][other] = known[other, frozenset({new, other})]
    found = []
    for new, domains in of_others.items():
        mean = fmean(domains.values())
        interval = Estimate(mean, min(domains.values()), 1.0, domains, 1).interval
        found.append((new, known[new, frozenset({new})], interval or (0.0, 1.0)))
    return found


def main() -> None:
    """Print every forecast and what came of it, and the coverage over all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--store", default="forecasts")
    options = parser.parse_args()
    held: list[bool] = []
    for spec in options.datasets:
        settings = {"steps": options.steps, "every": options.steps}
        ask = {"trials": options.trials, "rules": "all", "store": options.store, "workers": 1}
        records = list(bench(spec, ["erm"], settings=settings, **ask))
        for trial in range(options.trials):
            of_trial = [record for record in records if record.run.trial == trial]
            for name, accuracy, (low, high) in forecasts(of_trial):
                held.append(low <= accuracy <= high)
                where = "in it" if held[-1] else "below" if accuracy < low else "above"
                ends = f"{100 * low:.0f}–{100 * high:.0f} %"
                title = find_dataset(spec).name
                print(f"{title}, trial {trial}, {name}: {ends}, {100 * accuracy:.1f} %: {where}")
    print(f"in the interval: {sum(held)} of {len(held)} ({100 * fmean(held):.0f} %)")


if __name__ == "__main__":
    main()
