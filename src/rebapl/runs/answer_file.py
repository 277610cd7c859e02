"""A file of answers that grows while images are predicted, so that stopped work goes on where it was.

Three formats are written as the answers come: `csv`, `jsonl` (JSON lines) and `parquet`. Beside the file lies
`<file>.about.json`, which says what the answers were made with. A file that was made with anything else is refused. A
Parquet file cannot grow: its rows go to `<file>.rows.jsonl` first, and into the file when the work ends or stops.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rebapl import __version__
from rebapl.errors import UserError, printable
from rebapl.files import read_json, write_json
from rebapl.posterior import Posterior
from rebapl.posterior.answers import Asked, answer_files
from rebapl.posterior.pace import Pace
from rebapl.posterior.prediction import UNSURE
from rebapl.posterior.records import RANKED, Record, as_text, columns, made_with, row_of
from rebapl.runs.lock import alone_in

if TYPE_CHECKING:
    import pyarrow

ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""The formats that are written as answers come, by the endings of their files."""

ROWS_AT_ONCE = 1024
"""Rows of one group in a Parquet file."""


def write_answers(
    posterior: Posterior,
    files: Iterable[Path],
    out: Path,
    asked: Asked,
    *,
    form: str,
    run: str,
    progress: Callable[[int, list[Record]], None] | None = None,
    pace: Pace | None = None,
) -> int:
    """Predict image files and write one row for each to `out`, in the format `form`, as the answers come.

    Images that the file has a row for already are passed over, so the same call goes on where an earlier one stopped.
    Returned is how many these were. `run` is what the posterior is called. `progress` is called after each portion
    with the number of images that are done and with the portion's records. `pace` is told what is waited for.
    """
    top = min(asked.top, len(posterior.class_names))
    seen, before, done = set[str](), 0, 0

    def new(there: set[str]) -> Iterator[Path]:
        nonlocal before, done
        for file in files:
            name = as_text(str(file))
            if name in seen or name in there:
                before += name not in seen
                done += 1
            else:
                yield file
            seen.add(name)

    with alone_in(out):
        _check_about(out, about_answers(posterior, form, run, asked))
        with _opened(out, form, top) as rows:
            for records in answer_files(posterior, new(rows.names), asked, pace):
                rows.write(records)
                done += len(records)
                if progress is not None:
                    progress(done, records)
    return before


def about_answers(posterior: Posterior, form: str, run: str, asked: Asked) -> dict[str, Any]:
    """What answers are made with. `run` is what the posterior is called."""
    threshold, average = posterior.threshold if asked.abstain else None, asked.average or posterior.average
    return {
        "format": form,
        "rebapl": __version__,
        "run": run,
        "posterior": posterior.fingerprint,
        "template": posterior.learner.template,
        **made_with(posterior.class_names, average, len(posterior), posterior.conformal if asked.sets else None),
        "top": min(asked.top, len(posterior.class_names)),
        "threshold": None if threshold is None else {"by": threshold.by, "value": threshold.value},
    }


def _check_about(out: Path, about: Mapping[str, Any]) -> None:
    """Refuse a file of answers that was made with something else; note what a new one is made with."""
    note = _beside(out, "about.json")
    anew = f"name another --out, or delete {printable(str(out))}"
    if not out.exists() and not _beside(out, "rows.jsonl").exists():
        with _writing(note):
            write_json(note, about)
        return
    if not note.exists():
        raise UserError(f"{printable(str(out))} is there already, and no {note.name} says what it holds: {anew}")
    refuse_others(out, read_json(note, "a file of answers"), about, anew)


def refuse_others(out: Path, there: Mapping[str, Any], about: Mapping[str, Any], anew: str) -> None:
    """Refuse to add answers made as `about` says to those that were made as `there` says, if these differ.

    `anew` says how to begin anew.
    """
    if there.get("posterior") != about["posterior"]:
        raise UserError(
            f"{printable(str(out))} holds answers of another run or of other weights ({there.get('run')}): {anew}"
        )
    for key in about:
        if key not in ("rebapl", "run") and there.get(key) != about[key]:
            theirs, ours = (json.dumps(each, ensure_ascii=False) for each in (there.get(key), about[key]))
            raise UserError(f"{printable(str(out))} was made with {key} = {theirs}, not {ours}: {anew}")


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(f"{out.name}.{ending}")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """An error of the system says which file it was, and what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{printable(str(path))} cannot be written ({error.strerror or error}): what is written stays, and the "
            "same command goes on from there"
        ) from error


class _Growing(Protocol):
    """A file of answers that is open: the images that have a row, and a way to add rows."""

    names: set[str]

    def write(self, records: Sequence[Record]) -> None: ...


@contextlib.contextmanager
def _opened(out: Path, form: str, top: int) -> Iterator[_Growing]:
    if form != "parquet":
        with _Lines(out, form, top) as lines:
            yield lines
        return
    rows = _beside(out, "rows.jsonl")
    with _Lines(rows, "jsonl", top) as lines:
        lines.names |= _parquet_names(out)
        try:
            yield lines
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell; the rows are kept
                _join(rows, out, top)
            raise
    with _writing(out):
        _join(rows, out, top)
    rows.unlink()  # after a stop they stay, and what is in both files is taken once


class _Lines:
    """A file of rows that end with a line: CSV with a line of column names, or JSON lines.

    A row that was cut off when an earlier work was ended is removed.
    """

    def __init__(self, path: Path, form: str, top: int) -> None:
        self.path, self.form, self.top = path, form, top
        self.names: set[str] = set()
        end = 0
        if path.exists():
            for name, after in self._csv_names() if form == "csv" else _json_names(path):
                self.names.add(name)
                end = after
        self._stream = path.open("r+b" if path.exists() else "wb")
        self._stream.truncate(end)
        self._stream.seek(end)
        if end == 0:
            self._stream.write(text_head(form, top))
        self.names.discard("")  # the line of column names

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # it tries again to write what could not be written
            self._stream.close()

    def write(self, records: Sequence[Record]) -> None:
        """Add a row for each record. They are in the file when this returns."""
        with _writing(self.path):
            self._stream.write(text_rows(records, self.form, self.top))
            self._stream.flush()

    def _csv_names(self) -> Iterator[tuple[str, int]]:
        """The image of each whole row, and where the row ends; first "" for the line of column names."""
        width, end = len(columns(self.top)), 0

        def lines(stream: Iterable[bytes]) -> Iterator[str]:
            nonlocal end
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                end += len(line)
                yield line.decode()

        with self.path.open("rb") as stream:
            try:
                for number, row in enumerate(csv.reader(lines(stream), strict=True)):
                    if len(row) != width or (number == 0 and row != columns(self.top)):
                        raise _changed(
                            self.path, f"row {number + 1} has not the columns {', '.join(columns(self.top))}"
                        )
                    yield ("" if number == 0 else row[0]), end
            except (csv.Error, UnicodeDecodeError) as error:
                if str(error) != "unexpected end of data":  # that is a row that was cut off within quotes
                    raise _changed(self.path, str(error)) from error


def _json_names(path: Path) -> Iterator[tuple[str, int]]:
    """The image of each whole line, and where the line ends."""
    end = 0
    with path.open("rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                yield json.loads(line)["image"], end
            except (ValueError, KeyError, TypeError) as error:
                raise _changed(path, f"it has a line that is no answer ({error})") from error


def _changed(path: Path, how: str) -> UserError:
    return UserError(
        f"{printable(str(path))} was changed since it was written: {how}; name another --out, or delete it"
    )


def text_head(form: str, top: int) -> bytes:
    """What stands before the rows: in CSV, the names of the columns."""
    return _csv_text([columns(top)]) if form == "csv" else b""


def text_rows(records: Iterable[Record], form: str, top: int) -> bytes:
    """Records as rows of CSV or as JSON lines, in UTF-8. CSV says "I don't know" where the answer is None."""
    if form == "jsonl":
        return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
    unsure = ({**each, "answer": UNSURE} if each["answer"] is each["error"] is None else each for each in records)
    return _csv_text(row_of(record, top) for record in unsure)


def _csv_text(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def import_parquet() -> Any:
    """The module that reads and writes Parquet; if it is not installed, the error says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Parquet files need pyarrow: pip install 'rebapl[parquet]', or write .csv or .jsonl") from error
    return pyarrow.parquet


def _schema(top: int) -> pyarrow.Schema:
    import pyarrow

    texts = {"image", "answer", "set", "error", *(f"{RANKED[0]}_{rank + 1}" for rank in range(top))}
    kinds = [(name, pyarrow.string() if name in texts else pyarrow.float64()) for name in columns(top)]
    return pyarrow.schema(kinds)


def _table(records: Sequence[Record], top: int) -> pyarrow.Table:
    import pyarrow

    schema = _schema(top)
    values = [dict(zip(schema.names, row_of(record, top), strict=True)) for record in records]
    return pyarrow.Table.from_pylist(values, schema=schema)


def parquet_bytes(records: Sequence[Record], top: int) -> bytes:
    """A whole Parquet file with a row for each record."""
    stream = io.BytesIO()
    import_parquet().write_table(_table(records, top), stream, row_group_size=ROWS_AT_ONCE)
    return stream.getvalue()


def _parquet_names(out: Path) -> set[str]:
    parquet = import_parquet()
    if not out.exists():
        return set()
    try:
        batches = parquet.ParquetFile(out).iter_batches(columns=["image"])
        return {name for batch in batches for name in batch.column(0).to_pylist()}
    except ValueError as error:  # what pyarrow raises for a file that is not as it should be
        raise _changed(out, str(error)) from error


def _join(rows: Path, out: Path, top: int) -> None:
    """Write a Parquet file anew with the rows that it has and those that are new, whole or not at all."""
    parquet, schema = import_parquet(), _schema(top)
    there = _parquet_names(out)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        with parquet.ParquetWriter(temporary, schema) as writer:
            if out.exists():
                for batch in parquet.ParquetFile(out).iter_batches(ROWS_AT_ONCE):
                    writer.write_batch(batch)
            for batch in _batches(rows, there):
                writer.write_table(_table(batch, top))
        temporary.chmod(0o644)
        temporary.replace(out)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _batches(rows: Path, there: set[str]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    with rows.open("rb") as stream:
        for line in stream:
            record = json.loads(line)
            if record["image"] not in there:
                batch.append(record)
            if len(batch) == ROWS_AT_ONCE:
                yield batch
                batch = []
    if batch:
        yield batch
