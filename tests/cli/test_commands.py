"""The command line as a person meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rebapl import __version__
from rebapl.cli.commands import app, main
from rebapl.errors import UserError


def rebapl(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-c", "from rebapl.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)


def inside(*words: str) -> Result:
    """The same in this process, which saves the start."""
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, words)


def started(*words: str) -> float:
    """The seconds of CPU that a process of its own takes."""
    before = os.times()
    rebapl(*words)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_help_is_quick_and_names_the_commands() -> None:
    shown = rebapl("--help")
    assert shown.returncode == 0
    for command in ("demo", "train", "evaluate", "toy", "list"):
        assert command in shown.stdout
    assert started("--help") < 1.0  # now that compiled files are there


def test_version() -> None:
    assert inside("--version").stdout.strip() == f"rebapl {__version__}"


def test_train_then_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("train --data digits --method coop --inference mle --shots 2 --seed 1 --backbone mini --epochs 1").split()
    trained = rebapl(*words, "--out", "runs/x", cwd=tmp_path)  # a process of its own, as for a person
    assert trained.returncode == 0, trained.stderr
    assert "trained: runs/x" in trained.stdout
    monkeypatch.chdir(tmp_path)
    scored = inside("evaluate", "runs/x")
    assert scored.exit_code == 0, scored.stderr
    for word in ("base", "novel", "harmonic mean"):
        assert word in scored.stdout
    assert (tmp_path / "runs/x/results.json").is_file()
    assert "already trained" in inside(*words, "--out", "runs/x").stdout


def test_bad_input_is_one_clear_line_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rebapl", *"train --data digit --backbone mini --out x".split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.lstrip().startswith("error: unknown data set 'digit': did you mean 'digits'?")
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_list_names_what_there_is() -> None:
    shown = inside("list").stdout
    for word in ("digits", "shapes-rotated", "maple", "mmrl++", "rebapl", "svgd"):
        assert word in shown


def test_runs_by_config_and_words_go_to_hashed_folders_and_into_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(
        "data: digits\nbackbone: mini\nmethod: {name: maple, tokens: 3}\nshots: 2\nepochs: 1\ntest_images: 20\n"
    )
    words = ("train", "--config", "run.yaml", "--seeds", "1,2", "method.tokens=1", "--evaluate", "--device", "cpu")
    shown = inside(*words)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("trained: runs/digits-maple-mle-s") == 2
    assert inside(*words).stdout.count("already trained: runs/digits-maple-mle-s") == 2
    folders = sorted(Path("runs").iterdir())
    assert len(folders) == 2
    assert json.loads((folders[0] / "config.json").read_text())["resolved"]["method"]["tokens"] == 1
    table = inside("results", "--export", "r.csv", "--export", "r.md", "--export", "r.tex")
    assert table.exit_code == 0, table.output
    for word in ("base-to-novel", "maple", "±", "1, 2", "epochs=1, tokens=1, 20 test images"):
        assert word in table.stdout
    assert "| digits | maple | mle |" in Path("r.md").read_text()
    assert r"\begin{tabular}" in Path("r.tex").read_text()
    assert len(Path("r.csv").read_text().splitlines()) == 1 + 2 * 2 * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train sed=2", "did you mean 'seed'"),
        ("train --data digits --seeds 1,x", "whole numbers"),
        ("train --data digits --seeds 1,1", "name it once"),
        ("train --data digits --seeds 1,2 --out x", "--out names the folder of one run"),
        ("train --data digits --seed 1 --seeds 1,2", "give one of them"),
        ("train --backbone mini", "which data set"),
        ("train --config no.yaml", "cannot be read"),
        ("train --data digits --backbone mini method.tokns=2", "did you mean 'tokens'"),
        ("train --data digit --backbone mini", "did you mean 'digits'"),
        ("results nowhere", "is not a folder of runs"),
        ("results . --export x.xls", "Accepted: .csv, .md, .tex"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = inside(*words.split())
    assert isinstance(shown.exception, UserError)
    assert message in str(shown.exception)
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_says_that_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rebapl.reproduce.toy.draw_toy", interrupted)
    monkeypatch.setattr("sys.argv", ["rebapl", "toy"])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 130
    assert capsys.readouterr().err.strip() == "stopped; what was finished is kept"
