"""The demonstration at its smallest: table, figure and results are written."""

import json
from pathlib import Path

import pytest
from PIL import Image

from rebapl.reports.style import save_figure
from rebapl.reports.tables import Cell
from rebapl.reproduce import demo
from rebapl.reproduce.demo import MethodScores, demo_figure
from rebapl.reproduce.suites import TableRow


def test_the_demo_leaves_a_table_a_figure_and_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    selection = (demo.SELECTION[0], TableRow("maple · rebapl", "maple", "rebapl", {"epochs": 1}))
    for name, value in {"SHOTS": 2, "TEST_IMAGES": 20, "TASKS": ["digits"], "SELECTION": selection}.items():
        monkeypatch.setattr(demo, name, value)
    bars: dict[str, int] = {}

    def bar(title: str):
        return lambda done, total, _: bars.__setitem__(title, done - total)

    table = demo.run_demo(tmp_path, bar)
    assert bars == {"digits: maple · rebapl": 0}
    stored = json.loads((tmp_path / "results.json").read_text())
    assert [row[:2] for row in table.rows] == [["digits", each["method"]] for each in stored]
    for row, each in zip(table.rows, stored, strict=True):
        scores = [cell.value for cell in row[2:] if isinstance(cell, Cell)]
        assert scores == [*(each["scores"][name] for name in ("base", "novel", "hm", "nll", "ece")), each["seconds"]]
    written = (tmp_path / "table.md").read_text().splitlines()
    assert written[0] == "| task | method | base ↑ | novel ↑ | HM ↑ | NLL ↓ | ECE ↓ |", "no seconds, which differ"
    assert "| digits | maple · rebapl |" in written[-1]
    assert Image.open(tmp_path / "figure.png").size[0] > 1000
    bars.clear()
    assert demo.run_demo(tmp_path, bar).rows == table.rows, "the runs are found again"
    assert bars == {}


def row(method: str, base: float) -> MethodScores:
    return MethodScores("task", method, {"base": base, "novel": 70.0, "hm": 75.0, "nll": 0.5, "ece": 5.0}, 1.0)


def test_the_figure_shows_every_method_of_every_task() -> None:
    rows = [row(name, 80.0) for name in "abc"]
    few, many = (demo_figure(each) for each in (rows, [*rows, *(each._replace(task="other") for each in rows)]))
    assert len(few.axes) == 2
    assert [[label.get_text() for label in axes.get_yticklabels()] for axes in many.axes[::2]] == [[*"abc"]] * 2
    assert many.get_size_inches()[1] > few.get_size_inches()[1]


def test_points_that_coincide_are_both_seen(tmp_path: Path) -> None:
    """Base and novel at 70 %: each colour covers as much of the picture as where they lie apart."""
    areas = {}
    for base in (70.0, 80.0):
        picture = Image.open(save_figure(demo_figure([row("a", base)]), tmp_path / f"{base:g}.png"))
        colours = picture.convert("RGB").getcolors(picture.width * picture.height)
        assert colours is not None
        areas[base] = [sum(n for n, seen in colours if seen == colour) for colour in ((0, 114, 178), (230, 159, 0))]
    assert areas[70.0] == pytest.approx(areas[80.0], rel=0.15)
    assert min(areas[70.0]) > 100
