"""The log of a training: a CSV file with one row of numbers for every `EVERY` steps."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rebapl.errors import UserError
from rebapl.files import write_atomically

EVERY = 10
"""Steps between two rows."""

COLUMNS = (
    "step",
    "cycle",
    "chain",
    "lr",
    "temperature",
    "loss",
    "gradient_norm",
    "distance",
    "force_norm",
    "kinetic_temperature",
    "configurational_temperature",
    "acceptance",
)


def write_log(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write all rows. A cell is empty where a row has no value for its column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in COLUMNS])
    write_atomically(path, text.getvalue())


def read_log(path: Path) -> list[dict[str, float]]:
    """Read the rows of a log, each with the values that it has. Without a file there are none."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [{name: float(cell) for name, cell in row.items() if name and cell} for row in csv.DictReader(file)]
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path} is damaged ({error}): delete it to go on without the log so far") from error


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
