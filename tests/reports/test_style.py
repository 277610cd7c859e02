"""The style of figures: lines that can be told apart, and files that are whole and the same each time."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from rebapl.reports.style import PAPER_FONTS, line_style, save_figure, save_for_paper


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
