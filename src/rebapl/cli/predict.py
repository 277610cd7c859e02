"""`rebapl predict`: predict images with a trained run."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rebapl.cli.completion import runs
from rebapl.cli.engine_options import EngineOption, Jobs, engine_of
from rebapl.cli.remarks import NAMED, counted, one_sample
from rebapl.cli.values import QuietOption, given_class_names, parse_names
from rebapl.errors import UserError, printable, unknown

if TYPE_CHECKING:
    from rebapl.cli.progress import StepProgress
    from rebapl.posterior.records import Record

PIPE = Path("-")


def predict(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a run or a posterior, or hf://USER/NAME@REVISION on the hub.", autocompletion=runs
        ),
    ],
    images: Annotated[
        list[Path] | None, typer.Argument(help="Images, folders of images, and - for paths that come through a pipe.")
    ] = None,
    list_: Annotated[
        list[Path] | None,
        typer.Option("--list", help="List of images: a path per line, or a CSV with a column path. Repeatable."),
    ] = None,
    classes: Annotated[str | None, typer.Option(help="Other class names, separated by commas.")] = None,
    classes_file: Annotated[Path | None, typer.Option(help="Other class names, one per line of a file.")] = None,
    template: Annotated[
        str | None, typer.Option(help="Text with {} for the class name, if the method uses one.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to show per image.")] = 3,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", help="table, json, csv, jsonl or parquet; if not given, by the ending of --out, else table."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write to. Answers go to .csv, .jsonl and .parquet as they come, and the same command goes on "
            "after those that are there. With --engine, a folder of shards."
        ),
    ] = None,
    average: Annotated[
        str | None,
        typer.Option(help="What to average over samples: probabilities or logits; as trained, if not given."),
    ] = None,
    abstain: Annotated[
        bool | None,
        typer.Option(
            "--abstain/--no-abstain",
            help="Say 'I don't know' above the fitted threshold, or never; if not given, where there is one.",
        ),
    ] = None,
    sets: Annotated[
        bool | None,
        typer.Option(
            "--sets/--no-sets", help="Show the fitted prediction sets, or not; if not given, where there are some."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first image that cannot be read, instead of skipping it.")
    ] = False,
    backbone: Annotated[str | None, typer.Option(help="The backbone, if it is not where it was in training.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Predict in shards, side by side: local (this machine), ray (a Ray cluster) or slurm (jobs of SLURM). "
            "They go into the folder --out as Parquet files; local if only other options of this kind are given."
        ),
    ] = None,
    shard: Annotated[  # not larger, because the answers of a shard are held in memory until it is written
        int | None, typer.Option(min=1, max=100_000, help="Images in a shard; 2048 if not given.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "--devices",
            help="cpu, cuda, or several, such as cuda:0,cuda:1, over which images are split; the GPU if there is one.",
        ),
    ] = None,
    jobs: Jobs = None,
    engine_option: EngineOption = None,
    quiet: QuietOption = False,
) -> None:
    """Predict images with all samples of a run, and say how sure they are.

    An image that cannot be read is named and skipped; its row says why.
    """
    from rebapl.cli.answers import as_table
    from rebapl.cli.progress import StepProgress
    from rebapl.cli.shards import answer_in_shards
    from rebapl.files import refuse_unwritable, write_atomically
    from rebapl.posterior.answers import Asked, answer_files
    from rebapl.posterior.prediction import NO_SETS, NO_THRESHOLD, Average, check_average
    from rebapl.posterior.records import made_with
    from rebapl.posterior.sources import ImageFiles
    from rebapl.runs.answer_file import (
        ENDINGS,
        about_answers,
        text_head,
        text_rows,
        write_answers,
    )
    from rebapl.runs.folder import load_trained
    from rebapl.runs.machine import best_device
    from rebapl.runs.shards import SIZE, Question

    devices = parse_names(device) or []
    chosen = (engine, shard, jobs, engine_option or None)
    several = len(devices) > 1
    apart = any(option is not None for option in chosen) or (several and _is_folder(out, format_))
    if apart:
        out, form = _folder(out, format_), "parquet"
        where = engine_of(engine or "local", out, device, jobs, engine_option)
    else:
        if out is not None:
            refuse_unwritable(out)
        form = _format(format_, out)
        for each in devices:
            best_device(each)  # refuses one that is not here
    names = given_class_names(classes, classes_file)
    piped = PIPE in (images or [])
    files = ImageFiles(
        [path for path in images or [] if path != PIPE],
        list_ or [],
        (os.fsdecode(line) for line in sys.stdin.buffer) if piped else (),
    )
    if not files.known and not piped:
        raise UserError("which images? Name files or folders, --list FILE, or - for paths that come through a pipe")
    posterior = load_trained(run, device="cpu" if apart else next(iter(devices), None), backbone=backbone)
    if several and not apart:
        posterior = posterior.spread(devices)
    learner = posterior.learner
    if template is not None and not learner.reads_template(learner.config):
        raise UserError(f"--template has no effect: {learner.method} does not use it as it was trained; leave it out")
    averaged = cast(Average, average or posterior.average)
    check_average(averaged)
    posterior = posterior.among(names, template)
    suits = posterior.threshold is not None and posterior.threshold.suits(posterior.class_names, averaged)
    if abstain and not suits:
        raise UserError(NO_THRESHOLD)
    has_sets = posterior.conformal is not None and posterior.conformal.suits(posterior.class_names, averaged)
    if sets and not has_sets:
        raise UserError(NO_SETS)
    sets = has_sets if sets is None else sets
    alone = files.known == 1 and not piped
    asked = Asked(top, averaged, suits if abstain is None else abstain, strict or alone, sets)
    rows = form in ENDINGS.values()
    kept: list[Record] = []
    if apart and out is not None:
        notes = [one_sample(run)] if len(posterior) == 1 else []
        question = Question(
            run=str(run.absolute()),
            backbone=learner.encoder.name,
            fingerprint=posterior.fingerprint,
            class_names=names,
            template=template,
            start=str(Path.cwd()),
            **dataclasses.asdict(asked),
        )
        about = about_answers(posterior, form, str(run), asked)
        del posterior, learner  # the backbone is loaded where shards are done
        answer_in_shards(where, question, about, files, out, size=shard or SIZE, notes=notes, quiet=quiet)
        return
    with StepProgress(quiet, "images", bars=out is not None or not sys.stdout.isatty()) as progress:
        if len(posterior) == 1:
            progress.note(one_sample(run))
        if said := files.said_of_others():
            progress.note(f"passed over: {said}")
        watch = Watch(progress, None if piped else files.known)
        if rows and out is not None:
            progress.start_line(f"predicting {'' if piped else f'{files.known} '}images into {out}")
            watch.before = write_answers(
                posterior, files, out, asked, form=form, run=str(run), progress=watch, pace=watch.pace
            )
        else:
            shown = min(top, len(posterior.class_names))
            for records in answer_files(posterior, files, asked, watch.pace):
                if rows:
                    head = b"" if watch.done else text_head(form, shown)
                    sys.stdout.write((head + text_rows(records, form, shown)).decode())
                else:
                    kept += records
                watch(watch.done + len(records), records)
    watch.refuse_nothing()
    if not rows:
        if form == "json":
            about = made_with(posterior.class_names, averaged, len(posterior), posterior.conformal if sets else None)
            text = json.dumps({**about, "images": kept}, indent=2, ensure_ascii=False)
        else:
            level = posterior.conformal.level if sets and posterior.conformal is not None else None
            text = as_table(kept, len(posterior), level, coloured=out is None and sys.stdout.isatty())
        if out is None:
            print(text)
        else:
            write_atomically(out, text + "\n")
    if out is not None:
        print(f"{watch.summary()}: {printable(str(out))}")


class Watch:
    """Shows how far a prediction is and what limits it, names the first images that cannot be read, and counts them."""

    def __init__(self, progress: StepProgress, total: int | None) -> None:
        from rebapl.posterior.pace import Pace

        self.progress, self.total = progress, total
        self.done = self.answered = self.broken = self.before = 0
        self.first_broken, self.pace = "", Pace()
        self._moved = progress.begin("predicting")

    def __call__(self, done: int, records: list[Record]) -> None:
        """Take note of a portion, after which `done` images are done."""
        self.done = done
        for record in records:
            if record["error"] is None:
                self.answered += 1
                continue
            self.broken += 1
            said = f"{record['image']} cannot be read ({record['error']})"
            self.first_broken = self.first_broken or said
            if self.broken <= NAMED:
                self.progress.warn(f"skipped: {said}")
            elif self.broken == NAMED + 1:
                self.progress.warn("skipped: more, which are counted at the end")
        self._moved(done, self.total, note=self.pace.said())

    def refuse_nothing(self) -> None:
        """Refuse an end at which no image has an answer."""
        if self.answered or self.before:
            return
        if self.broken:
            raise UserError(f"none of the {self.broken} images can be read; the first: {self.first_broken}")
        raise UserError("no path came through the pipe: write one per line")

    def summary(self) -> str:
        """How many images there are rows for, and how many of them are no answers or are not new."""
        return counted(self.answered + self.broken + self.before, self.before, self.broken)


def _folder(out: Path | None, form: str | None) -> Path:
    """The folder that shards go into."""
    from rebapl.runs.shards import refuse_folder

    if out is None:
        raise UserError("an engine writes shards into a folder: name it with --out")
    if form not in (None, "parquet"):
        raise UserError(f"--format {form}: an engine writes shards as Parquet files; leave it out")
    refuse_folder(out)
    return out


def _is_folder(out: Path | None, form: str | None) -> bool:
    """Whether a place for answers is a folder, so that several devices write shards into it."""
    return out is not None and form is None and (out.is_dir() or not out.suffix)


def _format(given: str | None, out: Path | None) -> str:
    """The format that is asked for, by name or by the ending of the file."""
    from rebapl.runs.answer_file import ENDINGS, import_parquet

    endings = {**ENDINGS, ".json": "json", ".txt": "table"}
    formats = list(dict.fromkeys(["table", "json", *ENDINGS.values()]))
    if given is not None and given not in formats:
        raise unknown("format", given, formats)
    if out is None:
        if given == "parquet":
            raise UserError("--format parquet needs a file: name it with --out")
        return given or "table"
    by_ending = endings.get(out.suffix.lower())
    if given is None and by_ending is None:
        raise UserError(
            f"--out {printable(str(out))}: its ending does not say the format: end it in {' '.join(endings)}, or name "
            "one with --format"
        )
    if given is not None and by_ending not in (None, given):
        raise UserError(f"--out {printable(str(out))} and --format {given} contradict each other: give one of them")
    form = given or by_ending or "table"
    if form == "parquet":
        import_parquet()
    return form
