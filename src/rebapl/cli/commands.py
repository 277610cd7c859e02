"""The commands. Each imports what it needs when it is called, so that `--help` answers at once."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
import warnings
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

import typer

from rebapl import __version__
from rebapl.cli.data import data as data_commands
from rebapl.cli.embed import embed
from rebapl.cli.evaluate import evaluate
from rebapl.cli.export import export
from rebapl.cli.learn import learn
from rebapl.cli.options import described
from rebapl.cli.predict import predict
from rebapl.cli.report import report
from rebapl.cli.reproduce import reproduce
from rebapl.cli.results import results
from rebapl.cli.serve import serve
from rebapl.cli.share import share
from rebapl.cli.train import run, train
from rebapl.errors import FailedError, UserError, printable
from rebapl.interruption import Interrupted, interrupt

FAILED, REFUSED = 1, 2
"""The exit codes for work that failed and for bad input."""

INTERRUPTED = 128
"""The exit code of interrupted work is this plus the number of the signal: 130 after Ctrl-C, as typer has it."""

RESUMABLE = ("train", "run", "reproduce", "learn", "embed")
"""The commands that go on where they stopped if they are given again."""

_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows lacks some

_debug: ContextVar[bool] = ContextVar("debug", default=False)

app = typer.Typer(
    name="rebapl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line.

    A `UserError` or an `OSError` becomes one line on stderr. The exit code is 1 if it is a `FailedError`, otherwise 2.
    `--debug` shows the traceback before that line. After Ctrl-C, SIGTERM or SIGHUP a line says which part of the work
    is kept.
    """
    # Threads of OpenMP wait for one another by spinning. Where other programs use the same cores, spinning for long
    # makes them many times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Pillow warns of damaged EXIF data and of large photos, but reads these files; others are reported as errors.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    before = {number: signal.getsignal(number) for number in _ENDINGS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # `nohup` ignores SIGHUP, and so it stays
            signal.signal(number, interrupt)
    try:
        app()
    except (UserError, OSError) as error:
        if _debug.get():
            traceback.print_exc()
        _show_error(str(error) if isinstance(error, UserError) else _system_error(error))
        sys.exit(FAILED if isinstance(error, FailedError) else REFUSED)
    except SystemExit as ending:
        if ending.code != INTERRUPTED + signal.SIGINT:
            raise
        interruption = _interruption(ending)
        print(_how_to_go_on(interruption.kept), file=sys.stderr)
        sys.exit(INTERRUPTED + interruption.signal)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interruption(ending: BaseException) -> Interrupted:
    """The interruption that ended typer, which raises an exception of its own while it handles this one."""
    error: BaseException | None = ending
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error or Interrupted()


def _how_to_go_on(kept: str) -> str:
    """The last line after an interruption: which part of the work is kept, and the command that continues it."""
    words = [word for word in sys.argv[1:] if word != "--anew"]  # given again, it would delete what is done now
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    if not kept and next((word for word in words if word in commands), None) not in RESUMABLE:
        return "stopped"
    message = kept or "finished runs are kept, and the others go on from their last checkpoint, if they have one"
    return f"stopped; {message}. Go on with: rebapl {shlex.join(words)}"


def _system_error(error: OSError) -> str:
    """An error of the operating system in one line: which file, and why it could not be read or written."""
    if error.filename is None or error.strerror is None:
        message = " ".join(str(error).split()) or type(error).__name__
    else:
        message = f"{printable(str(error.filename))}: {error.strerror}"
    return f"{message} (rebapl --debug … shows where it happened)"


def _show_error(message: str) -> None:
    from rich.console import Console
    from rich.markup import escape

    shown = escape(printable(message, keep="\n"))
    Console(stderr=True, highlight=False).print(f"[bold red]error:[/bold red] {shown}", soft_wrap=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rebapl {__version__}")
        raise typer.Exit


@app.callback()
@described
def _root(
    *,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,  # noqa: ARG001 (its callback acts)
    debug: bool = False,
    plugin: Annotated[list[str] | None, typer.Option(metavar="MODULE")] = None,
) -> None:
    """Sample the posterior of CLIP's prompts instead of optimising them, and know when you do not know.

    Parameters:
        version: Show the version and exit.
        debug: Also show the traceback of an error.
        plugin: Import this module first. It may register methods, distances, presets, data sets, engines and trackers.
            Repeatable.
    """
    _debug.set(debug)
    if plugin:
        from rebapl.plugins import use_modules

        use_modules(plugin)


@app.command()
@described
def demo(
    *,
    out: Path = Path("demo"),
) -> None:
    """Compare a few methods, base-to-novel, on two embedded tasks. It takes about two minutes on two cores.

    Parameters:
        out: Folder for the table, the figure and the runs, which a second call finds again.
    """
    from rebapl.cli.progress import StepProgress, print_table
    from rebapl.reproduce.demo import REMARK, run_demo

    with StepProgress() as progress:
        table = run_demo(out, progress.begin)
    print_table(table)
    print(REMARK)
    print(f"the table is in {out / 'table.md'}, the figure in {out / 'figure.png'}")


for command in (learn, train, run, evaluate, results, report, predict, serve, embed, share, export, reproduce):
    app.command()(described(command))
app.add_typer(data_commands, name="data")


@app.command()
@described
def toy(
    *,
    out: Path = Path("toy"),
    seed: int = 1,
) -> None:
    """Draw the paper's example with two modes: potential, repulsion, trajectories, and the modes that they visit.

    Parameters:
        out: Folder for the pictures, each as PNG and as PDF.
        seed: Seed of the trajectories.
    """
    from rebapl.reproduce.toy_figures import draw_toy

    for path in draw_toy(out, seed):
        print(path)


@app.command("list")
def list_() -> None:
    """List the data sets, the methods, the kinds of inference and the distances."""
    from rebapl.data.catalogue import DATASETS
    from rebapl.learners import METHODS
    from rebapl.repulsion import DISTANCES
    from rebapl.sampling import PRESETS

    print(f"data sets: {', '.join(DATASETS)}")
    print("methods:")
    for name, method in METHODS.items():
        print(f"  {name:<15} {method.about}".rstrip())
    print("inference:")
    for name, preset in PRESETS.items():
        print(f"  {name:<15} {preset.about}".rstrip())
    print(f"distances: {', '.join(DISTANCES)}")


config = typer.Typer(no_args_is_help=True, help="Write the JSON schema of configuration files.")
app.add_typer(config, name="config")


@config.command()
@described
def schema(
    *,
    out: Path | None = None,
) -> None:
    """Write the JSON schema of configuration files, by which editors complete and check them.

    Parameters:
        out: File to write; if not given, the schema is printed.
    """
    import json

    from rebapl.files import write_json
    from rebapl.runs.config_file import run_schema

    if out is None:
        print(json.dumps(run_schema(), indent=2, ensure_ascii=False))
    else:
        write_json(out, run_schema())
        print(f"written: {out}; the first line of a YAML file names it: # yaml-language-server: $schema={out}")
