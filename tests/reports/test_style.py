"""The style of figures: lines that can be told apart, and files that are whole and the same each time."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from rebapl.reports.style import (
    BLUE,
    PAGE_FONTS,
    PAPER_FONTS,
    inline_svg,
    line_style,
    page_axes,
    page_legend,
    save_figure,
    save_for_paper,
)


def drawn() -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2], [3, 4], label="a line")
    return figure


def test_no_two_of_many_lines_look_alike() -> None:
    assert len({line_style(index) for index in range(42)}) == 42


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_a_figure_is_saved_as_the_same_bytes_each_time(tmp_path: Path, kind: str) -> None:
    first, second = (save_figure(drawn(), tmp_path / f"{name}.{kind}").read_bytes() for name in "ab")
    assert first == second
    assert first.startswith({"png": b"\x89PNG", "pdf": b"%PDF"}[kind])


def test_a_figure_that_cannot_be_drawn_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_text("old")
    figure = drawn()
    figure.axes[0].set_title(r"$\nonsense$")
    with pytest.raises(ValueError, match="nonsense"):
        save_figure(figure, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_figure_for_a_paper_has_fonts_that_publishers_accept(tmp_path: Path) -> None:
    png, pdf = save_for_paper(drawn(), tmp_path, "figure")
    assert (png.name, pdf.name) == ("figure.png", "figure.pdf")
    assert PAPER_FONTS["pdf.fonttype"] == 42
    assert b"/Type3" not in pdf.read_bytes()
    assert b"/Type3" in save_figure(drawn(), tmp_path / "plain.pdf").read_bytes()


def test_a_figure_in_a_page_follows_its_colours_and_is_escaped() -> None:
    evil = '"><script>alert(1)</script>&'

    @rc_context(PAGE_FONTS)
    def in_page(salt: str) -> str:
        figure, axes = page_axes(evil, evil)
        axes.plot([1, 2], [3, 4], color=BLUE, label=evil)
        page_legend(figure)
        return inline_svg(figure, evil, salt)

    svg = in_page("a")
    assert svg == in_page("a")
    ids = [set(re.findall(r' id="([^"]*)"', text)) for text in (svg, in_page("b"))]
    assert ids[0]
    assert not ids[0] & ids[1], "figures of one page share no names"
    assert "<script" not in svg
    assert "stroke: var(--blue)" in svg
    assert "http" not in svg
    assert not re.search(r"#(?:000000|ffffff)", svg), "black and white would stay in the dark"
    named = svg.replace("<svg ", '<svg xmlns:xlink="x" ')  # a browser knows this name without being told
    assert ElementTree.fromstring(named).get("aria-label") == evil
