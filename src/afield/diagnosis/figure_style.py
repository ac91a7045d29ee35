"""The look of figures, that of the report page, and how to read each of them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend


# Colors of the page in light mode; in dark mode, the page inverts figures.
INK, SOFT, LINE = "#1c2127", "#56606d", "#dde2e8"
COLORS = (
    *("#0072b2", "#c85200", "#008a64", "#a33c8c", "#7d6a00"),
    *("#b3261e", "#5b4fc4", "#4f7a1c", "#8a5a3b", "#5c6b7a"),
)
PALE = "#cbd2da"
# Fonts of the page, in its order; the last one comes with matplotlib.
FONTS = ("Segoe UI", "Roboto", "Noto Sans", "Helvetica Neue", "Arial", "DejaVu Sans")
STYLE: dict[str, Any] = {
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "grid.color": LINE,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": SOFT,
    "xtick.labelsize": 8,
    "ytick.color": SOFT,
    "ytick.labelsize": 8,
}
# Characters in a line of a legend, and lines of a legend below a panel.
LINE_LENGTH, MAX_LEGEND_LINES = 60, 10
# What is high and what is low in a figure, by the name of the diagnostic.
READING = {
    "agreement": "High (near the diagonal) means that a step for one domain helps the other; near "
    "0 they do not share directions, and below 0 they harm each other.",
    "calibration": "On the dashed line, confidence equals accuracy; below it the model is too "
    "sure of itself, above it too unsure. Bins with fewer than 10 samples are left out.",
    "conflicts": "A high kept share means that experts agree; a low one, that SCORE trims much.",
    "domain_space": "Domains that form separate clouds are distinguished by these features; where "
    "they overlap, the features do not depend on the domain.",
    "gradient_shares": "Equal shares mean that a step contains all domains; one high share means "
    "that the step is mostly about one domain.",
    "loss_surface": "Dark is a low loss, bright a high one; a point is good if it is dark in the "
    "panels of all domains, above all of the unseen one.",
    "masks": "High overlap means that domains share channels, so that masks hardly specialize; a "
    "source should do best with its own masks.",
    "merge_path": "The higher the better; a peak left of 1 means that merging went too far, right "
    "of 1 that it did not go far enough.",
    "overlap": "High means that experts changed the same directions and may interfere; chance is "
    "the level of unrelated directions.",
    "patterns": "High loss marks hard samples; a CCT well above its chance level means that two "
    "views group samples in the same way.",
    "perturbations": "Strong colors mark pixels that change much, on one scale for all samples; "
    "perturbations are useful if labels stay right while the domain gets harder to tell.",
    "sensitivity": "A flat line means that the setting hardly matters; a steep one, that it should "
    "be tuned.",
}


def installed_fonts() -> list[str]:
    """The fonts of the page that this machine has."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return [name for name in FONTS if name in installed]


def color_of(number: int) -> str:
    """The color of a domain, method or class by its number; after ten, colors repeat."""
    return COLORS[number % len(COLORS)]


def legend_below(axes: "Axes", *, fontsize: int = 7, columns: int = 2, **style: Any) -> "Legend":
    """Place the legend below the axes, where it hides no data, with names as they are."""
    labels = axes.get_legend_handles_labels()[1]
    # A legend that is wider or higher than the panel would leave no room for the data.
    longest = max(map(len, labels), default=1)
    columns = max(1, min(columns, LINE_LENGTH // max(1, longest)))
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}
    if -(-len(labels) // columns) > MAX_LEGEND_LINES:
        place = {"loc": "best"}
    legend = axes.legend(fontsize=fontsize, ncols=columns, **place, **style)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return legend


def legend_outside(axes: "Axes", *, columns: int = 3) -> None:
    """Place one legend for all panels below the figure; below the axes if that has no room."""
    figure = axes.get_figure(root=True)
    if figure is None or figure.get_layout_engine() is None:
        legend_below(axes)
        return
    legend = figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", fontsize=8, ncols=columns
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def signed(value: float) -> str:
    """A number with two decimals, with a real minus sign and without a negative zero.

    >>> signed(-0.001), signed(-0.25)
    ('0.00', '−0.25')
    """
    text = f"{value:.2f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")
