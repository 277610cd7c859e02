"""The page on performance shows the measurements that lie beside it, number by number."""

import json
from pathlib import Path

import pytest

import performance_page
from rebapl.reproduce.bench_records import AnswerTimes, Measured


def test_the_page_is_up_to_date() -> None:
    page = (performance_page.DOCS / "performance.md").read_text(encoding="utf-8")
    assert len(performance_page.PLACE.findall(page)) == 2
    assert performance_page.filled(page) == page


def test_a_measurement_is_put_in_its_place_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performance_page, "DOCS", tmp_path)
    counts = dict.fromkeys(("steps", "warm_up", "plain_steps", "plain_warm_up", "repeats", "seconds"), 3)
    versions = {"torch": "2.11", "rebapl": "0.1"}
    about = {"device": "cpu", "threads": 2, "backbone": "mini", "dtype": "float32", "captured": False, **counts}
    measured = Measured({**about, "versions": versions}, [], [AnswerTimes("coop", 50, 1, 64, 4.0, 10.0, 8.0, 40.0)])
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "bench-a.json").write_text(json.dumps(measured.plain()))
    page = "before\n<!-- measured: {} -->\nold\n<!-- end -->\nafter\n"
    found = performance_page.filled(page.format("bench-a") + page.format("bench-b"))
    assert "| coop | 1 | 4.00 | 8.00 | 2.0 | 6400 | 1600 | 4.0 |" in found
    assert found.count("old") == 1
    assert found.endswith(page.format("bench-b"))
    assert performance_page.filled(found) == found
