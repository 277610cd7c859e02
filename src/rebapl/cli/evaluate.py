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


def evaluate(
    run: options.RunArgument,
    *,
    protocol: str | None = None,
    targets: str | None = None,
    outside: Annotated[list[str] | None, typer.Option(metavar="NAME")] = None,
    corruptions: Annotated[str | None, typer.Option(metavar="NAMES")] = None,
    fit_weights: bool = False,
    uniform_weights: bool = False,
    fit_temperature: bool = False,
    no_temperature: bool = False,
    fit_threshold: str | None = None,
    fit_conformal: Annotated[str | None, typer.Option(metavar="LEVEL")] = None,
    fit_outside: Annotated[str | None, typer.Option(metavar="SCORE")] = None,
    views: Annotated[int | None, typer.Option(min=1)] = None,
    heat_map: bool = False,
    root: Path | None = None,
    data: str | None = None,
    backbone: str | None = None,
    device: options.OneDevice = None,
    track: str | None = None,
    quiet: options.QuietOption = False,
) -> None:
    """Score a trained run on its test images, and store the results in its folder.

    What the options --fit-…, --uniform-weights, --no-temperature and --views change is stored with the run's samples,
    and holds for all later answers.

    Parameters:
        run: Folder of a trained run.
        protocol: Score the run for another protocol that is trained in the same way: cross-dataset or
            domain-generalization.
        targets: Score on these data sets (or NAME=SPLITFILE), separated by commas, instead of the protocol's own.
        outside: Also score how well images of other things are recognised as such: novel, noise, a data set, or a
            folder of images. Repeatable. If not given, those in the settings of the run.
        corruptions: Also score on corrupted test images: all, or names separated by commas, where NAME@3 is one of the
            five severities. If not given, those in the settings of the run.
        fit_weights: First weight the samples by how well they fit the validation images.
        uniform_weights: First give all samples the same weight, which undoes --fit-weights.
        fit_temperature: First fit a temperature of the probabilities on the validation images.
        no_temperature: First remove the temperature, which undoes --fit-temperature.
        fit_threshold: First choose on the validation images when to say 'I don't know': risk=0.05[,confidence=0.9] or
            coverage=0.9, which by=entropy may follow.
        fit_conformal: First fit on the validation images prediction sets that hold the right class this often: 0.9, or
            0.9,score=aps (or raps); by_class=true makes that hold for each class.
        fit_outside: First choose on the validation images when to say 'none of these': energy, or
            mahalanobis,rate=0.1, where the rate is that of false alarms.
        views: Average each answer over this number of views of the image.
        heat_map: Draw the distances between the samples into diversity.png.
        data: Where the run's own images (a folder or a CSV file) are now, if they have moved.
    """
    import torch

    from rebapl.cli.progress import StepProgress, print_table
    from rebapl.data.catalogue import is_own
    from rebapl.posterior.storage import read_manifest
    from rebapl.reports.results import corruption_table, outside_table, scores_table
    from rebapl.runs.config import with_full_paths
    from rebapl.runs.folder import POSTERIOR, read_config, scored_as
    from rebapl.runs.run import evaluate_run

    asked = read_config(run)
    if data is not None and not (is_own(asked.data) and is_own(data)):
        raise UserError(
            f"--data says where a run's own images are now, and {run} was trained on the data set {asked.data}"
        )
    changes = {
        "data": data,
        "backbone": backbone,
        "outside": tuple(outside or ()) or None,
        "corruptions": options.parse_names("--corruptions", corruptions),
    }
    changed = asked.changed(**{key: value for key, value in changes.items() if value is not None})
    config = with_full_paths(scored_as(changed, protocol, options.parse_names("--targets", targets)))
    if heat_map and len(read_manifest(run / POSTERIOR).weights) == 1:
        raise UserError(f"{run} has one sample: there are no distances to draw, so leave --heat-map out")
    flags = {"weights": fit_weights, "temperature": fit_temperature}
    texts = {"threshold": fit_threshold, "conformal": fit_conformal, "outside": fit_outside}
    fits: dict[str, Mapping[str, Any]] = {name: {} for name, wanted in flags.items() if wanted}
    fits |= {name: options.parse_fit(name, text) for name, text in texts.items() if text is not None}
    undo = [name for name, wanted in (("weights", uniform_weights), ("temperature", no_temperature)) if wanted]
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
            progress=lambda what: progress.begin(f"scoring {printable(str(run))}{what}"),
        )
    print_table(scores_table(result, title=str(run)))
    if "weights" in fits or "weights" in undo:
        _print_weights(run, torch.tensor(result.weights))
    posterior = read_manifest(run / POSTERIOR)
    if fit_temperature:
        print(posterior.temperature or "temperature of the probabilities: 1")
    if "threshold" in fits and (threshold := posterior.threshold) is not None:
        print(
            f'"I don\'t know": of {threshold.images} validation images {100 * threshold.coverage:.0f} % are answered, '
            f"{100 * threshold.risk:.1f} % of these wrongly. {threshold.promise}"
        )
    if "conformal" in fits and (sets := posterior.conformal) is not None:
        print(f"prediction sets of level {sets.level:g}: {sets.size:.2f} classes on average on {sets.images} images")
    if "outside" in fits and (none := posterior.outside) is not None:
        print(f"none of these: {none.by} above {none.value:.4g}, at most {100 * none.rate:g} % false alarms")
    if config.outside:
        print_table(outside_table(result))
    if config.corruptions:
        print_table(corruption_table(result))
    if heat_map and result.diversity is not None:
        from rebapl.reports.figures import diversity_figure

        print(f"the distances between samples: {diversity_figure(result.diversity, run / 'diversity.png')}")


def _print_weights(run: Path, weights: Tensor) -> None:
    """Print the weights and the effective number of samples, and a warning if almost all weight is on one sample."""
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
