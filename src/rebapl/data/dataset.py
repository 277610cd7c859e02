"""A data set: labelled items in three splits, and how to get an item's image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from rebapl.errors import UserError


def check_template(template: object) -> None:
    """Refuses a template that does not hold `{}` once, where the class name goes."""
    if not isinstance(template, str) or template.count("{}") != 1:
        raise UserError(f"template {template!r} must hold '{{}}' once, where the class name goes")


class Item(NamedTuple):
    """One labelled image. `key` is its path below the data root or, for a drawn image, the text it is drawn from."""

    key: str
    label: int
    class_name: str


@dataclass(frozen=True)
class Dataset:
    """Items in the order of the published split files, which the few-shot rule depends on.

    `load` turns an item's key into an RGB image. `template` has one `{}` for the class name. So that the label of an
    image stays true, augmentation must leave at least `min_crop` of its area, and mirror it only if `flip`. If the
    images are files, their keys are paths below `folder`; drawn images have no folder.
    """

    name: str
    template: str
    train: Sequence[Item]
    val: Sequence[Item]
    test: Sequence[Item]
    load: Callable[[str], Image.Image]
    min_crop: float = 0.0
    flip: bool = True
    folder: Path | None = None

    @property
    def class_names(self) -> list[str]:
        """Class names by label, 0 … n−1."""
        names = {item.label: item.class_name for item in (*self.train, *self.val, *self.test)}
        if sorted(names) != list(range(len(names))):
            raise UserError(f"the labels of data set '{self.name}' are not 0 … {len(names) - 1}: {sorted(names)}")
        return [names[label] for label in sorted(names)]
