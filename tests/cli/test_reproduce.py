"""`rebapl reproduce` as a person meets it."""

from pathlib import Path

import pytest
from drawn_published import make_fixture
from typer.testing import CliRunner

from rebapl.cli.commands import app
from rebapl.errors import UserError
from rebapl.files import write_atomically
from rebapl.reproduce.suites import named_suite
from rebapl.reproduce.targets import PAPER_TARGETS
from rebapl.runs.folder import run_folder


def reproduce(*words: str) -> str:
    result = CliRunner().invoke(app, ["reproduce", *words])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_list_names_every_target() -> None:
    assert [line.split()[0] for line in reproduce("--list").splitlines()] == [*PAPER_TARGETS]


def test_a_dry_run_shows_the_runs_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = reproduce("table2", "samples", "--suite", "mini", "--dry-run", "--seeds", "1")
    assert "shapes cross-dataset maple · rebapl" in shown
    assert "samples_per_cycle=5" in shown
    assert "to do" in shown
    assert "Missing data" not in shown
    assert list(tmp_path.iterdir()) == []


def test_the_dry_run_of_the_paper_needs_no_data_and_says_what_is_missing(tmp_path: Path) -> None:
    shown = reproduce("table1", "--dry-run", "--methods", "maple", "--data", "eurosat,dtd")
    assert "Missing data: eurosat: no --root is given." in shown
    make_fixture("dtd", tmp_path)
    shown = reproduce("table1", "--dry-run", "--methods", "maple", "--data", "eurosat,dtd", "--root", str(tmp_path))
    assert f"Missing data: eurosat: there is no {tmp_path / 'eurosat' / '2750'}." in shown
    assert "Missing data: dtd" not in shown


def test_any_method_may_be_named() -> None:
    shown = reproduce("table1", "table2", "--suite", "mini", "--dry-run", "--methods", "vpt,app", "--seeds", "1")
    assert "digits app · svgd" in shown
    assert "digits vpt · mle" in shown
    assert "shapes cross-dataset vpt · mle" in shown
    assert "maple" not in shown


@pytest.mark.parametrize("content", ["{", "[]", '{"parts": {"base": {"accuracy": "high"}}}'])
def test_a_damaged_result_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    """All targets are planned before the first run."""
    words = "table1 table2 --suite mini --data digits --methods zero-shot --seeds 1 --dry-run --runs".split()
    config = PAPER_TARGETS["table1"].runs(
        named_suite("mini", None, None, ["digits"]).changed(methods=("zero-shot",), seeds=[1])
    )[0]
    damaged = run_folder(config, tmp_path) / "results.json"
    write_atomically(damaged, content)
    with pytest.raises(UserError, match=rf"{damaged} is damaged \(.*\): delete it and score the run again"):
        reproduce(*words, str(tmp_path))


def test_a_table_by_one_command(tmp_path: Path) -> None:
    words = "table1 --suite mini --data digits --methods zero-shot --seeds 1 --test-images 20".split()
    shown = reproduce(*words, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--device", "cpu")
    assert "Table 1" in shown
    assert "Miniature" in shown
    assert "CLIP" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1"], "did you mean 'table1'"),
        ([], "what is to be made"),
        (["table1", "--suite", "min"], "did you mean 'mini'"),
        (["table1", "--suite", "mini", "--data", "digit"], "did you mean 'digits'"),
        (["table1", "--suite", "mini", "--methods", "mapel"], "did you mean 'maple'"),
        (["table1", "--suite", "mini", "--hm", "averages"], "did you mean 'of-averages'|did you mean 'average'"),
        (["table1", "--suite", "mini", "--seeds", "one"], "whole numbers"),
        (["table1", "--suite", "photo"], "--backbone"),
        (["table1", "--split", "eurosat"], "DATA=FILE"),
        (["table1", "--split", "eurosta=x.json"], "did you mean 'eurosat'"),
        (["table1", "--suite", "mini", "--seeds", "1,1"], "name it once"),
        (["table1", "--suite", "mini", "--inference", "rebpl", "--dry-run"], "did you mean 'rebapl'"),
        (["plug-and-play", "--suite", "mini", "--methods", "zero-shot"], "learns nothing"),
    ],
)
def test_bad_input_says_what_is_accepted(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        reproduce(*words)
