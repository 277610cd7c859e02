"""The demonstration at its smallest: table, figure and results are written."""

import json
from pathlib import Path

import pytest
from PIL import Image

from rebapl.reports.figures import base_novel_figure
from rebapl.reports.results import MethodScores, base_novel_markdown
from rebapl.reproduce import demo
from rebapl.reproduce.suites import TableRow


def test_the_demo_leaves_a_table_a_figure_and_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SHOTS", 2)
    monkeypatch.setattr(demo, "TEST_IMAGES", 20)
    selection = (demo.SELECTION[0], TableRow("maple · rebapl", "maple", "rebapl", {"epochs": 1}))
    bars: dict[str, int] = {}

    def bar(title: str):
        return lambda done, total, _: bars.__setitem__(title, done - total)

    rows = demo.run_demo(tmp_path, bar, ("digits",), selection)
    assert bars == {"digits: maple · rebapl": 0}
    assert [row.method for row in rows] == ["zero-shot", "maple · rebapl"]
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored[0]["scores"] == rows[0].scores
    assert "| digits | maple · rebapl |" in (tmp_path / "table.md").read_text()
    assert Image.open(tmp_path / "figure.png").size[0] > 1000


def row(method: str, base: float, nll: float) -> MethodScores:
    return MethodScores("task", method, {"base": base, "novel": 70.0, "hm": 75.0, "nll": nll, "ece": 5.0}, 1.0)


def test_the_best_of_each_column_is_marked() -> None:
    lines = base_novel_markdown([row("a", 80.0, 0.5), row("b", 81.0, 0.6)]).splitlines()
    assert "| a | 80.0 | **70.0** | **75.0** | **0.500** |" in lines[2]
    assert "| b | **81.0** | **70.0** | **75.0** | 0.600 |" in lines[3]


def test_the_figure_shows_every_method_of_every_task(tmp_path: Path) -> None:
    small = base_novel_figure([row("a", 80.0, 0.5)], tmp_path / "small.png", "one seed")
    large = base_novel_figure([row(name, 80.0, 0.5) for name in "abcdef"], tmp_path / "large.png", "one seed")
    assert Image.open(large).size[1] > Image.open(small).size[1]


def test_points_that_coincide_are_both_seen(tmp_path: Path) -> None:
    """Base and novel at 70 %: each colour covers as much of the picture as where they lie apart."""
    areas = {}
    for base in (70.0, 80.0):
        picture = Image.open(base_novel_figure([row("a", base, 0.5)], tmp_path / f"{base:g}.png", "one seed"))
        colours = picture.convert("RGB").getcolors(picture.width * picture.height)
        assert colours is not None
        areas[base] = [sum(n for n, seen in colours if seen == colour) for colour in ((0, 114, 178), (230, 159, 0))]
    assert areas[70.0] == pytest.approx(areas[80.0], rel=0.15)
    assert min(areas[70.0]) > 100
