"""The page of an evaluation: the accuracy, what the card had promised, domains and classes."""

from afield.deployment.evaluation import Evaluation
from afield.reporting.sentences import Tile
from afield.reporting.sheet import Part, Sheet, percent, render_sheet

# Confusions that are listed: more than a person reads.
MAX_CONFUSIONS = 20


def render_evaluation(evaluation: Evaluation, data: str) -> str:
    """The HTML of the page; `data` is the name of the labelled samples."""
    score = evaluation.overall
    tiles = [
        Tile(
            "Accuracy",
            percent(score.accuracy),
            f"95 % interval {percent(score.low)} to {percent(score.high)}",
        ),
        Tile("Balanced accuracy", percent(score.balanced_accuracy), "mean over classes"),
        Tile("Calibration error", percent(score.calibration_error), "of the confidences"),
    ]
    return render_sheet(
        Sheet(
            kind="evaluation",
            title=f"{evaluation.model} on {data}",
            headline=evaluation.headline,
            sentences=list(remarks(evaluation)),
            tiles=tiles,
            parts=_parts(evaluation),
        )
    )


def remarks(evaluation: Evaluation) -> list[str]:
    """What a reader must know beside the numbers."""
    found = []
    if evaluation.unknown:
        named = ", ".join(f"{name} ({count})" for name, count in evaluation.unknown.items())
        found.append(f"Classes that the model does not know are in no number: {named}.")
    if evaluation.unread:
        file, error = evaluation.unread[0]
        count = len(evaluation.unread)
        found.append(f"{count} sample{'s' * (count > 1)} could not be read: {file} ({error}).")
    if evaluation.trained:
        found.append(
            f"{', '.join(evaluation.trained)}: the model was trained on domains of these names, so "
            "this says nothing about new ones."
        )
    if evaluation.weighted:
        found.append("Samples count by the weights with which they were chosen for labelling.")
    return found


def _parts(evaluation: Evaluation) -> list[Part]:
    parts = []
    if len(evaluation.domains) > 1:
        columns = ("domain", "samples", "accuracy", "95 % interval", "balanced", "calibration")
        verdict = ("against the card",) if evaluation.promise else ()
        rows = [
            (
                each.name,
                f"{each.samples:,}",
                percent(each.accuracy),
                f"{percent(each.low)} to {percent(each.high)}",
                percent(each.balanced_accuracy),
                percent(each.calibration_error),
                *((each.verdict,) if evaluation.promise else ()),
            )
            for each in evaluation.domains
        ]
        parts.append(Part("Domains", "", (*columns, *verdict), rows))
    parts.append(
        Part(
            "Classes",
            "Recall is the share of the samples of a class that are predicted as it; precision is "
            "the share of its predictions that are right.",
            ("class", "samples", "recall", "precision", "most often mistaken for"),
            [
                (
                    each.name,
                    f"{each.samples:,}",
                    percent(each.recall),
                    percent(each.precision),
                    each.mistaken_for,
                )
                for each in evaluation.classes
            ],
        )
    )
    if evaluation.coverage:
        parts.append(
            Part(
                "Abstention",
                "Thresholds of confidence abstain from this share of held-out samples; on these "
                "samples they answer another share.",
                ("abstain", "answered here", "accuracy of the answers"),
                [
                    (percent(each.abstain), percent(each.answered), percent(each.accuracy))
                    for each in evaluation.coverage
                ],
            )
        )
    parts.append(_confusions(evaluation))
    return parts


def _confusions(evaluation: Evaluation) -> Part:
    names = evaluation.class_names
    pairs = [
        (count, names[true], names[predicted])
        for true, row in enumerate(evaluation.confusion)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    pairs.sort(key=lambda pair: -pair[0])
    rows = [(true, predicted, f"{count:,}") for count, true, predicted in pairs[:MAX_CONFUSIONS]]
    text = "The most frequent confusions." if rows else "No prediction is wrong."
    return Part("Confusions", text, ("class", "predicted as", "samples"), rows)
