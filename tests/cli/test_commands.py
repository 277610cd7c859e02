"""The command line as a person meets it."""

import errno
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rebapl import __version__
from rebapl.cli import commands
from rebapl.cli.commands import app, main
from rebapl.errors import UserError
from rebapl.learners import METHODS
from rebapl.runs.run import Job
from rebapl.sampling import PRESETS, Chain
from rebapl.training.checkpoint import load_checkpoint

ENVIRONMENT = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
COMMAND = "from rebapl.cli import main; main()"


def rebapl(*words: str, cwd: Path | None = None, before: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", before + COMMAND, *words]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd, check=False)


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
    """It computes little, whatever else the machine does meanwhile, and loads none of the large packages."""
    large = ("torch", "transformers", "numpy", "scipy", "matplotlib", "pydantic")
    report = f"atexit.register(lambda: print('loaded:', [name for name in {large} if name in sys.modules]))"
    rebapl("--help")  # once, so that compiled files are there
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = rebapl("--help", before=f"import atexit, sys; {report}; ")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert shown.returncode == 0
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    assert "loaded: []" in shown.stdout
    for command in ("demo", "train", "run", "evaluate", "toy", "list"):
        assert command in shown.stdout
    assert started("--help") < 1.0  # now that compiled files are there


def test_version() -> None:
    assert inside("--version").stdout.strip() == f"rebapl {__version__}"
    as_module = subprocess.run(
        [sys.executable, "-m", "rebapl", "--version"], capture_output=True, text=True, check=True
    )
    assert as_module.stdout.strip() == f"rebapl {__version__}"


def test_train_then_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("train --data digits --method coop --inference mle --shots 2 --seed 1 --epochs 1 test_images=40").split()
    trained = rebapl(*words, "--out", "runs/x", cwd=tmp_path)  # a process of its own, as for a person
    assert trained.returncode == 0, trained.stderr
    assert "trained: runs/x" in trained.stdout
    assert "backbone: mini, since none is given" in trained.stderr
    monkeypatch.chdir(tmp_path)
    scored = inside("evaluate", "runs/x")
    assert scored.exit_code == 0, scored.stderr
    for word in ("base", "novel", "harmonic mean"):
        assert word in scored.stdout
    assert (tmp_path / "runs/x/results.json").is_file()
    assert "already trained" in inside(*words, "--out", "runs/x").stdout


@pytest.mark.parametrize("words", ["train --data digit --backbone mini --out x", "train --data digit", "learn digit"])
def test_bad_input_is_one_clear_line_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """A wrong data set is named before the default backbone is looked for, which not every machine can reach."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rebapl", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.lstrip().startswith("error: unknown data set 'digit': did you mean 'digits'?")
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_a_data_set_is_not_scored_on_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--data` is for images that have moved. The scores of other images would replace those of the run."""
    monkeypatch.chdir(tmp_path)
    words = "train --data digits --shots 1 --epochs 1 --evaluate --out x test_images=5 --device cpu".split()
    assert inside(*words).exit_code == 0
    scores = Path("x/results.json").read_bytes()
    for name in ("shapes", str(tmp_path)):
        refused = inside("evaluate", "x", "--data", name)
        assert "--data says where a run's own images are now, and x was trained on the data set digits" in str(
            refused.exception
        )
    assert "x has one sample: there are no distances to draw" in str(inside("evaluate", "x", "--heat-map").exception)
    assert Path("x/results.json").read_bytes() == scores


SMALL = "data: digits\nbackbone: mini\nshots: 1\nepochs: 1\ntest_images: 20\n"


def test_one_run_for_a_scheduler_prints_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(SMALL)
    words = ("run", "run.yaml", "--runs", "there", "--device", "cpu")
    monkeypatch.chdir(tmp_path)
    first = inside(*words)
    assert first.exit_code == 0, first.stderr
    folder = Path(first.stdout.strip())
    assert folder.parent == Path("there")
    scored = (folder / "results.json").stat().st_mtime_ns
    assert inside(*words).stdout == first.stdout
    assert (folder / "results.json").stat().st_mtime_ns == scored


def ending(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """The exit code of a command that ends with an error, in this process."""
    monkeypatch.setattr(sys, "argv", ["rebapl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_one_run_that_is_refused_ends_with_2_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(SMALL.replace("digits", "digit"))
    monkeypatch.chdir(tmp_path)
    assert ending(monkeypatch, "run", "run.yaml") == 2
    shown = capsys.readouterr().err
    assert "did you mean 'digits'" in shown
    assert "Traceback" not in shown
    assert [path.name for path in tmp_path.iterdir() if path.name != "runs"] == ["run.yaml"]


def test_one_run_that_fails_ends_with_1_and_names_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rebapl.runs.run.Training.run", lambda *_, **__: 1 / 0)
    assert ending(monkeypatch, "train", "--config", "run.yaml", "--seeds", "1,2", "--runs", "many") == 1
    assert ending(monkeypatch, "run", "run.yaml") == 1
    shown = capsys.readouterr().err
    assert "ZeroDivisionError" in shown
    assert "Traceback" not in shown
    (kept,) = tmp_path.glob("runs/*/error.txt")
    assert kept.name in shown
    assert "Traceback" in kept.read_text()


def command(folder: Path, *words: str) -> None:
    """What a forked process does, which saves the start: the command, in a folder, with its errors in `said.txt`.

    After its first step there is a file `stepped`.
    """
    os.chdir(folder)
    step = Chain.step
    Chain.step = lambda self: (step(self), Path("stepped").touch())[0]  # type: ignore[method-assign]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["rebapl", *words]
    with Path("said.txt").open("w", encoding="utf-8") as sys.stderr:
        main()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_one_run_that_is_interrupted_says_so_and_keeps_its_last_step(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    (tmp_path / "run.yaml").write_text(SMALL.replace("epochs: 1", "epochs: 100000"))
    words = ("run", "run.yaml", "--device", "cpu")
    process = multiprocessing.get_context("fork").Process(target=command, args=(tmp_path, *words))
    process.start()
    assert process.pid is not None
    try:
        while not (tmp_path / "stepped").exists():
            assert process.is_alive()
            time.sleep(0.01)
        os.kill(process.pid, sent)
        process.join(600)
        assert not process.is_alive()
    finally:
        process.kill()
        process.join()
    assert process.exitcode == code
    shown = (tmp_path / "said.txt").read_text(encoding="utf-8")
    said = re.search(r"stopped; step (\d+) of 100000 is kept. Go on with: rebapl run run.yaml --device cpu", shown)
    assert said is not None, shown
    (kept,) = tmp_path.glob("runs/*/checkpoint.safetensors")
    assert load_checkpoint(kept)["loop"]["schedule"]["steps"] == int(said[1]) > 0
    assert not list(tmp_path.glob("runs/*/error.txt"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that `rebapl train` hands to its engine, which does none of them."""
    jobs: list[Job] = []
    monkeypatch.setattr("rebapl.runs.engine.LocalEngine.run", lambda _, todo, __: jobs.extend(todo) or iter(()))
    return jobs


@pytest.mark.parametrize(("shots", "epochs"), [(1, 50), (2, 100), (4, 100), (8, 200), (16, 200)])
def test_coop_is_trained_by_the_published_epochs_of_the_shots(asked: list[Job], shots: int, epochs: int) -> None:
    inside("train", "--data", "digits", "--method", "coop", "--protocol", "few-shot", "--shots", str(shots))
    inference = asked[0].config.resolved().training.inference
    assert inference is not None
    assert inference.epochs == epochs


@pytest.mark.parametrize(
    ("method", "inference", "samples"), [("app", "svgd", 4), ("coop", "mle", 1), ("mmrl++", "mle", 1)]
)
def test_without_a_name_the_inference_is_the_published_one(
    asked: list[Job], method: str, inference: str, samples: int
) -> None:
    inside("train", "--data", "digits", "--method", method)
    inside("train", "--data", "digits", "--method", method, "--inference", inference)
    by_default, by_name = (job.config for job in asked)
    assert by_default.hash() == by_name.hash()
    training = by_default.resolved().training
    assert training.inference is not None
    assert (training.inference_name, training.inference.samples) == (inference, samples)


def test_help_says_what_the_inference_is_without_a_name() -> None:
    said = " ".join(inside("train", "--help").output.replace("│", " ").split())
    assert "svgd for app, mle for all others" in said


def test_list_has_a_line_on_each_method_and_preset() -> None:
    lines = dict(line.split(maxsplit=1) for line in inside("list").stdout.splitlines() if line.startswith("  "))
    assert lines.keys() == {*METHODS, *PRESETS}
    assert lines["coop"] == "CoOp: learnable context vectors around the class name."
    assert lines["mmrl++"].startswith("MMRL++: ")
    assert lines["ensemble"] == "the published recipe several times, from fresh starts"


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


def test_several_runs_are_shown_as_lines_and_their_cycles_may_be_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(SMALL + "inference: {name: ensemble, cycles: 2}\n")
    shown = inside("train", "--config", "run.yaml", "--seeds", "1,2", "--cycles-apart", "--device", "cpu")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("trained: runs/digits-coop-ensemble-s") == 2
    for line in (
        r"s1-\w+, cycle 2: started on cpu",
        r"s2-\w+, cycle 1: done in .* \(3 queued, 3 done\)",
        r"s2-\w+: done",
    ):
        assert re.search(line, shown.stderr), shown.stderr
    assert not list(Path("runs").glob("*/cycles"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train sed=2", "did you mean 'seed'"),
        ("train --data digits --seeds 1,x", "whole numbers"),
        ("train --data digits --seeds 1,1", "name it once"),
        ("train --data digits --seeds 1,2 seed=3", "the seed is given twice"),
        ("train --data digits --seeds 1,2 --out x", "--out names the folder of one run"),
        ("train --data digits --runs y --out x", "--out names the folder of this one run, and --runs that of all"),
        ("train --data digits --device ,", "--device ',' names nothing"),
        ("train --data digits -E =x", "write NAME=VALUE"),
        ("train --backbone mini", "which data set"),
        ("train --config no.yaml", "cannot be read"),
        ("run no.yaml", "cannot be read"),
        ("train --data digits --backbone mini method.tokns=2", "did you mean 'tokens'"),
        ("train --data digit --backbone mini", "did you mean 'digits'"),
        ("train --data digits --engine rai", "did you mean 'ray'"),
        (
            "train --data digits -E address=auto",
            "address: there is no such setting here. Accepted: devices, jobs",
        ),
        ("train --data digits --engine ray -E adress=auto", "did you mean 'address'"),
        ("train --data digits --engine ray -E auto", "write NAME=VALUE"),
        ("train --data digits --engine ray --jobs 2", "--jobs is for --engine local, not for ray"),
        ("train --data digits --engine slurm -E time=soon", "time is 'soon'"),
        ("reproduce table1 --suite mini --engine ray -E cpus=0", "cpus is '0': it must be at least 0.01"),
        ("reproduce table1 --suite mini --backbone nowhere", "unknown backbone 'nowhere'"),
        ("reproduce table1 --suite mini --methods ,", "--methods ',' names nothing"),
        ("reproduce table1 --root nowhere", "data root nowhere is not a folder"),
        ("reproduce table1 --data dtd", "data set 'dtd' is read from files: say where with --root"),
        ("train --data digits --cycles-apart", "--cycles-apart is for several cycles"),
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


def test_work_that_is_kept_does_not_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rebapl", "learn", "photos", "--anew"])
    assert commands._how_to_go_on("step 5 of 9 is kept").endswith("Go on with: rebapl learn photos")
    assert commands._how_to_go_on("").endswith("Go on with: rebapl learn photos")


def test_an_interruption_promises_nothing_that_is_not_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rebapl.reproduce.toy_figures.draw_toy", interrupted)
    monkeypatch.setattr("sys.argv", ["rebapl", "toy"])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 130
    assert capsys.readouterr().err.strip() == "stopped"


def test_a_template_that_would_change_nothing_is_refused(tmp_path: Path) -> None:
    words = ["train", "--data", "digits", "--method", "coop", "template='a {}.'", "--runs", str(tmp_path / "runs")]
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, UserError)
    assert "template has no effect: coop does not use it" in str(refused.exception)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("kind", ["a file where a folder should be", "a full disk"])
def test_what_the_system_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, debug: bool
) -> None:
    out = tmp_path / "schema.json"
    if kind == "a full disk":

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))

        monkeypatch.setattr(os, "fsync", full)
    else:
        (tmp_path / "file").touch()
        out = tmp_path / "file" / "x" / "schema.json"
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(sys, "argv", ["rebapl", *(["--debug"] if debug else []), "config", "schema", "--out", str(out)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(f"error: {tmp_path}")
    assert (said.count("\n") == 1) != debug
    assert ("Traceback" in said) == debug
