"""Tables: the same numbers rounded for people and unrounded for programs; footnotes, signs, repeats."""

import csv
import io
import re

import pytest

from rebapl.cli.progress import print_table
from rebapl.reports.html import PAGES
from rebapl.reports.tables import Cell, Table, latex
from rebapl.reproduce.paper import paper
from rebapl.reproduce.targets import PAPER_TARGETS
from rebapl.score_columns import SCORE_COLUMNS, headings

TABLE = Table(
    "scores & more",
    ["data", "method", "ours", "paper", "diff."],
    [
        ["digits", "maple", Cell(81.23456, 0.3, best=True), Cell(80.0, notes=("a slip",)), Cell(1.23456, signed=True)],
        ["digits", "a | b", Cell(None), Cell(79.0, notes=("a slip", "another")), Cell(-0.5, signed=True)],
        ["shapes", "maple", Cell(70.0), Cell(70.0), Cell(0.001, signed=True)],
    ],
    notes=["one seed"],
    groups=[("", 2), ("base", 3)],
    merged=1,
)


def test_csv_is_unrounded_and_says_every_row_in_full() -> None:
    rows = list(csv.DictReader(io.StringIO(TABLE.to_csv())))
    assert rows[0]["base ours"] == "81.23456"
    assert rows[0]["base ours std"] == "0.3"
    assert rows[1]["data"] == "digits"
    assert rows[1]["base ours"] == ""
    assert rows[1]["notes"] == "a slip; another"


def test_a_terminal_leaves_out_what_repeats_and_numbers_footnotes_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TABLE)
    text = capsys.readouterr().out
    assert text.count("digits") == 1
    assert "80.00 [1]" in text
    assert "79.00 [1,2]" in text
    assert text.count("[1] a slip") == 1
    assert "[2] another" in text
    assert "81.23 ± 0.30" in text
    assert "+1.23" in text
    assert " 0.00 " in text, "a difference that rounds to zero has no sign"


def test_markdown_and_latex_escape_what_would_break_them() -> None:
    assert "a \\| b" in TABLE.to_markdown()
    assert "**81.23 ± 0.30**" in TABLE.to_markdown()
    text = TABLE.to_latex()
    assert r"scores \& more" in text
    assert r"\multicolumn{3}{c}{base}" in text
    assert r"\textbf{81.23 $\pm$ 0.30}" in text
    assert r"\textcolor{red}{-0.50}" in text
    for row in text.splitlines():
        if row.endswith(r"\\") and "multicolumn" not in row:
            assert row.replace(r"\&", "").count("&") == 4
    assert latex("50 % of_it") == r"50 \% of\_it"


def test_latex_has_a_command_for_every_greek_letter_of_the_paper_s_tables() -> None:
    """`pdflatex` stops at a Greek letter that stands for itself."""
    titles = [each.title for table in PAPER_TARGETS.values() for each in getattr(table, "scores", {}).values()]
    words = " ".join([*titles, *headings(*SCORE_COLUMNS), *paper()["tables"]["settings"]["titles"].values()])
    assert {"α", "ξ", "τ"} <= set(words)
    assert not re.search("[α-ωΑ-Ω]", latex(words))


def test_the_best_of_a_section_is_what_looks_best() -> None:
    numbers = {"a": [(80.001, 3.0), (80.004, 2.0), (79.9, 2.5)], "b": [(90.0, 1.0)]}
    rows: list[list[Cell | str]] = [[name, Cell(up), Cell(down)] for name, each in numbers.items() for up, down in each]
    table = Table.sectioned("t", ["data", "accuracy ↑", "NLL ↓"], rows)
    best = [[cell.best for cell in row if isinstance(cell, Cell)] for row in table.rows]
    assert best == [[True, False], [True, True], [False, False], [False, False]]
    assert table.lines == {3}


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 cells under 3"):
        Table("t", ["a", "b", "c"], [["x", "y"]])
    with pytest.raises(ValueError, match="groups"):
        Table("t", ["a", "b"], [], groups=[("x", 3)])


def test_html_has_intervals_shades_and_signs_and_is_escaped() -> None:
    evil = "<b>&"
    gain, loss = Cell(1.0, signed=True, best=True), Cell(-1.0, signed=True, notes=(evil,))
    rows: list[list[Cell | str]] = [[evil, Cell(80.0, interval=(70.0, 90.0)), gain], [evil, Cell(None), loss]]
    in_html = PAGES.get_template("table.html").module.table
    page = in_html(Table(evil, [evil, "accuracy", "Δ"], rows))
    assert evil not in page
    assert "80.00<small>70.00 – 90.00</small>" in page
    assert "<strong>+1.00</strong>" in page
    assert "-1.00<sup>[1]</sup>" in page
    assert '<p class="notes">[1] &lt;b&gt;&amp;</p>' in page
    heat = in_html(Table("h", ["true", "a"], [["a", Cell(3.0, digits=0, share=0.9)], ["b", Cell(None, share=0.0)]]))
    assert '<td class="half full" style="--v:0.900">3</td>' in heat
    assert '<td style="--v:0.000"></td>' in heat
    assert '<table class="heat">' in heat
