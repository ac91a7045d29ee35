"""The page of an estimate: accuracy on samples without labels, what changed, what to do next."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from afield.data.frames import is_table, read_frame
from afield.data.modalities.image import Image as ImageModality
from afield.deployment.labelled import split_row
from afield.deployment.new_domain import NewDomain
from afield.errors import DataError
from afield.reporting.sentences import Step, Tile
from afield.reporting.sheet import Part, Sheet, percent, render_sheet
from afield.studies.commands import write_command

# An interval that is wider than this, in shares, calls for labels.
WIDE = 0.2
# A drop of the accuracy that is worth an explanation.
DROP = 0.03
# The number of labels in the suggested command.
SUGGESTED = 50
# Classes in the table of shares, height of thumbnails in pixels, and shown columns of a row.
MAX_CLASSES, HEIGHT, MAX_COLUMNS = 30, 132, 8
# Properties of inputs that the terminal names.
MAX_CHANGES = 5


def next_steps(new: NewDomain, model: str, data: str = "NEW") -> list[Step]:
    """What to do next, in the order of its worth."""
    steps = []
    worse = not new.refusal and new.high < min(new.held_out.values(), default=0)
    if new.refusal or worse or new.high - new.low > WIDE:
        count = min(SUGGESTED, max(1, new.samples - 1))
        how = "narrow" if all(each.narrow < each.random for each in new.labels) else ""
        options = [("to-label", "labels.csv"), ("labels", str(count)), ("how", how)]
        steps += [
            Step(
                f"Draw {count} of these samples, and fill in their labels{_gain(new)}:",
                write_command("estimate", model, data, options=options),
            ),
            Step("Measure the accuracy on them:", write_command("evaluate", model, "labels.csv")),
        ]
    if worse:
        steps += [
            Step(
                "The model is probably worse here than on every held-out domain. Until this is "
                "settled, let it abstain from unsure predictions:",
                write_command("predict", model, data, options=[("abstain", "0.3")]),
            ),
            Step(
                "With labels of all samples, add this domain to the training data (DATA) and "
                "compare both models:",
                write_command(
                    "fit", "DATA",
                    options=[("like", model), ("add", "new=LABELLED"), ("out", f"{model}-new")],
                ),
            ),
        ]  # fmt: skip
    return steps or [Step("Nothing: the model is probably as good here as on held-out domains.")]


def _gain(new: NewDomain) -> str:
    """What labels would buy, in words."""
    if not new.labels:
        return ""
    each = ", ".join(
        f"{n.count} give ±{100 * min(n.narrow, n.random):.0f} points" for n in new.labels
    )
    return f" ({each})"


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
            title=f"{new.model} on {Path(data).name}",
            headline=new.headline,
            sentences=list(remarks(new)),
            tiles=tiles,
            steps=next_steps(new, model, data),
            parts=_parts(new),
        )
    )


def remarks(new: NewDomain) -> list[str]:
    """What a reader must know beside the estimate: what changed, and what could not be read."""
    found = [text for text in (_share_remark(new), _separation_remark(new)) if text]
    differing = [each for each in new.inputs if each.differs]
    if differing:
        named = "; ".join(
            f"{each.name} {each.new:.3g} ({each.low:.3g} to {each.high:.3g})"
            for each in differing[:MAX_CHANGES]
        )
        more = f"; and {len(differing) - MAX_CHANGES} more" * (len(differing) > MAX_CHANGES)
        found.append(f"Unlike in all training domains: {named}{more}.")
    if new.unread:
        file, error = new.unread[0]
        count = len(new.unread)
        found.append(f"{count} sample{'s' * (count > 1)} could not be read: {file} ({error}).")
    return found


def _share_remark(new: NewDomain) -> str:
    """Whether the classes have other shares, and whether that explains the accuracy."""
    shares = new.class_shares
    # Far away, other confusions look like other shares.
    if shares is None or new.refusal:
        return ""
    error = f"{100 * shares.error:.0f} % where they were changed on held-out domains"
    if not shares.is_trusted:
        return f"The shares of the classes cannot be estimated: the estimates were off by {error}."
    if not shares.has_changed:
        return "There is no sign that the shares of the classes differ from held-out domains."
    text = (
        "If classes are confused as on held-out domains, their shares differ: "
        f"{100 * shares.change:.0f} % of the samples would have to change their class (such "
        f"estimates were off by {error}). "
    )
    drop = sum(new.held_out.values()) / len(new.held_out) - new.results[0].estimate
    if drop < DROP:
        return text + "The estimated accuracy has not dropped."
    if -shares.explained >= drop / 2:
        return f"{text}They alone explain {100 * -shares.explained:.0f} of {100 * drop:.0f} points."
    return (
        f"{text}They do not explain the drop of {100 * drop:.0f} points: by themselves, they would "
        f"change the accuracy by {100 * shares.explained:+.0f} points."
    )


def _separation_remark(new: NewDomain) -> str:
    separation = new.separation
    if separation is None or not separation.held_out:
        return ""
    low, high = min(separation.held_out), max(separation.held_out)
    verdict = "more than" if separation.is_larger else "no more than"
    return (
        f"A classifier tells these samples from held-out ones with an AUROC of "
        f"{separation.new:.2f}; one held-out domain from the others, with {low:.2f} to "
        f"{high:.2f}. They differ {verdict} held-out domains differ from each other."
    )


def _parts(new: NewDomain) -> list[Part]:
    parts = [] if new.refusal else [_estimators(new)]
    rows = [
        (name, percent(accuracy), f"{new.distances[name]:.2f}")
        for name, accuracy in new.held_out.items()
    ]
    parts += [
        Part(
            "Held-out domains",
            "Accuracy, and mean distance from the training data of the models that left them out.",
            ("domain", "accuracy", "distance"),
            [*rows, ("these samples", "–", f"{new.distance:.2f}")],
        ),
        _classes(new),
    ]
    if new.inputs:
        parts.append(_inputs(new))
    if new.labels:
        parts.append(
            Part(
                "What labels would buy",
                "Half the width of the 95 % interval of the accuracy, for samples at random and "
                "for samples drawn by strata of confidence (--how narrow).",
                ("labels", "random", "narrow"),
                [
                    (str(n.count), f"±{100 * n.random:.1f} points", f"±{100 * n.narrow:.1f} points")
                    for n in new.labels
                ],
            )
        )
    return [*parts, *_strange(new)]


def _inputs(new: NewDomain) -> Part:
    return Part(
        "Inputs",
        "Means over samples, beside the range of the means of the training domains.",
        ("property", "these samples", "training domains", "differs"),
        [
            (
                each.name,
                f"{each.new:.3g}",
                f"{each.low:.3g} to {each.high:.3g}",
                "yes" if each.differs else "",
            )
            for each in new.inputs
        ],
    )


def _estimators(new: NewDomain) -> Part:
    return Part(
        "Estimators",
        "Errors were measured by taking each held-out domain away in turn. The first one is the "
        "headline.",
        ("estimator", "estimate", "mean error", "worst error"),
        [
            (each.name, percent(each.estimate), percent(each.mean_error), percent(each.worst_error))
            for each in new.results
        ],
    )


def _classes(new: NewDomain) -> Part:
    shares = None if new.refusal else new.class_shares
    columns = ("class", "predicted", *(("estimated", "held-out domains") if shares else ()))
    names = sorted(new.shares, key=lambda name: -new.shares[name])
    place = {name: number for number, name in enumerate(new.shares)}
    rows = []
    for name in names[:MAX_CLASSES]:
        row = [name, percent(new.shares[name])]
        if shares:
            row += [percent(shares.new[place[name]]), percent(shares.before[place[name]])]
        rows.append(row)
    text = "The shares of the predictions, which are not those of the true classes."
    if shares:
        text = (
            "The shares of the predictions, those of the true classes as estimated from the "
            "confusions on held-out domains, and the mean of the true shares there."
        )
    more = f" The {MAX_CLASSES} most frequent ones." if len(names) > MAX_CLASSES else ""
    return Part(
        "Shares of the classes",
        f"{text}{more}",
        columns,
        rows,
    )


def _strange(new: NewDomain) -> list[Part]:
    """The strangest classes and samples, with thumbnails or rows."""
    names = [name for name, _ in new.strangest]
    shown = describe_samples(names)
    return [
        Part(
            "Strangest classes",
            "Predicted classes by the mean rank of strangeness of their samples; 50 is that of "
            "held-out samples.",
            ("class", "samples", "mean rank"),
            [(name, f"{count:,}", f"{rank:.0f}") for name, count, rank in new.strange_classes],
        ),
        Part(
            "Strangest samples",
            "By their rank of strangeness, from 0 to 100 among held-out samples.",
            ("sample", "rank", *(("content",) if any(shown) else ())),
            [
                (name, f"{rank:.0f}", *((text,) if any(shown) else ()))
                for (name, rank), text in zip(new.strangest, shown, strict=True)
            ],
            thumbnails(names),
        ),
    ]


def describe_samples(names: Sequence[str]) -> list[str]:
    """The first cells of the rows of tables that are named; empty for other samples."""
    return [_row_text(*split_row(name)) for name in names]


def _row_text(file: Path | None, row: str) -> str:
    if file is None or not is_table(file) or not row.isdigit():
        return ""
    try:
        cells = read_frame(file).iloc[int(row)].items()
    except (DataError, IndexError):
        return ""
    texts = [f"{name}={str(cell)[:60]}" for name, cell in cells]
    return ", ".join(texts[:MAX_COLUMNS]) + ", …" * (len(texts) > MAX_COLUMNS)


def thumbnails(names: Sequence[str]) -> dict[str, str]:
    """Small images of the files that are images, as WebP in base64."""
    images = {}
    for name in names:
        if Path(name).suffix.lower() not in ImageModality.suffixes:
            continue
        try:
            with Image.open(name) as image:
                width = round(image.width * HEIGHT / image.height)
                small = image.convert("RGB").resize((max(1, min(width, 3 * HEIGHT)), HEIGHT))
        except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
            continue
        content = io.BytesIO()
        small.save(content, "WEBP", quality=80)
        images[name] = base64.b64encode(content.getvalue()).decode()
    return images
