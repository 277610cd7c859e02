"""Any folder of images as a data set."""

from __future__ import annotations

from pathlib import Path

from rebapl.data.dataset import Dataset, Item
from rebapl.data.images import EXTENSIONS, images_below, is_image
from rebapl.data.own import kept_split, own_dataset, read_names
from rebapl.data.splits import SPLITS, Splits, check_key, few, named_split, read_split
from rebapl.errors import UserError

SPLIT_FILE = "split_rebapl.json"


def load_folder(folder: Path, split: str | None = None, template: str | None = None) -> Dataset:
    """The data set of a folder: `train/`, `val/` (may be missing) and `test/` with class folders in each, or class
    folders alone, whose split is made once and kept in `split_rebapl.json` or in the file `split`; see
    `kept_split`.

    Classes are numbered in the order of their folders' names. `classnames.txt` may give other names than the folders',
    `template.txt` a template.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder of images")
    if is_split(folder):
        splits = _split_folders(folder) if split is None else read_split(named_split(folder, split))
    else:
        groups = _groups(folder)
        names = read_names(folder / "classnames.txt", groups)
        splits = kept_split(folder, SPLIT_FILE, split, groups, names)
    return own_dataset(folder.resolve().name, folder, splits, template)


def is_split(folder: Path) -> bool:
    """Whether `train/` holds class folders; a *class* called train holds images."""
    train = folder / "train"
    return train.is_dir() and bool(_subfolders(train)) and not any(is_image(path) for path in train.iterdir())


def _split_folders(folder: Path) -> Splits:
    parts = _subfolders(folder)
    if "test" not in parts:
        hint = "; if val/ is what is to be tested on, rename it" if "val" in parts else ""
        raise UserError(f"{folder} has train/ but no test/: scores need images of their own{hint}")
    if others := [part for part in parts if part not in SPLITS]:
        raise UserError(f"{folder} has {few(others)} beside train/ and test/: only train/, val/ and test/ are read")
    groups = {split: _groups(folder / split, folder) if split in parts else {} for split in SPLITS}
    classes = list(groups["train"])
    for split in ("val", "test"):
        if strange := [name for name in groups[split] if name not in groups["train"]]:
            raise UserError(f"{folder / split} has class folders that train/ has not: {few(strange)}")
    if lacking := [name for name in classes if name not in groups["test"]]:
        raise UserError(f"{folder / 'test'} lacks class folders that train/ has: {few(lacking)}")
    names = read_names(folder / "classnames.txt", classes)
    return Splits(
        *(
            [
                Item(key, label, names[group])
                for label, group in enumerate(classes)
                for key in groups[split].get(group, [])
            ]
            for split in SPLITS
        )
    )


def _groups(place: Path, folder: Path | None = None) -> dict[str, list[str]]:
    """The images in and below each class folder of `place`, as sorted paths below `folder`; hidden ones left out."""
    groups: dict[str, list[str]] = {}
    for group in _subfolders(place):
        found = images_below(place / group)
        groups[group] = sorted(path.relative_to(folder or place).as_posix() for path in found)
        for key in groups[group]:
            check_key(key, str(place))
        if not groups[group]:
            raise UserError(f"class folder {place / group} has no images ({' '.join(EXTENSIONS)}): remove or fill it")
    if not groups:
        raise UserError(f"{place} has no class folders: put the images of each class into a folder named after it")
    return groups


def _subfolders(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
