"""The page of an estimate: the accuracy on samples without labels, and what to do next."""

import math

from afield.deployment.new_domain import NewDomain
from afield.reporting.sentences import Step, Tile
from afield.reporting.sheet import Part, Sheet, percent, render_sheet
from afield.studies.commands import write_command

# Numbers of labels for which the width of the interval is shown.
LABELS = (20, 50, 200)
# An interval that is wider than this, in shares, calls for labels.
WIDE = 0.2


def label_widths(new: NewDomain) -> dict[int, float]:
    """Half the width of the 95 % interval that a random sample of this many labels would give."""
    guess = new.results[0].estimate if new.results else 0.5
    share = min(max(guess, 0.1), 0.9)
    return {n: 1.96 * math.sqrt(share * (1 - share) / n) for n in LABELS if n < new.samples}


def next_steps(new: NewDomain, model: str) -> list[Step]:
    """What to do next, in the order of its worth."""
    steps = []
    evaluation = write_command("evaluate", model, "labels.csv")
    if new.refusal or new.high - new.low > WIDE:
        widths = ", ".join(f"{n} give ±{100 * w:.0f} points" for n, w in label_widths(new).items())
        what = f" ({widths})" if widths else ""
        text = f"Label a random sample of these files{what} in a table with the columns file and "
        steps.append(Step(f"{text}label, and evaluate the model on it:", evaluation))
    if not new.refusal and new.high < min(new.held_out.values(), default=0):
        steps.append(
            Step(
                "The model is probably worse here than on every held-out domain: let it abstain "
                "from unsure predictions, or add this domain to the training data and fit again.",
                write_command("predict", model, "NEW", options=[("abstain", "0.2")]),
            )
        )
    return steps or [Step("Nothing: the model is probably as good here as on held-out domains.")]


def render_estimate(new: NewDomain, data: str, model: str) -> str:
    """The HTML of the page; `data` is the name of the samples, `model` that of the folder."""
    tiles = []
    if not new.refusal:
        best = new.results[0]
        tiles = [
            Tile("Estimated accuracy", percent(best.estimate), f"by {best.name}"),
            Tile("80 % interval", f"{percent(new.low)} to {percent(new.high)}", "measured errors"),
            Tile("Error on held-out domains", percent(best.mean_error), "on average"),
        ]
    return render_sheet(
        Sheet(
            kind="estimate",
            title=f"{new.model} on {data}",
            headline=new.headline,
            sentences=list(remarks(new)),
            tiles=tiles,
            steps=next_steps(new, model),
            parts=_parts(new),
        )
    )


def remarks(new: NewDomain) -> list[str]:
    """What a reader must know beside the estimate."""
    if not new.unread:
        return []
    file, error = new.unread[0]
    count = len(new.unread)
    return [f"{count} sample{'s' * (count > 1)} could not be read: {file} ({error})."]


def _parts(new: NewDomain) -> list[Part]:
    parts = []
    if new.results:
        parts.append(
            Part(
                "Estimators",
                "Errors were measured by taking each held-out domain away in turn. The first one "
                "is the headline.",
                ("estimator", "estimate", "mean error", "worst error"),
                [
                    (
                        result.name,
                        percent(result.estimate),
                        percent(result.mean_error),
                        percent(result.worst_error),
                    )
                    for result in new.results
                ],
            )
        )
    rows = [
        (name, percent(accuracy), f"{new.distances[name]:.2f}")
        for name, accuracy in new.held_out.items()
    ]
    parts.append(
        Part(
            "Held-out domains",
            "Accuracy, and mean distance from the training data of the models that left them out.",
            ("domain", "accuracy", "distance"),
            [*rows, ("these samples", "–", f"{new.distance:.2f}")],
        )
    )
    parts.append(
        Part(
            "Predicted classes",
            "Shares among the predictions, which are not the shares of the true classes.",
            ("class", "share"),
            [(name, percent(share)) for name, share in new.shares.items()],
        )
    )
    if new.strangest:
        parts.append(
            Part(
                "Strangest samples",
                "The samples that are farthest from the training data.",
                ("sample", "distance"),
                [(name, f"{distance:.2f}") for name, distance in new.strangest],
            )
        )
    return parts
