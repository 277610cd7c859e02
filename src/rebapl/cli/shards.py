"""Shared by the commands that work in shards: doing the missing ones, and showing how far that is."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rebapl.cli import options
from rebapl.errors import UserError, printable
from rebapl.wording import number_of

if TYPE_CHECKING:
    from rebapl.cli.progress import StepProgress
    from rebapl.posterior.records import Record
    from rebapl.runs.engine import Engine
    from rebapl.runs.shards import Entry, Place, RowMaker

IN_SHARDS = "of a .csv, .jsonl or .parquet file, or of a folder: name it with --out"

NAMED = 10
"""The largest number of unreadable images that are named. Further ones are only counted."""


def workers(
    place: Place | None, device: str | None, jobs: int | None, engine: str | None, engine_options: list[str] | None
) -> tuple[Engine[Any] | None, list[str]]:
    """The engine that does the shards of a place, and the devices on which this process works itself.

    The engine is None if this process does the shards. It does if no option of an engine is given, and there is one
    device or the result is one file; several devices then share its work.
    """
    from rebapl.runs.machine import best_device

    names = options.parse_names("--device", device) or []
    wanted = any(option is not None for option in (engine, jobs, engine_options or None))
    if wanted and place is None:
        raise UserError(f"--engine, --engine-option and --jobs do shards {IN_SHARDS}")
    if place is not None and (wanted or (len(names) > 1 and not place.joined)):
        return options.engine_of(engine or "local", place.folder, device, jobs, engine_options), ["cpu"]
    return None, [best_device(name) for name in names] or [best_device()]


def do_shards(
    progress: StepProgress,
    place: Place,
    maker: RowMaker,
    entries: Mapping[str, Entry],
    size: int,
    where: Engine[Any] | None,
    doing: str = "predicting",
    done: str = "answered",
) -> None:
    """Do the missing shards of these images (see `plan_shards`), and print at the end how many images are done.

    `where` is the engine that does them; if it is None, `maker` does them in this process.
    """
    from rebapl.cli.progress import StepProgress
    from rebapl.files import alone_in
    from rebapl.interruption import Interrupted
    from rebapl.runs.jobs import Outcome, check_outcomes
    from rebapl.runs.shards import plan_shards, work_on

    with alone_in(place.out):
        work = plan_shards(place, maker, entries, size)
        missing, before = work.missing, work.rows
        count = sum(shard.count for shard in missing)
        progress.start_line(f"{doing} {number_of(count, 'image')} into {place.out}")
        outcomes: list[Outcome] = []
        watch = Watch(progress, count, doing)
        try:
            if where is None:
                for records in work_on(missing, maker, watch.pace):
                    watch(records)
            else:
                with StepProgress(progress.quiet, jobs=missing) as live:
                    outcomes += where.run(missing, live.show)
        except KeyboardInterrupt as error:
            work.look()
            number = error.signal if isinstance(error, Interrupted) else signal.SIGINT
            raise Interrupted(number, f"{work.rows} of {before + count} images are {done} in {place.out}") from error
        work.conclude()
    not_read = work.not_read
    if where is not None:
        for image, why in not_read:
            watch.skip(image, why)
    if work.rows:
        print(f"{counted(work.rows, before, len(not_read))}: {printable(str(place.out))}")
    check_outcomes(outcomes)
    if work.rows == len(not_read):
        raise UserError(nothing_read(not_read))


class Watch:
    """Shows how many images are done and what limits the pace, and names the first images that cannot be read."""

    def __init__(self, progress: StepProgress, total: int | None, doing: str = "predicting") -> None:
        from rebapl.posterior.answers import Pace

        self.progress, self.total, self.pace = progress, total, Pace()
        self.done, self.not_read = 0, list[tuple[str, str]]()
        self._moved = progress.begin(doing)

    def __call__(self, records: list[Record]) -> None:
        """Count a portion, and show how far the work is."""
        self.done += len(records)
        for record in records:
            if record["error"] is not None:
                self.skip(record["image"], record["error"])
        self._moved(self.done, self.total, note=self.pace.said())

    def skip(self, image: str, error: str) -> None:
        """Remember an image that cannot be read, and name it if it is one of the first."""
        self.not_read.append((image, error))
        if len(self.not_read) <= NAMED:
            self.progress.warn(f"skipped: {image} cannot be read ({error})")
        elif len(self.not_read) == NAMED + 1:
            self.progress.warn("skipped: more, which are not named here")


def nothing_read(not_read: list[tuple[str, str]]) -> str:
    """The error if no image could be read."""
    image, error = not_read[0]
    return f"none of the {len(not_read)} images can be read; the first: {image} cannot be read ({error})"


def counted(rows: int, before: int, broken: int) -> str:
    """The number of images that are done, and how many of them were done before or cannot be read.

    >>> counted(3, 1, 0)
    '3 images (1 was there before)'
    """
    remarks = [f"{before} {'was' if before == 1 else 'were'} there before"] if before else []
    remarks += [f"{broken} cannot be read"] if broken else []
    return number_of(rows, "image") + (f" ({', '.join(remarks)})" if remarks else "")
