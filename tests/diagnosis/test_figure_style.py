"""Figures look like the report, and every diagnostic says how to read its figure."""

from matplotlib.figure import Figure

from afield import registry
from afield.diagnosis.figure_style import READING, legend_below


def test_every_diagnostic_says_what_is_high_and_what_is_low():
    assert set(READING) == set(registry.names("diagnostics"))
    assert all(text.endswith(".") for text in READING.values())


def test_a_legend_below_hides_no_data():
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="$a_b$")
    legend_below(axes)
    figure.canvas.draw()
    assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
    assert not axes.get_legend().get_texts()[0].get_parse_math()
