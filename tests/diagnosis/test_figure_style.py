"""Figures look like the report, and every diagnostic says how to read its figure."""

from matplotlib.figure import Figure

from afield import registry
from afield.diagnosis.figure_style import (
    COLORS,
    READING,
    color_of,
    installed_fonts,
    legend_below,
    legend_outside,
)


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


def test_one_legend_outside_stands_below_all_panels():
    figure = Figure(layout="constrained")
    first, second = figure.subplots(1, 2)
    for axes in (first, second):
        axes.plot([0, 1], [0, 1], label="$a_b$")
    legend_outside(first)
    figure.canvas.draw()
    (legend,) = figure.legends
    assert first.get_legend() is None
    assert legend.get_window_extent().y1 < second.get_window_extent().y0
    assert not legend.get_texts()[0].get_parse_math()


def test_without_a_layout_the_legend_is_below_its_panel():
    axes = Figure().subplots()
    axes.plot([0, 1], [0, 1], label="a")
    legend_outside(axes)
    assert axes.get_legend() is not None


def test_colors_repeat_only_after_all_were_used():
    assert len({color_of(number) for number in range(10)}) == len(COLORS) == 10
    assert color_of(10) == color_of(0)


def test_figures_have_a_font_of_the_page_or_the_one_of_matplotlib():
    assert installed_fonts()[-1] == "DejaVu Sans"


def test_many_or_long_names_leave_room_for_the_data():
    for count, length in ((4, 55), (40, 12), (3, 100)):
        figure = Figure((4.2, 3.6), layout="constrained")
        axes = figure.subplots()
        for number in range(count):
            axes.plot([0, 1], [0, number], label=f"{number}{'x' * length}")
        legend_below(axes, columns=3)
        figure.canvas.draw()
        assert axes.get_window_extent().height > 100
