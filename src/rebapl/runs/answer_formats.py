"""The formats of answers: CSV, JSON lines and Parquet. Each is written in shards, which are joined into one file.

Shards of CSV and JSON lines have no header, so that they can be joined by writing one after the other.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebapl.files import csv_text, import_parquet, written_whole
from rebapl.posterior.records import RANKED, Record, columns, row_of, said

if TYPE_CHECKING:
    import pyarrow

ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""The formats, by the endings of their files."""

ESCAPED = "csv-escaped"
"""CSV for spreadsheets: text that a spreadsheet would read as a formula gets an apostrophe in front."""

FORMATS = ("csv", ESCAPED, "jsonl", "parquet")
_TAKEN_FOR_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "'")


def head_bytes(form: str, top: int) -> bytes:
    """The line before the rows: in CSV the names of the columns, otherwise nothing."""
    return csv_text([columns(top)]).encode() if form.startswith("csv") else b""


def rows_bytes(records: Sequence[Record], form: str, top: int) -> bytes:
    """Records as rows of CSV, as JSON lines, or as a Parquet file. In CSV, the reason replaces an answer of None."""
    if form == "jsonl":
        return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
    if form == "parquet":
        stream = io.BytesIO()
        import_parquet().write_table(_table(records, top), stream)
        return stream.getvalue()
    with_words = (record if record["error"] is not None else {**record, "answer": said(record)} for record in records)
    rows: Iterable[Sequence[Any]] = (row_of(record, top) for record in with_words)
    if form == ESCAPED:
        rows = ([escaped(cell) for cell in row] for row in rows)
    return csv_text(rows).encode()


def escaped(cell: Any) -> Any:
    """A cell, with an apostrophe in front if it is text that a spreadsheet would read as a formula.

    >>> escaped("=1+1"), escaped("a.png"), escaped(-0.5)
    ("'=1+1", 'a.png', -0.5)
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_TAKEN_FOR_FORMULAS) else cell


def _table(records: Sequence[Record], top: int) -> pyarrow.Table:
    import pyarrow

    texts = {"image", "answer", "set", "error", *(f"{RANKED[0]}_{rank + 1}" for rank in range(top))}
    types = {**dict.fromkeys(texts, pyarrow.string()), "outside": pyarrow.bool_()}
    schema = pyarrow.schema([(name, types.get(name, pyarrow.float64())) for name in columns(top)])
    values = [dict(zip(schema.names, row_of(record, top), strict=True)) for record in records]
    return pyarrow.Table.from_pylist(values, schema=schema)


def images_in(file: Path, form: str) -> list[str]:
    """The images that have a row in a file of answers. The file must be unchanged since it was written."""
    if form == "parquet":
        return import_parquet().read_table(file, columns=["image"])["image"].to_pylist()
    with file.open(encoding="utf-8", newline="") as stream:
        if form == "jsonl":
            return [json.loads(line)["image"] for line in stream]
        names = [row[0] for row in csv.reader(stream)][1:]
    return [name.removeprefix("'") for name in names] if form == ESCAPED else names


def join(out: Path, shards: Sequence[Path], form: str, top: int, whole: Path) -> None:
    """Write the rows of `out`, if it exists, and then those of the shards into the file `whole`."""
    existing = [out] if out.exists() else []
    with written_whole(whole) as stream:
        if form == "parquet":
            _join_parquet([*existing, *shards], stream, top)
            return
        stream.write(b"" if existing else head_bytes(form, top))
        for part in (*existing, *shards):
            with part.open("rb") as rows:
                shutil.copyfileobj(rows, stream)


def _join_parquet(parts: Sequence[Path], stream: Any, top: int) -> None:
    parquet = import_parquet()
    with parquet.ParquetWriter(stream, _table([], top).schema) as writer:
        for part in parts:
            for batch in parquet.ParquetFile(part).iter_batches():
                writer.write_batch(batch)
