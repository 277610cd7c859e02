"""`rebapl evaluate`: score a trained run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rebapl.cli.options import QuietOption, TrackOption, complete_runs, parse_names, parse_threshold, parse_trackers
from rebapl.errors import UserError, printable

if TYPE_CHECKING:
    from torch import Tensor


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.", autocompletion=complete_runs)],
    root: Annotated[
        Path | None, typer.Option(help="Folder of the published data sets; $REBAPL_DATA if not given.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Score it for another protocol that trains alike: cross-dataset or domain-generalization."),
    ] = None,
    targets: Annotated[
        str | None, typer.Option(help="Score these data sets (or NAME=SPLITFILE), with commas, not the protocol's own.")
    ] = None,
    fit_weights: Annotated[
        bool, typer.Option("--fit-weights", help="First weight the samples by their fit to the validation images.")
    ] = False,
    uniform_weights: Annotated[
        bool, typer.Option("--uniform-weights", help="First weight all samples alike, which undoes --fit-weights.")
    ] = False,
    fit_threshold: Annotated[
        str | None,
        typer.Option(help="First choose when to say 'I don't know' on them: risk=0.05, or coverage=0.9[,by=entropy]."),
    ] = None,
    fit_conformal: Annotated[
        float | None,
        typer.Option(
            metavar="LEVEL", help="First fit prediction sets on them that hold the right class this often: 0.9."
        ),
    ] = None,
    outside: Annotated[
        str | None, typer.Option(help="Score how well others are told apart: novel, a data set, or a folder of images.")
    ] = None,
    heat_map: Annotated[
        bool, typer.Option("--heat-map", help="Draw how far apart samples are: diversity.png.")
    ] = False,
    data: Annotated[str | None, typer.Option(help="Where the images are now, if they have moved.")] = None,
    backbone: Annotated[str | None, typer.Option(help="The backbone, if it is not where it was in training.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; the GPU if there is one.")] = None,
    track: TrackOption = None,
    quiet: QuietOption = False,
) -> None:
    """Score a trained run on its test images and store the results in it."""
    import torch

    from rebapl.cli.progress import StepProgress, print_table
    from rebapl.reports.results import scores_table
    from rebapl.runs.folder import read_config, scored_as
    from rebapl.runs.run import evaluate_run

    moved = {key: value for key, value in (("data", data), ("backbone", backbone)) if value is not None}
    config = scored_as(read_config(run).changed(**moved), protocol, parse_names(targets))
    wanted = None if fit_threshold is None else parse_threshold(fit_threshold)
    trackers = parse_trackers(track)
    with StepProgress(quiet, "images") as progress:
        progress.start_line(f"scoring {run}")
        result = evaluate_run(
            run,
            root=root,
            device=device,
            config=config,
            fit_weights=fit_weights,
            uniform_weights=uniform_weights,
            fit_threshold=wanted,
            fit_conformal=fit_conformal,
            outside=outside,
            track=trackers,
            progress=progress.begin(f"scoring {printable(str(run))}"),
        )
    print_table(scores_table(result, title=str(run)))
    if fit_weights or uniform_weights:
        _say_weights(run, torch.tensor(result.weights))
    for by, found in result.outside.get(outside or "", {}).items():
        print(f"outside {outside} by {by}: AUROC {found['auroc']:.1f}, FPR95 {found['fpr95']:.1f}")
    if heat_map:
        if result.diversity is None:
            raise UserError(f"{run} has one sample: there are no distances to draw")
        from rebapl.reports.figures import diversity_figure

        print(f"the distances between samples: {diversity_figure(result.diversity, run / 'diversity.png')}")


def _say_weights(run: Path, weights: Tensor) -> None:
    """Print the weights, of how many samples they make an average, and a warning where that is hardly one."""
    from rebapl.numbers import effective_samples
    from rebapl.posterior import has_collapsed

    shown, effective = ", ".join(f"{weight:.3g}" for weight in weights.tolist()), effective_samples(weights)
    print(f"weights: {shown} (effective number of samples: {effective:.2f} of {len(weights)})")
    print(f"earlier weights are kept in {run / 'posterior' / 'posterior.json'}")
    if has_collapsed(weights):
        print(
            f"warning: almost all weight is on one of {len(weights)} samples, so that there is hardly any uncertainty "
            f"between samples left; to undo: rebapl evaluate {run} --uniform-weights",
            file=sys.stderr,
        )
