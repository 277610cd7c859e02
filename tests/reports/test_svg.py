"""Drawings: points land where they should, what cannot be drawn is left out, and text is escaped."""

import math
import re
from xml.etree import ElementTree

import pytest

from rebapl.reports.svg import Axis, Plot, grid_of_shares


def test_corners_of_the_axes_are_corners_of_the_plot() -> None:
    plot = Plot(Axis("x", 10, 20), Axis("y", 0.01, 100, log=True), "about")
    left, bottom = plot.at(10, 0.01)
    right, top = plot.at(20, 100)
    assert plot.at(15, 1) == pytest.approx(((left + right) / 2, (bottom + top) / 2))
    assert plot.at(-5, 1e9) == (left, top), "what lies outside is moved to the edge"


def test_a_line_has_a_gap_where_a_value_cannot_be_drawn() -> None:
    plot = Plot(Axis("x", 0, 6), Axis("y", 0.1, 10, log=True), "about")
    plot.line([(0, 1), (1, 2), (2, math.nan), (3, 1), (4, 2), (5, -1), (6, 1)], "blue")
    svg = plot.to_svg()
    assert [len(points.split()) for points in re.findall(r'points="([^"]*)"', svg)] == [2, 2]
    assert svg.count("<circle") == 1, "a point alone is a dot"


def test_text_is_escaped_and_the_drawing_is_well_formed() -> None:
    evil = '"><script>alert(1)</script>&'
    plot = Plot(Axis(evil, 0, 1), Axis(evil, 0, 1, percent=True), evil)
    plot.dot(0.5, 0.5, "blue", about=evil)
    for svg in (plot.to_svg(), grid_of_shares([[0.0, 1.0], [0.5, 0.0]], evil)):
        assert "<script" not in svg
        assert ElementTree.fromstring(svg).get("aria-label") == evil


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[], [3.0], [0.0, 0.0], [math.nan, 1e-9], [-1.0, 0.0], [5.0, 5.0], [1e-7, 3e4]])
def test_any_values_make_an_axis_with_ticks_inside(values: list[float], log: bool) -> None:
    axis = Axis.around("x", values, log=log)
    assert axis.low < axis.high
    assert all(-0.01 <= axis.share(tick) <= 1.01 for tick in axis.ticks())
    assert len(axis.ticks()) >= 2
