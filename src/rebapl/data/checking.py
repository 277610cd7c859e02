"""Check a data set: which of its files exist, which are missing, and which cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rebapl.data.catalogue import is_own, load_dataset, own_path
from rebapl.data.dataset import SPLITS, Dataset, Item
from rebapl.data.images import walk_images
from rebapl.data.published import NAME_RULES, PUBLISHED, Entry, data_root, names_by_label
from rebapl.data.workers import in_threads, portions
from rebapl.errors import UserError
from rebapl.wording import few

SHOTS = 16
"""Classes with fewer training images than this are noted."""


@dataclass
class Report:
    """The findings of a check, as sentences: what is `fine`, what is worth knowing, and what is wrong."""

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
    """Check a data set without writing anything. `name`, `root` and `split` are as in `load_dataset`.

    With `read`, every image is decoded, and `progress(done, total)` is called now and then.

    >>> report = check_dataset("digits", read=False)
    >>> report.ok, report.fine
    (True, ['10 classes; images: train 908, val 358, test 531'])
    """
    if is_own(name):
        own_path(name)  # a name that means nothing is an error, not a finding
    report = Report()
    entry = PUBLISHED.get(name)
    if entry is not None:
        _check_files(entry, data_root(name, root), split, report)
        if not report.ok:
            return report
    try:
        dataset = load_dataset(name, root, split=split)
        names = dataset.class_names
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.fine.append(f"{len(names)} classes; images: {_counted(map(len, dataset.splits))}")
    _note_numbers(dataset, entry, report)
    if entry is not None:
        _check_names(entry, dataset, data_root(name, root) / entry.folder, report)
    present = dataset.items if dataset.folder is None else _check_present(dataset, dataset.folder, report)
    if read and present:
        report.notes += copy_remarks(dataset)
        broken = broken_images(dataset, present, progress)
        if broken:
            report.problems.append(f"{len(broken)} images cannot be read:\n  " + "\n  ".join(broken))
        else:
            report.fine.append(f"all {len(present)} images can be read")
    return report


def _counted(counts: Iterable[int]) -> str:
    return ", ".join(f"{part} {count:,}" for part, count in zip(SPLITS, counts, strict=True))


def _check_files(entry: Entry, root: Path, split: str | None, report: Report) -> None:
    missing = entry.missing(root, split)
    report.fine += [f"{path} is there" for path in entry.needed_files(root, split) if path not in missing]
    report.problems += [f"{path} is missing" for path in missing]
    sources = dict.fromkeys(source for path in missing for source in entry.sources_of(path.name))
    report.notes += [f"to get {source}" for source in sources]


def _note_numbers(dataset: Dataset, entry: Entry | None, report: Report) -> None:
    if entry is not None and list(map(len, dataset.splits)) != list(entry.counts):
        report.notes.append(f"the published split has {_counted(entry.counts)}")
    trained = Counter(item.label for item in dataset.train)
    scarce = [name for label, name in enumerate(dataset.class_names) if 0 < trained[label] < SHOTS]
    if scarce:
        report.notes.append(
            f"fewer than {SHOTS} training images, so that {SHOTS} shots take all: {few(scarce)} "
            f"({len(scarce)} of {len(dataset.class_names)} classes)"
        )


def _check_names(entry: Entry, dataset: Dataset, folder: Path, report: Report) -> None:
    """Compare the class names in the split with those that follow from the paths, or from a list beside the images."""
    if (rule := NAME_RULES.get(entry.name)) is not None:
        pairs = [(item.key, rule(item.key) or "of no class", item.class_name) for item in dataset.items]
    elif (official := names_by_label(entry.name, folder)) is not None:
        both = zip(official, dataset.class_names, strict=False)
        pairs = [(f"class {label}", expected, name) for label, (expected, name) in enumerate(both)]
    else:
        return
    wrong = [f"{what} is {expected}, not {name}" for what, expected, name in pairs if expected != name]
    if wrong:
        report.problems.append(f"{len(wrong)} class names are not those of the files: {few(wrong)}")
    else:
        report.fine.append("class names are those of the files")


def _check_present(dataset: Dataset, folder: Path, report: Report) -> list[Item]:
    """The items whose files exist. Missing files are reported as problems, and files that no split lists as a note."""
    present: list[Item] = []
    for part, items in zip(SPLITS, dataset.splits, strict=True):
        existing = [item for item in items if (folder / item.key).is_file()]
        present += existing
        if missing := sorted({item.key for item in items} - {item.key for item in existing}):
            report.problems.append(f"{len(missing)} of {len(items)} {part} images are missing: {few(missing)}")
    if len(present) == len(dataset.items):
        report.fine.append("all images are there")
    listed = {item.key for item in dataset.items}
    if unlisted := sum(path.relative_to(folder).as_posix() not in listed for path in walk_images(folder)):
        report.notes.append(f"{unlisted} more images below {folder} are in no split")
    return present


def copy_remarks(dataset: Dataset) -> list[str]:
    """One sentence on images that are in their class several times, and one on images that are in several classes."""
    lines = []
    for several, where in (
        (False, "in their class several times; each counts once in estimates"),
        (True, "in several classes"),
    ):
        groups = [group for group in dataset.copies() if (len({item.label for item in group}) > 1) == several]
        if groups:
            shown = few((" = ".join(item.key for item in group) for group in groups), 3)
            lines.append(f"images that lie {where}: {len(groups)} ({shown})")
    return lines


def broken_images(
    dataset: Dataset, items: Sequence[Item], progress: Callable[[int, int], None] | None = None
) -> list[str]:
    """Decode every image, and return the error of each one that cannot be read.

    A data set with stored features instead of images has none to decode, and so no errors.
    """
    if dataset.features is not None:
        return []

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
