"""`rebapl predict`: predict images with a trained run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from rebapl.errors import UserError, unknown

ONE_SAMPLE = (
    "this run has one sample, so there is no uncertainty between samples: mutual information and disagreement are 0. "
    "For unfamiliar images it has max-probability (rebapl evaluate RUN --fit-threshold coverage=0.9, then --abstain). "
    "Train with --inference rebapl or ensemble for more"
)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run, or of a posterior.")],
    images: Annotated[list[Path], typer.Argument(help="Images, and folders of images.")],
    classes: Annotated[str | None, typer.Option(help="Other class names, separated by commas.")] = None,
    classes_file: Annotated[Path | None, typer.Option(help="Other class names, one per line of a file.")] = None,
    template: Annotated[
        str | None, typer.Option(help="Text with {} for the class name, if the method uses one.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to show per image.")] = 3,
    format_: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    out: Annotated[Path | None, typer.Option(help="File to write to instead of the terminal.")] = None,
    average: Annotated[
        str | None,
        typer.Option(help="What to average over samples: probabilities or logits; as trained, if not given."),
    ] = None,
    abstain: Annotated[bool, typer.Option("--abstain", help="Say 'I don't know' above the fitted threshold.")] = False,
    backbone: Annotated[str | None, typer.Option(help="The backbone, if it is not where it was in training.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; the GPU if there is one.")] = None,
) -> None:
    """Predict images with all samples of a run, and say how sure they are."""
    from rebapl.cli.answers import FORMATS, as_csv, as_json, as_table, records
    from rebapl.files import write_atomically
    from rebapl.posterior.images import image_files
    from rebapl.posterior.prediction import NO_THRESHOLD, Average
    from rebapl.runs.folder import load_trained

    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    if out is not None:
        _check_writable(out)
    names = _class_names(classes, classes_file)
    files = [file for each in images for file in image_files(each)]
    posterior = load_trained(run, device=device, backbone=backbone)
    learner = posterior.learner
    if template is not None and not learner.reads_template(learner.config):
        raise UserError(f"--template has no effect: {learner.method} does not use it as it was trained; leave it out")
    if len(posterior) == 1:
        print(ONE_SAMPLE, file=sys.stderr)
    averaged = average or posterior.average
    if abstain:
        bound = posterior.bind(names or posterior.class_names, template)
        if bound.threshold is None or not bound.threshold.suits(bound.class_names, averaged):
            raise UserError(NO_THRESHOLD)
    prediction = posterior.predict(files, class_names=names, template=template, average=cast(Average, averaged))
    answers = records(prediction, top, abstain)
    if format_ == "json":
        text = as_json(prediction, answers)
    elif format_ == "csv":
        text = as_csv(answers)
    else:
        text = as_table(answers, len(posterior), coloured=out is None and sys.stdout.isatty())
    if out is None:
        print(text)
    else:
        write_atomically(out, text + "\n")
        print(f"{len(answers)} images: {out}")


def _check_writable(out: Path) -> None:
    """Refuse, before any work, a path where no file can be written."""
    folder = next(folder for folder in out.absolute().parents if folder.exists())
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"--out {out} cannot be written: name a file, in a folder that you may write to")


def _class_names(classes: str | None, file: Path | None) -> list[str] | None:
    """The class names that the user gave, if any."""
    from rebapl.files import read_lines

    if classes is not None and file is not None:
        raise UserError("give the class names with --classes or with --classes-file, not both")
    if classes is None and file is None:
        return None
    names = read_lines(file) if file is not None else [name.strip() for name in (classes or "").split(",")]
    if len(names) == 1:
        raise UserError(f"one class name ({names[0]}) would be the answer to every image: give at least two")
    return names
