"""`rebapl predict`: predict images with a trained run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rebapl.cli import options
from rebapl.cli.run_notes import ONLY_DRAWINGS, notes_of
from rebapl.cli.shards import Watch, counted, do_shards, nothing_read
from rebapl.errors import UserError, printable, unknown

if TYPE_CHECKING:
    from rebapl.cli.progress import StepProgress
    from rebapl.data.features import StoredFeatures
    from rebapl.posterior import Posterior
    from rebapl.posterior.answers import Question
    from rebapl.posterior.images import ImageFiles
    from rebapl.posterior.prediction import Average
    from rebapl.runs.engine import Engine
    from rebapl.runs.shards import Place

PIPE = Path("-")

PHOTOS = ("JPEG", "MPO", "HEIF", "WEBP")
"""Formats of files that are photos rather than drawings."""


def predict(
    run: options.RunArgument,
    images: list[Path] | None = None,
    *,
    list_: list[Path] | None = None,
    classes: options.ClassesOption = None,
    template: str | None = None,
    top: Annotated[int, typer.Option(min=1)] = 3,
    format_: str | None = None,
    out: Path | None = None,
    average: str | None = None,
    abstain: bool | None = None,
    sets: bool | None = None,
    strict: bool = False,
    backbone: options.MovedBackbone = None,
    engine: str | None = None,
    shard: Annotated[int | None, typer.Option(min=1, max=100000)] = None,
    device: Annotated[str | None, typer.Option("--device", "--devices")] = None,
    jobs: options.Jobs = None,
    engine_option: options.EngineOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Predict images with all samples of a run, and say how sure they are.

    An image that cannot be read is named and skipped; its row says why.

    Parameters:
        run: Folder of a run or a posterior, or hf://USER/NAME@REVISION on the hub.
        images: Images, folders or tar archives of images, and - for paths that come through a pipe; or one folder of
            features that `rebapl embed` stored.
        list_: List of images: a path per line, or a CSV with a column path. Repeatable.
        template: Text with {} for the class name, if the method uses one.
        top: How many classes to show per image.
        format_: table, json, csv, csv-escaped (which a spreadsheet opens safely), jsonl or parquet; if not given,
            by the ending of --out, else table.
        out: File to write to, or a folder of Parquet files if it has no ending. If the command is stopped, the same
            command goes on where it was.
        average: What to average over samples: probabilities or logits; as trained, if not given.
        abstain: Say 'I don't know' above the fitted threshold, or never; if not given, where there is one.
        sets: Show the fitted prediction sets, or not; if not given, where there are some.
        strict: Stop at the first image that cannot be read, instead of skipping it.
        engine: Predict shards of the images side by side: local (this machine), ray (a Ray cluster) or slurm (jobs
            of SLURM); local if only other options of this kind are given.
        shard: Images in a shard; 2048 if not given, 128 on a CPU.
        device: cpu, cuda, or several, such as cuda:0,cuda:1, over which images are split; the GPU if there is one.
    """
    if (jobs or 1) > 1:
        from rebapl.runs.workers import begin_server

        begin_server()
    from rebapl.cli.progress import StepProgress
    from rebapl.files import refuse_unwritable
    from rebapl.learners import check_features
    from rebapl.posterior import load_posterior
    from rebapl.posterior.answers import Question
    from rebapl.posterior.images import ImageFiles
    from rebapl.runs.answer_shards import CPU_SIZE, SIZE, answer_shards, plan_answers
    from rebapl.runs.machine import best_device

    devices = options.parse_names(device) or []
    form, place = _place(format_, out)
    several = len(devices) > 1
    where: Engine[Any] | None = None
    if any(option is not None for option in (engine, jobs, engine_option or None)) or (
        several and place is not None and not place.joined
    ):
        if place is None:
            raise UserError("an engine writes a .csv, .jsonl or .parquet file, or a folder: name it with --out")
        where = options.engine_of(engine or "local", place.folder, device, jobs, engine_option)
    if out is not None and (place is None or place.joined):
        refuse_unwritable(out)
    first = "cpu" if where is not None else best_device(next(iter(devices), None))
    for each in devices if where is None else ():
        best_device(each)  # refuses one that is not here
    names = options.given_class_names(classes)
    piped = PIPE in (images or [])
    stored = _stored_features(images or [], list_ or [])
    files = ImageFiles(
        [path for path in images or [] if path != PIPE and stored is None],
        list_ or [],
        (os.fsdecode(line) for line in sys.stdin.buffer) if piped else (),
    )
    known = files.known if stored is None else len(stored)
    if not known and not piped:
        raise UserError("which images? Name files or folders, --list FILE, or - for paths that come through a pipe")
    posterior = load_posterior(run, backbone, first)
    if stored is not None:
        check_features(posterior.learner, stored)
        if shard is not None:
            raise UserError("--shard is for images: stored features keep the shards that they have; leave it out")
    if several and where is None:
        posterior = posterior.spread(devices)
    alone = known == 1 and not piped
    posterior, question = Question(
        names, template, top, cast("Average | None", average), abstain, sets, strict or alone
    ).put_to(posterior)
    bars = where is None and (out is not None or not sys.stdout.isatty())
    with StepProgress(quiet, "images", bars) as progress:
        for note in _notes(run, posterior, question, files, piped):
            progress.note(note)
        if place is None:
            _show(progress, posterior, question, stored or files, form, out, None if piped else known)
            return
        size = shard or (CPU_SIZE if where is None and posterior.learner.encoder.device.type == "cpu" else SIZE)
        do_shards(
            progress,
            place,
            lambda: plan_answers(place, str(run), posterior, question, stored or files, size),
            lambda shards, pace: answer_shards(shards, posterior, pace),
            where,
        )


def _stored_features(images: list[Path], lists: list[Path]) -> StoredFeatures | None:
    """The stored features, if that is what is to be predicted."""
    from rebapl.data.features import StoredFeatures, is_features

    folders = [path for path in images if is_features(path)]
    if folders and len(images) + len(lists) > 1:
        raise UserError(f"{folders[0]} holds stored features, which are predicted by themselves: name nothing else")
    return StoredFeatures.read(folders[0]) if folders else None


def _notes(run: Path, posterior: Posterior, question: Question, files: ImageFiles, piped: bool) -> Iterator[str]:
    """What a person should know before the answers come."""
    if said := posterior.said_of_temperature(question.average):
        yield said
    yield from notes_of(run, posterior)
    if posterior.learner.encoder.name == "mini" and not piped and files.known and _is_photo(next(iter(files))):
        yield ONLY_DRAWINGS
    if files.passed_over:
        yield f"passed over: {files.said_of_others()}"


def _is_photo(file: Path) -> bool:
    """Whether an image seems to be a photo: by its format, or because it is larger than drawings usually are."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            return image.format in PHOTOS or min(image.size) > 256
    except Exception:  # reading it will say why
        return False


def _show(
    progress: StepProgress,
    posterior: Posterior,
    question: Question,
    images: ImageFiles | StoredFeatures,
    form: str,
    out: Path | None,
    total: int | None,
) -> None:
    """Print the answers, rows as they come, or write a table or a JSON file at the end."""
    from rebapl.cli.answer_table import as_table
    from rebapl.files import write_atomically
    from rebapl.posterior.answers import answer_files
    from rebapl.runs.answer_formats import FORMATS, head_bytes, rows_bytes

    watch, kept = Watch(progress, total), list[dict[str, Any]]()
    for records in answer_files(posterior, images, question, watch.pace):
        if form in FORMATS:
            head = b"" if watch.done else head_bytes(form, question.top)
            sys.stdout.write((head + rows_bytes(records, form, question.top)).decode())
        else:
            kept += records
        watch(records)
    if not watch.done:
        raise UserError("no path came through the pipe: write one per line")
    if watch.done == len(watch.not_read):
        raise UserError(nothing_read(watch.not_read))
    if form in FORMATS:
        return
    if form == "json":
        text = json.dumps({**question.head(posterior), "images": kept}, indent=2, ensure_ascii=False)
    else:
        conformal = posterior.conformal if question.sets else None
        level = None if conformal is None else conformal.level
        text = as_table(kept, len(posterior), level, coloured=out is None and sys.stdout.isatty())
    if out is None:
        print(text)
    else:
        write_atomically(out, text + "\n")
        print(f"{counted(watch.done, 0, len(watch.not_read))}: {printable(str(out))}")


def _place(given: str | None, out: Path | None) -> tuple[str, Place | None]:
    """The format, by name or by the ending of the file, and the place of answers that are written in shards."""
    from rebapl.runs.answer_formats import ENDINGS, FORMATS

    endings, formats = {**ENDINGS, ".json": "json", ".txt": "table"}, ["table", "json", *FORMATS]
    if given is not None and given not in formats:
        raise unknown("format", given, formats)
    if out is None:
        if given == "parquet":
            raise UserError("--format parquet needs a file: name it with --out")
        return given or "table", None
    from rebapl.runs.shards import Place

    by_ending = endings.get(out.suffix.lower())
    folder = out.is_dir() or (given is None and not out.suffix)
    if folder and given not in (None, "parquet"):
        raise UserError(f"--format {given}: a folder of answers holds Parquet files; leave it out")
    if not folder and given is None and by_ending is None:
        raise UserError(
            f"--out {printable(str(out))}: its ending does not say the format: end it in {' '.join(endings)}, or name "
            "one with --format"
        )
    if given is not None and by_ending is not None and given.partition("-")[0] != by_ending:
        raise UserError(f"--out {printable(str(out))} and --format {given} contradict each other: give one of them")
    form = "parquet" if folder else given or by_ending or "table"
    place = Place(out, form, joined=not folder) if form in FORMATS else None
    if place is not None:
        place.check()
    return form, place
