"""`rebapl evaluate`: score a trained run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebapl.cli import options
from rebapl.errors import UserError, printable

if TYPE_CHECKING:
    from torch import Tensor


OUTSIDE_TITLES = {"auroc": "AUROC", "fpr95": "FPR95", "aupr": "AUPR"}


def evaluate(
    run: options.RunArgument,
    *,
    root: options.Root = None,
    protocol: str | None = None,
    targets: str | None = None,
    fit_weights: bool = False,
    uniform_weights: bool = False,
    fit_temperature: bool = False,
    no_temperature: bool = False,
    views: Annotated[int | None, typer.Option(min=1)] = None,
    fit_threshold: str | None = None,
    fit_conformal: Annotated[str | None, typer.Option(metavar="LEVEL")] = None,
    fit_outside: Annotated[str | None, typer.Option(metavar="SCORE")] = None,
    outside: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
    corruptions: Annotated[str | None, typer.Option(metavar="NAMES")] = None,
    heat_map: bool = False,
    data: str | None = None,
    backbone: options.MovedBackbone = None,
    device: options.OneDevice = None,
    track: options.TrackOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Score a trained run on its test images and store the results in it.

    Parameters:
        run: Folder of a trained run.
        protocol: Score it for another protocol that trains alike: cross-dataset or domain-generalization.
        targets: Score these data sets (or NAME=SPLITFILE), with commas, not the protocol's own.
        fit_weights: First weight the samples by their fit to the validation images.
        uniform_weights: First weight all samples alike, which undoes --fit-weights.
        views: From now on, average answers over this number of views of each image.
        fit_temperature: First fit one temperature of the probabilities on the validation images.
        no_temperature: First take the temperature away, which undoes --fit-temperature.
        fit_threshold: First choose when to say 'I don't know' on them: risk=0.05[,confidence=0.9], or
            coverage=0.9; by=entropy may follow.
        fit_conformal: First fit prediction sets on them that hold the right class this often: 0.9, or
            0.9,score=aps (or raps), and by_class=true to keep it for each class.
        fit_outside: First choose when to say 'none of these' on them: energy, or mahalanobis,rate=0.1 (false alarms).
        outside: Score how well others are told apart: novel, noise, a data set or a folder of images; may be repeated.
            Those that the run's settings name if not given, and so for corruptions.
        corruptions: Score corrupted test images: all, or names with commas; NAME@3 is one severity of five.
        heat_map: Draw how far apart samples are: diversity.png.
        data: Where the images are now, if they have moved.
    """
    import torch

    from rebapl.cli.progress import StepProgress, print_table
    from rebapl.posterior.storage import read_manifest
    from rebapl.reports.results import corruption_table, scores_table
    from rebapl.runs.folder import POSTERIOR, read_config, scored_as
    from rebapl.runs.run import evaluate_run

    moved = {key: value for key, value in (("data", data), ("backbone", backbone)) if value is not None}
    named = {"outside": tuple(outside or ()), "corruptions": options.parse_names(corruptions)}
    scored = {key: names for key, names in named.items() if names}
    config = scored_as(read_config(run).changed(**moved, **scored), protocol, options.parse_names(targets))
    flags = {"weights": fit_weights, "temperature": fit_temperature}
    words = {"threshold": fit_threshold, "conformal": fit_conformal, "outside": fit_outside}
    fits: dict[str, Mapping[str, Any]] = {name: {} for name, given in flags.items() if given}
    fits |= {name: options.parse_fit(name, text) for name, text in words.items() if text is not None}
    undo = [name for name, given in (("weights", uniform_weights), ("temperature", no_temperature)) if given]
    trackers = options.parse_trackers(track)
    with StepProgress(quiet, "images") as progress:
        progress.start_line(f"scoring {run}")
        result = evaluate_run(
            run,
            root=root,
            device=device,
            config=config,
            fits=fits,
            undo=undo,
            views=views,
            track=trackers,
            progress=progress.begin(f"scoring {printable(str(run))}"),
        )
    print_table(scores_table(result, title=str(run)))
    if "weights" in fits or "weights" in undo:
        _say_weights(run, torch.tensor(result.weights))
    fitted = read_manifest(run / POSTERIOR)
    if fit_temperature:
        print(fitted.temperature or "temperature of the probabilities: 1")
    if "threshold" in fits and (threshold := fitted.threshold) is not None:
        print(
            f'"I don\'t know": of {threshold.images} validation images {100 * threshold.coverage:.0f} % are answered, '
            f"{100 * threshold.risk:.1f} % of these wrongly. {threshold.promise}"
        )
    if "conformal" in fits and (sets := fitted.conformal) is not None:
        print(f"prediction sets of level {sets.level:g}: {sets.size:.2f} classes on average on {sets.images} images")
    if "outside" in fits and (none := fitted.outside) is not None:
        print(f"none of these: {none.by} above {none.value:.4g}, at most {100 * none.rate:g} % false alarms")
    for name in config.outside:
        for by, scores in result.outside[name].items():
            found = (f"{title} {scores[key]:.1f}" for key, title in OUTSIDE_TITLES.items())
            print(f"outside {name} by {by}: {', '.join(found)}")
    if config.corruptions:
        print_table(corruption_table(result))
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
