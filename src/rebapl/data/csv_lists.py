"""A CSV file of images as a data set."""

from __future__ import annotations

import csv
from pathlib import Path

from rebapl.data.dataset import Dataset, Item
from rebapl.data.own import kept_split, own_dataset, read_names
from rebapl.data.splits import SPLITS, Splits, check_key, named_split, read_split
from rebapl.errors import UserError, unknown

Row = tuple[str, str, str]  # path, label, split or ""


def load_csv(file: Path, split: str | None = None, template: str | None = None) -> Dataset:
    """The data set of a CSV file with the columns `path`, `label` and perhaps `split` (train, val or test).

    Paths lie below the file's folder; so may `classnames.txt` and `template.txt`, as for folders. Labels are class
    names, or numbers that `classnames.txt` names; numbers may skip, classes are numbered in their order. Without
    splits, one is made once and kept in `<file>.split.json`, or in the file `split`; see `kept_split`.
    """
    rows = _read(file)
    labels = sorted({label for _, label, _ in rows}, key=lambda label: (int(label) if label.isdecimal() else -1, label))
    names_file = file.parent / "classnames.txt"
    if all(label.isdecimal() for label in labels) and not names_file.is_file():
        raise UserError(f"the labels in {file} are numbers: write names, or {names_file} with lines such as '0 cat'")
    names = read_names(names_file, labels)
    if not any(part for _, _, part in rows):
        groups: dict[str, list[str]] = {label: [] for label in labels}
        for path, label, _ in rows:
            groups[label].append(path)
        splits = kept_split(file.parent, f"{file.stem}.split.json", split, groups, names)
    elif split is not None:
        splits = read_split(named_split(file.parent, split))
    else:
        number = {label: index for index, label in enumerate(labels)}
        splits = Splits(
            *(
                [Item(path, number[label], names[label]) for path, label, part in rows if part == name]
                for name in SPLITS
            )
        )
        if not splits.train:
            raise UserError(f"{file} lists no training images")
    return own_dataset(file.stem, file.parent, splits, template)


def _read(file: Path) -> list[Row]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            table = list(csv.reader(stream, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read ({error}): a CSV file in UTF-8 is needed") from error
    header = [word.strip().lower() for word in table[0]] if table else []
    if header not in (["path", "label"], ["path", "label", "split"]):
        raise UserError(f"{file} must begin with the line path,label or path,label,split; it begins with {header}")
    rows: list[Row] = []
    lines: dict[str, int] = {}
    for number, fields in enumerate(table[1:], start=2):
        if not any(field.strip() for field in fields):
            continue
        if len(fields) != len(header) or not fields[1].strip():
            raise UserError(f"{file}, line {number}: {fields} has not the fields {header}")
        path, label, part = (*(field.strip() for field in fields), "")[:3]
        path = check_key(path, f"{file}, line {number}")
        if part not in ("", *SPLITS):
            raise unknown(f"split in {file}, line {number},", part, SPLITS)
        if path in lines:
            raise UserError(f"{file}, line {number}: {path} is listed already in line {lines[path]}")
        lines[path] = number
        rows.append((path, label, part))
    if not rows:
        raise UserError(f"{file} lists no images")
    without = [path for path, _, part in rows if not part]
    if 0 < len(without) < len(rows):
        raise UserError(f"{file}: line {lines[without[0]]} has no split, but others have: give all of them or none")
    return rows
