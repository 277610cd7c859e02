"""`rebapl predict`: predict the classes of images with a trained run."""

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
from rebapl.cli.shards import IN_SHARDS, Watch, counted, do_shards, nothing_read, workers
from rebapl.errors import UserError, printable, unknown
from rebapl.processes import allow_workers

if TYPE_CHECKING:
    from rebapl.cli.progress import StepProgress
    from rebapl.data.features import StoredFeatures
    from rebapl.posterior import Posterior
    from rebapl.posterior.answers import Question
    from rebapl.posterior.images import ImageFiles
    from rebapl.posterior.prediction import Average
    from rebapl.runs.shards import Place

PIPE = Path("-")

PHOTOS = ("JPEG", "MPO", "HEIF", "WEBP")
"""File formats that photos have, and drawings rarely."""


def predict(
    run: options.RunArgument,
    images: list[Path] | None = None,
    *,
    list_: list[Path] | None = None,
    classes: str | None = None,
    template: str | None = None,
    top: Annotated[int, typer.Option(min=1)] = 3,
    abstain: bool | None = None,
    sets: bool | None = None,
    average: str | None = None,
    strict: bool = False,
    out: Path | None = None,
    format_: str | None = None,
    backbone: str | None = None,
    device: Annotated[str | None, typer.Option("--device", "--devices")] = None,
    shard: Annotated[int | None, typer.Option(min=1, max=100000)] = None,
    jobs: options.AtLeastOne = None,
    engine: options.ShardEngine = None,
    engine_option: options.EngineOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Predict the classes of images with all samples of a run, and say how sure the answers are.

    An image that cannot be read is named and skipped, and its row says why.

    Parameters:
        run: Folder of a run or a posterior, or hf://USER/NAME@REVISION on the hub.
        images: Images, folders of images, tar archives of images, and - for paths from a pipe; or one folder of
            features that `rebapl embed` stored.
        list_: A list of images: a text file with a path in each line, or a CSV file with a column path. Repeatable.
        template: Text for a class, with {} for its name, if the method uses one.
        top: Number of classes to show for each image.
        abstain: Whether to say 'I don't know' above the fitted threshold; if not given, yes if there is one.
        sets: Whether to show the fitted prediction sets; if not given, yes if there are some.
        average: What to average over samples: probabilities or logits. If not given, as in training.
        strict: Stop at the first image that cannot be read, instead of skipping it.
        out: File to write, or a folder of Parquet files if the name has no ending. If the command is stopped, the
            same command continues it.
        format_: table, json, csv, csv-escaped (safe to open in a spreadsheet), jsonl or parquet. If not given, the
            ending of --out decides; without --out it is a table.
        device: cpu, cuda, or several such as cuda:0,cuda:1, which share the images. If not given, the GPU if there is
            one.
        shard: Number of images in a shard of --out; if not given, 2048, or 128 on a CPU.
        jobs: Shards to do at the same time on each device; 1 if not given.
    """
    options.expect_workers(None, jobs)
    allow_workers()  # this command's program is the package's own
    from rebapl.cli.progress import StepProgress
    from rebapl.files import refuse_unwritable
    from rebapl.learners import check_features
    from rebapl.posterior import load_posterior
    from rebapl.posterior.answers import Question
    from rebapl.posterior.images import ImageFiles
    from rebapl.runs.answer_shards import CPU_SIZE, SIZE, AnswerMaker, entries_of

    form, place = _place(format_, out)
    where, devices = workers(place, device, jobs, engine, engine_option)
    if shard is not None and place is None:
        raise UserError(f"--shard is the size of shards {IN_SHARDS}")
    if out is not None and (place is None or place.joined):
        refuse_unwritable(out)
    names = options.parse_class_names(classes)
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
    posterior = load_posterior(run, backbone, devices[0])
    if stored is not None:
        check_features(posterior.learner, stored)
        if shard is not None:
            raise UserError("--shard is for images: stored features keep the shards that they have; leave it out")
    if len(devices) > 1:
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
        size = size if stored is None else 1  # stored features keep their shards, each of which is one entry
        maker = AnswerMaker.of(str(run), posterior, question, place.form, stored)
        do_shards(progress, place, maker, entries_of(stored or files), size, where)


def _stored_features(images: list[Path], lists: list[Path]) -> StoredFeatures | None:
    """The stored features to predict; None if images are predicted."""
    from rebapl.data.features import StoredFeatures, is_features

    folders = [path for path in images if is_features(path)]
    if folders and len(images) + len(lists) > 1:
        raise UserError(f"{folders[0]} holds stored features, which are predicted by themselves: name nothing else")
    return StoredFeatures.read(folders[0]) if folders else None


def _notes(run: Path, posterior: Posterior, question: Question, files: ImageFiles, piped: bool) -> Iterator[str]:
    """Notes that a person should read before the answers."""
    if note := posterior.said_of_temperature(question.average):
        yield note
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
    except Exception:  # when it is predicted, the reason is reported
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
    """Print rows as soon as they are answered, or print or write a table or a JSON file at the end."""
    from rebapl.cli.answer_table import as_table
    from rebapl.files import write_atomically
    from rebapl.posterior.answers import answer_files
    from rebapl.runs.answer_formats import FORMATS, head_bytes, rows_bytes

    watch, answers = Watch(progress, total), list[dict[str, Any]]()
    for records in answer_files(posterior, images, question, watch.pace):
        if form in FORMATS:
            head = b"" if watch.done else head_bytes(form, question.top)
            sys.stdout.write((head + rows_bytes(records, form, question.top)).decode())
        else:
            answers += records
        watch(records)
    if not watch.done:
        raise UserError("no path came through the pipe: write one per line")
    if watch.done == len(watch.not_read):
        raise UserError(nothing_read(watch.not_read))
    if form in FORMATS:
        return
    if form == "json":
        text = json.dumps({**question.head(posterior), "images": answers}, indent=2, ensure_ascii=False)
    else:
        conformal = posterior.conformal if question.sets else None
        level = None if conformal is None else conformal.level
        text = as_table(answers, len(posterior), level, coloured=out is None and sys.stdout.isatty())
    if out is None:
        print(text)
    else:
        write_atomically(out, text + "\n")
        print(f"{counted(watch.done, 0, len(watch.not_read))}: {printable(str(out))}")


def _place(name: str | None, out: Path | None) -> tuple[str, Place | None]:
    """The format, by its name or by the ending of `out`, and the place of the shards; None if there are no shards."""
    from rebapl.runs.answer_formats import ENDINGS, FORMATS

    endings, formats = {**ENDINGS, ".json": "json", ".txt": "table"}, ["table", "json", *FORMATS]
    if name is not None and name not in formats:
        raise unknown("format", name, formats)
    if out is None:
        if name == "parquet":
            raise UserError("--format parquet needs a file: name it with --out")
        return name or "table", None
    from rebapl.runs.shards import Place

    by_ending = endings.get(out.suffix.lower())
    folder = out.is_dir() or (name is None and not out.suffix)
    if folder and name not in (None, "parquet"):
        raise UserError(f"--format {name}: a folder of answers holds Parquet files; leave it out")
    if not folder and name is None and by_ending is None:
        raise UserError(
            f"--out {printable(str(out))}: its ending does not say the format: end it in {' '.join(endings)}, or name "
            "one with --format"
        )
    if name is not None and by_ending is not None and name.partition("-")[0] != by_ending:
        raise UserError(f"--out {printable(str(out))} and --format {name} contradict each other: give one of them")
    form = "parquet" if folder else name or by_ending or "table"
    place = Place(out, form, joined=not folder) if form in FORMATS else None
    if place is not None:
        place.check()
    return form, place
