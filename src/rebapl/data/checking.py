"""Checks of a data set: which files are there, which are missing, and which cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rebapl.data.catalogue import data_root, kind_of, load_dataset
from rebapl.data.dataset import Dataset, Item
from rebapl.data.images import EXTENSIONS, walked
from rebapl.data.names import class_name, has_rule, names_by_label
from rebapl.data.published import PUBLISHED, Entry
from rebapl.data.runs_inside import holds_runs
from rebapl.data.splits import SPLITS, few
from rebapl.data.workers import in_threads, portions
from rebapl.errors import UserError

SHOTS = 16


@dataclass
class Report:
    """What a check found, in words: what is as it should be, what is worth knowing, and what is wrong."""

    fine: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def check_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    split: str | None = None,
    read: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a data set and write nothing; arguments as in `load_dataset`.

    With `read`, every image is decoded: `progress(done, total)`.

    >>> report = check_dataset("digits", read=False)
    >>> report.ok, report.fine
    (True, ['10 classes; images: train 908, val 358, test 531'])
    """
    report = Report()
    entry = PUBLISHED[name] if kind_of(name) == "published" else None
    if entry is not None and not _files_there(entry, data_root(name, root), split, report):
        return report
    try:
        dataset = load_dataset(name, root, split=split, keep_split=False)
        names = dataset.class_names
    except UserError as error:
        report.problems.append(str(error))
        return report
    lists: Sequence[Sequence[Item]] = (dataset.train, dataset.val, dataset.test)
    counted = ", ".join(f"{part} {len(items):,}" for part, items in zip(SPLITS, lists, strict=True))
    report.fine.append(f"{len(names)} classes; images: {counted}")
    _notes(dataset, entry, report)
    if entry is not None:
        _check_names(entry, dataset, data_root(name, root), report)
    present = [item for items in lists for item in items]
    if dataset.folder is not None:
        present = _check_present(dataset, dataset.folder, report)
    if read:
        _check_readable(dataset, present, report, progress)
    return report


def needed_files(entry: Entry, root: Path, split: str | None = None) -> list[Path]:
    """The folder of images and the lists that a published data set is read from; another `split` needs no lists."""
    folder = root / entry.folder
    lists = [folder / list_ for list_ in entry.lists] if split is None else []
    shared = root / "imagenet" / "classnames.txt"  # which the variants of ImageNet may use
    return [
        folder / entry.images,
        *(shared if file.name == shared.name and not file.exists() else file for file in lists),
    ]


def _files_there(entry: Entry, root: Path, split: str | None, report: Report) -> bool:
    sources: list[str] = []
    for path in needed_files(entry, root, split):
        if path.exists():
            report.fine.append(f"{path} is there")
        else:
            report.problems.append(f"{path} is missing")
            sources += entry.sources_of(path.name)
    report.notes += [f"to get {source}" for source in dict.fromkeys(sources)]
    return report.ok


def _notes(dataset: Dataset, entry: Entry | None, report: Report) -> None:
    counts = (len(dataset.train), len(dataset.val), len(dataset.test))
    if entry is not None and counts != entry.counts:
        published = ", ".join(f"{part} {count:,}" for part, count in zip(SPLITS, entry.counts, strict=True) if count)
        report.notes.append(f"the published split has {published}")
    trained = Counter(item.label for item in dataset.train)
    scarce = [name for label, name in enumerate(dataset.class_names) if 0 < trained[label] < SHOTS]
    if scarce:
        report.notes.append(
            f"fewer than {SHOTS} training images, so that {SHOTS} shots take all: {few(scarce)} "
            f"({len(scarce)} of {len(dataset.class_names)} classes)"
        )


def _check_names(entry: Entry, dataset: Dataset, root: Path, report: Report) -> None:
    """Compare the class names in the split with those that the rules give for the files."""
    wrong: list[str] = []
    if has_rule(entry.name):
        for item in (*dataset.train, *dataset.val, *dataset.test):
            expected = class_name(entry.name, item.key)
            if expected != item.class_name:
                wrong.append(f"{item.key} is {expected or 'of no class'}, not {item.class_name}")
    elif (official := names_by_label(entry.name, root / entry.folder)) is not None:
        pairs = enumerate(zip(official, dataset.class_names, strict=False))
        wrong = [f"class {label} is {name}, not {given}" for label, (name, given) in pairs if name != given]
    else:
        return
    if wrong:
        report.problems.append(f"{len(wrong)} class names are not those of the files: {few(wrong)}")
    else:
        report.fine.append("class names are those of the files")


def _check_present(dataset: Dataset, folder: Path, report: Report) -> list[Item]:
    """The items whose files are there."""
    present: list[Item] = []
    for part, items in zip(SPLITS, (dataset.train, dataset.val, dataset.test), strict=True):
        gone = [item for item in items if not (folder / item.key).is_file()]
        if gone:
            these = few(item.key for item in gone)
            report.problems.append(f"{len(gone)} of {len(items)} {part} images are missing: {these}")
        missing = {item.key for item in gone}
        present += [item for item in items if item.key not in missing]
    if len(present) == len(dataset.train) + len(dataset.val) + len(dataset.test):
        report.fine.append("all images are there")
    listed = {item.key for item in (*dataset.train, *dataset.val, *dataset.test)}
    files = (Path(parent, name) for parent, names in walked(folder, holds_runs) for name in names)
    found = (path.relative_to(folder).as_posix() for path in files if path.name.lower().endswith(EXTENSIONS))
    unlisted = sum(key not in listed for key in found)
    if unlisted:
        report.notes.append(f"{unlisted} more images below {folder} are in no split")
    return present


def broken_images(
    dataset: Dataset, items: Sequence[Item], progress: Callable[[int, int], None] | None = None
) -> list[str]:
    """Decode every image, and give the error of each that cannot be read."""

    def error(item: Item) -> str | None:
        try:
            dataset.load(item.key)
        except UserError as error:
            return str(error)
        return None

    broken: list[str] = []
    done = 0
    for portion in portions(items):
        broken += [message for message in in_threads(error, portion) if message is not None]
        done += len(portion)
        if progress is not None:
            progress(done, len(items))
    return broken


def _check_readable(
    dataset: Dataset, items: Sequence[Item], report: Report, progress: Callable[[int, int], None] | None
) -> None:
    broken = broken_images(dataset, items, progress)
    if broken:
        report.problems.append(f"{len(broken)} images cannot be read:\n  " + "\n  ".join(broken))
    elif items:
        report.fine.append(f"all {len(items)} images can be read")
