"""`rebapl predict` on an engine: the answers come in shards."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rebapl.cli.progress import StepProgress
from rebapl.cli.remarks import NAMED, counted
from rebapl.errors import UserError, printable
from rebapl.interruption import Interrupted
from rebapl.posterior.sources import ImageFiles
from rebapl.runs.engine import Engine, check_outcomes
from rebapl.runs.lock import alone_in
from rebapl.runs.shards import Question, Written, conclude, shards_of
from rebapl.wording import number_of


def answer_in_shards(
    engine: Engine[Any],
    question: Question,
    about: Mapping[str, Any],
    files: ImageFiles,
    out: Path,
    *,
    size: int,
    notes: Sequence[str],
    quiet: bool,
) -> None:
    """Do the shards that are missing, show how they get on, and say at the end what is there."""
    progress = StepProgress(quiet)
    with alone_in(out):
        shards = shards_of(question, about, files, out, size=size)
        images = sum(shard.count for shard in shards)
        others = files.said_of_others()
        for line in [*notes, *([f"passed over: {others}"] if others else [])]:
            progress.note(line)
        progress.note(f"predicting {images} images in {number_of(len(shards), 'shard')} into {out}")
        before = sum(shard.count for shard in shards if shard.is_done())
        try:
            with StepProgress(quiet, jobs=shards) as live:
                outcomes = list(engine.run(shards, live.show))
        except KeyboardInterrupt as error:
            rows = conclude(out, shards).rows
            number = error.signal if isinstance(error, Interrupted) else signal.SIGINT
            raise Interrupted(number, f"{rows} of {images} images are answered in {out}") from error
        written = conclude(out, shards)
    for line in _skipped(written):
        progress.warn(line)
    if written.rows:
        print(f"{counted(written.rows, before, len(written.broken))}: {printable(str(out))}")
    check_outcomes(outcomes)
    if len(written.broken) == written.rows:
        raise UserError(f"none of the {written.rows} images can be read; the rows say why")


def _skipped(written: Written) -> Iterable[str]:
    for name, error in written.broken[:NAMED]:
        yield f"skipped: {name} cannot be read ({error})"
    if len(written.broken) > NAMED:
        yield f"skipped: {len(written.broken) - NAMED} more, whose rows say why"
