"""Commands. Heavy imports happen inside them, so that help answers at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rebapl import __version__
from rebapl.cli.predict import predict
from rebapl.cli.values import parse_settings, parse_threshold
from rebapl.errors import UserError

app = typer.Typer(
    name="rebapl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; a `UserError` becomes one line on stderr and exit code 2."""
    # Threads that wait for one another by spinning long are many times slower when other programs want the cores too.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        app()
    except UserError as error:
        from rich.console import Console

        Console(stderr=True, highlight=False).print(f"[bold red]error:[/bold red] {_escaped(str(error))}")
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; what was finished is kept", file=sys.stderr)
        sys.exit(130)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rebapl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Sample the posterior of CLIP's prompts instead of optimising them, and know when you do not know."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the table and the figure.")] = Path("demo"),
) -> None:
    """Base-to-novel on two embedded tasks: about two minutes on two cores."""
    from rich.console import Console

    from rebapl.cli.progress import StepProgress
    from rebapl.experiments.demo import SEED, SHOTS, run_demo
    from rebapl.experiments.report import base_novel_table

    with StepProgress() as progress:
        rows = run_demo(out, progress.begin)
    Console().print(base_novel_table(rows, f"base-to-novel, {SHOTS} shots, seed {SEED}, embedded backbone"))
    print(f"the table is in {out / 'table.md'}, the figure in {out / 'figure.png'}")


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    data: Annotated[str, typer.Option(help="Data set; `rebapl list` names them.")],
    method: Annotated[str, typer.Option(help="What is learned, such as coop; `rebapl list` names them.")] = "coop",
    inference: Annotated[str, typer.Option(help="How, such as mle; `rebapl list` names them.")] = "mle",
    protocol: Annotated[str, typer.Option(help="base-to-novel, or few-shot (all classes).")] = "base-to-novel",
    shots: Annotated[int, typer.Option(help="Training images per class.")] = 16,
    seed: Annotated[int, typer.Option(help="The one seed of the run.")] = 1,
    backbone: Annotated[
        str, typer.Option(help="'mini' (embedded), a local Hugging Face folder, or a hub id.")
    ] = "openai/clip-vit-base-patch16",
    epochs: Annotated[int | None, typer.Option(help="Epochs per cycle instead of the published number.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; the GPU if there is one.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting, such as method.tokens=16 or inference.temperature=0.1; repeatable."),
    ] = None,
) -> None:
    """Learn prompts from a few labelled images. Finished runs are kept, broken ones continue."""
    from rebapl.cli.progress import StepProgress
    from rebapl.experiments.run import RunConfig, train_run

    settings = parse_settings(set_ or [])
    config = RunConfig(
        data=data,
        method=method,
        inference=inference,
        protocol=protocol,
        shots=shots,
        seed=seed,
        backbone=backbone,
        epochs=epochs,
        method_settings=settings["method"],
        inference_settings=settings["inference"],
    )
    with StepProgress() as progress:
        bar = progress.begin(f"{method} · {inference} on {data}")
        trained = train_run(config, out, device=device, progress=bar)
    print(f"{'trained' if trained else 'already trained'}: {out}; score it with: rebapl evaluate {out}")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.")],
    fit_weights: Annotated[
        bool, typer.Option("--fit-weights", help="First weight the samples by their fit to the validation images.")
    ] = False,
    fit_threshold: Annotated[
        str | None,
        typer.Option(help="First choose when to say 'I don't know' on them: risk=0.05, or coverage=0.9[,by=entropy]."),
    ] = None,
    outside: Annotated[
        str | None, typer.Option(help="Score how well other images are told apart: novel, or another data set.")
    ] = None,
    heat_map: Annotated[
        bool, typer.Option("--heat-map", help="Draw how far apart samples are: diversity.png.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; the GPU if there is one.")] = None,
) -> None:
    """Score a trained run on its test images and store the results in it."""
    from rich.console import Console

    from rebapl.experiments.diversity_figure import diversity_figure
    from rebapl.experiments.report import scores_table
    from rebapl.experiments.run import evaluate_run

    threshold = None if fit_threshold is None else parse_threshold(fit_threshold)
    results = evaluate_run(run, device=device, fit_weights=fit_weights, fit_threshold=threshold, outside=outside)
    Console().print(scores_table(results, title=str(run)))
    for by, found in results.get("outside", {}).get(outside, {}).items():
        print(f"outside {outside} by {by}: AUROC {found['auroc']:.1f}, FPR95 {found['fpr95']:.1f}")
    if heat_map:
        if "diversity" not in results:
            raise UserError(f"{run} has one sample: there are no distances to draw")
        print(f"the distances between samples: {diversity_figure(results['diversity'], run / 'diversity.png')}")


app.command()(predict)


@app.command()
def toy(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("toy"),
    seed: Annotated[int, typer.Option(help="The one seed of the pictures.")] = 1,
) -> None:
    """Draw the paper's two-mode example: potential, repulsion, trajectories, modes visited (PNG and PDF)."""
    from rebapl.experiments.toy import draw_toy

    for path in draw_toy(out, seed):
        print(path)


@app.command("list")
def list_() -> None:
    """Name the data sets, methods and kinds of inference there are."""
    from rebapl.data.embedded import EMBEDDED
    from rebapl.learners import METHODS
    from rebapl.sampling import PRESETS

    for title, names in (("data sets", EMBEDDED), ("methods", METHODS), ("inference", PRESETS)):
        print(f"{title + ':':<11} {', '.join(names)}")
