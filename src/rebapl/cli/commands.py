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
"""The exit codes of work that failed, and of bad input."""

INTERRUPTED = 128
"""The exit code of interrupted work is this and the number of the signal: 130 after Ctrl-C, with which typer ends."""

RESUMABLE = ("train", "run", "reproduce", "learn", "embed")
"""The commands that go on where they were when they are given again."""

_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # as Windows has them

_debug: ContextVar[bool] = ContextVar("debug", default=False)

app = typer.Typer(
    name="rebapl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; a `UserError` or an `OSError` becomes one line on stderr, and exit code 2, or 1 for work.

    `--debug` shows the traceback before that line. After Ctrl-C, SIGTERM or SIGHUP a line says which part of the work
    is kept.
    """
    # Threads that wait for one another by spinning long are many times slower when other programs want the cores too.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Pillow warns of damaged EXIF and of large photos, which are read all the same; what cannot be read is an error.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    before = {number: signal.getsignal(number) for number in _ENDINGS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as `nohup` asks for
            signal.signal(number, interrupt)
    try:
        app()
    except (UserError, OSError) as error:
        if _debug.get():
            traceback.print_exc()
        _show_error(str(error) if isinstance(error, UserError) else _of_the_system(error))
        sys.exit(FAILED if isinstance(error, FailedError) else REFUSED)
    except SystemExit as ending:
        if ending.code != INTERRUPTED + signal.SIGINT:
            raise
        found = _interruption(ending)
        print(_how_to_go_on(found.kept), file=sys.stderr)
        sys.exit(INTERRUPTED + found.signal)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interruption(ending: BaseException) -> Interrupted:
    """The interruption that made typer end: typer raises its own exception while it handles this one."""
    error: BaseException | None = ending
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error or Interrupted()


def _how_to_go_on(kept: str) -> str:
    """The last line of interrupted work: which part of it is kept, and the command that goes on with it."""
    words = sys.argv[1:]
    if not kept and not any(word in RESUMABLE for word in words):
        return "stopped"
    if kept:  # which --anew would delete
        words = [word for word in words if word != "--anew"]
    what = kept or "finished runs are kept, and the others go on from their last checkpoint, if they have one"
    return f"stopped; {what}. Go on with: rebapl {shlex.join(words)}"


def _of_the_system(error: OSError) -> str:
    """The error of the system in one line: which file, and why it could not be read or written."""
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
        debug: Show the traceback of an error, too.
        plugin: Import this module first: it may register methods, distances, presets, data sets, trackers.
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
    """Base-to-novel on two embedded tasks: about two minutes on two cores.

    Parameters:
        out: Folder for the table and the figure.
    """
    from rebapl.cli.progress import StepProgress, print_table
    from rebapl.reproduce.demo import REMARK, run_demo

    with StepProgress() as progress:
        table = run_demo(out, progress.begin)
    print_table(table)
    print(REMARK)
    print(f"the table is in {out / 'table.md'}, the figure in {out / 'figure.png'}")


for command in (learn, train, run, evaluate, results, report, predict, embed, serve, share, export, reproduce):
    app.command()(described(command))
app.add_typer(data_commands, name="data")


@app.command()
@described
def toy(
    *,
    out: Path = Path("toy"),
    seed: int = 1,
) -> None:
    """Draw the paper's two-mode example: potential, repulsion, trajectories, modes visited (PNG and PDF).

    Parameters:
        out: Folder for the pictures.
        seed: The one seed of the pictures.
    """
    from rebapl.reproduce.toy_figures import draw_toy

    for path in draw_toy(out, seed):
        print(path)


@app.command("list")
def list_() -> None:
    """Name the data sets, methods, kinds of inference and distances there are, and say what they are."""
    from rebapl.data.catalogue import REGISTERED
    from rebapl.data.embedded import EMBEDDED
    from rebapl.data.published import PUBLISHED
    from rebapl.learners import METHODS
    from rebapl.repulsion import DISTANCES
    from rebapl.sampling import PRESETS

    print(f"data sets: {', '.join([*EMBEDDED, *PUBLISHED, *REGISTERED])}")
    print("methods:")
    for name, method in METHODS.items():
        print(f"  {name:<15} {method.about}".rstrip())
    print("inference:")
    for name, preset in PRESETS.items():
        print(f"  {name:<15} {preset.about}".rstrip())
    print(f"distances: {', '.join(DISTANCES)}")


config = typer.Typer(no_args_is_help=True)
app.add_typer(config, name="config")


@config.callback()
def _config() -> None:
    """Configuration files: a schema for editors."""


@config.command()
@described
def schema(
    *,
    out: Path | None = None,
) -> None:
    """Write the JSON schema of run configurations, with which editors complete and check YAML files.

    Parameters:
        out: File to write; it is printed if not given.
    """
    import json

    from rebapl.files import write_json
    from rebapl.runs.config_file import run_schema

    if out is None:
        print(json.dumps(run_schema(), indent=2, ensure_ascii=False))
    else:
        write_json(out, run_schema())
        print(f"written: {out}; the first line of a YAML file names it: # yaml-language-server: $schema={out}")
