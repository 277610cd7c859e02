"""The settings of a run: as a person asks for them (`RunConfig`), and with every value filled in (`ResolvedRun`)."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from rebapl.backbones import backbone_stamps
from rebapl.data.catalogue import is_own, load_dataset, own_path
from rebapl.data.dataset import Dataset
from rebapl.data.features import StoredFeatures, is_features
from rebapl.data.identity import identity
from rebapl.data.images import files_below
from rebapl.data.task import Task, check_fold_use, load_task, part_names
from rebapl.files import content_sha256, sha256, stamp
from rebapl.settings import Settings, leaves
from rebapl.training import ResolvedTraining, default_backbone, resolve_training

if TYPE_CHECKING:
    from rebapl.data.corruptions import Corruption

TRAINED_CLASSES = {"base-to-novel": "base", "selection": "pseudo-base"}
"""Which classes a protocol trains on. A protocol that is not named here trains on all of them."""

HASH_LENGTH = 10

Names = Annotated[tuple[str, ...], Field(strict=False)]


class RunConfig(Settings):
    """Everything that the numbers of a run depend on, and what it is scored with, as a person asks for it.

    The machine and the folder in which the data lie are no part of it. `split`, `template`, `targets` and `fold`
    are as in `load_task`. `method_settings` replace settings that were published for the method, `epochs` takes
    the place of the published number of epochs, and `inference_settings` replace values of the preset. `outside` names
    images of none of the trained classes that the run is scored with as well, see `score_outside`, and `corruptions`
    what its test images are spoiled with, see `named_corruptions`. Without an `inference`, a method has the one that it
    was published with: `svgd` for APP, `mle` for the others. Without a `backbone`, embedded tasks use the embedded
    `mini` and all other data use CLIP ViT-B/16.

    >>> config = RunConfig("digits", "maple", "rebapl")
    >>> same = RunConfig("digits", "maple", "rebapl", backbone="mini", inference_settings={"cycles": 2})
    >>> config.hash() == same.hash()
    True
    """

    data: str
    method: str = "coop"
    inference: str | None = None
    protocol: Literal["base-to-novel", "few-shot", "cross-dataset", "domain-generalization", "selection"] = (
        "base-to-novel"
    )
    shots: int = Field(default=16, ge=1)
    seed: int = 1
    backbone: str | None = None
    epochs: int | None = Field(default=None, ge=1)
    test_images: int | None = Field(default=None, ge=1)
    split: str | None = None
    template: str | None = None
    targets: Names | None = None
    fold: str | None = None
    method_settings: dict[str, Any] = Field(default_factory=dict)
    inference_settings: dict[str, Any] = Field(default_factory=dict)
    outside: Names = ()
    corruptions: Names = ()

    def __init__(self, data: str, method: str = "coop", inference: str | None = None, **others: Any) -> None:
        super().__init__(data=data, method=method, inference=inference, **others)

    @property
    def inference_name(self) -> str:
        """The inference asked for, or the one that the method was published with."""
        return self.inference or self.resolved().training.inference_name

    @property
    def backbone_name(self) -> str:
        """The backbone asked for, or the default for the data."""
        return self.backbone or default_backbone(self.data)

    def task(self, root: Path | None = None, *, keep_split: bool = False) -> Task:
        """Load the task of this run. `root` is the folder of data sets.

        With `keep_split`, a split that is made of somebody's own images is written beside them, as training does.
        """
        whole = self.fold is not None and is_own(self.data)
        return load_task(
            own_images(self.data, None, self.template, whole=True)[0] if whole else self.data,
            self.shots,
            self.seed,
            self.protocol,
            self.test_images,
            root=root,
            split=self.split,
            template=self.template,
            targets=self.targets,
            fold=self.fold,
            keep_split=keep_split,
        )

    def parts(self) -> list[str]:
        """The names of the parts to be scored."""
        return part_names(self.protocol, self.data, self.targets)

    def corruptions_by_severity(self) -> list[Corruption]:
        """The corruptions that are asked for. Wrong names are refused."""
        if not self.corruptions:
            return []
        from rebapl.data.corruptions import named_corruptions  # late: few runs need them

        return named_corruptions(self.corruptions)

    def resolved(self) -> ResolvedRun:
        """Fill in every setting that the training depends on. Settings that make no sense are refused.

        Configurations that train in the same way give the same result, because what they are scored on is left out.
        """
        self.parts()
        self.corruptions_by_severity()
        if self.fold is not None:
            check_fold_use(self.fold, self.protocol, self.split)
        training = resolve_training(
            self.method,
            self.inference,
            protocol=self.protocol,
            data=data_name(self.data),
            shots=self.shots,
            epochs=self.epochs,
            method_settings=self.method_settings,
            inference_settings=self.inference_settings,
        )
        data, backbone = self.data, self.backbone_name
        if is_own(data) and Path(data).expanduser().exists():
            data = f"images:{own_images(data, self.split, self.template, self.fold is not None)[1]}"
        if stamps := backbone_stamps(backbone):
            backbone = f"{Path(backbone).expanduser().resolve().name}:{_content(stamps)}"
        same = ("split", "template", "shots", "seed", "test_images", "fold")
        settings = {
            "data": data,
            "backbone": backbone,
            "classes": TRAINED_CLASSES.get(self.protocol, "all"),
            **{name: getattr(self, name) for name in same},
            **training.plain(),
        }
        return ResolvedRun(settings, training)

    def hash(self) -> str:
        """Ten hexadecimal digits that name the resolved settings."""
        return hash_of(self.resolved().settings)


@dataclass(frozen=True)
class ResolvedRun:
    """A run with every setting filled in. This is what is hashed, run and saved.

    In `settings`, which are as JSON has them, `data` and `backbone` are not paths but what identifies them: a name, a
    name with a hash of the content, or for somebody's own images their `identity`. `training` has those of the method
    and of the inference as objects.
    """

    settings: dict[str, Any]
    training: ResolvedTraining


def with_full_paths(config: RunConfig) -> RunConfig:
    """The same configuration with absolute paths, so that it means the same in any working folder."""
    paths = {"data": config.data if is_own(config.data) else "", "backbone": config.backbone_name}
    full = {key: Path(path).expanduser().resolve() for key, path in paths.items() if path and path != "mini"}
    return config.changed(**{key: str(path) for key, path in full.items() if path.exists()})


def hash_of(resolved: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits that name resolved settings. They do not depend on the order of these."""
    return content_sha256(resolved)[:HASH_LENGTH]


def first_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The dotted name and both values of the first setting in which two differ, or None."""
    ours, theirs = dict(leaves(first)), dict(leaves(second))
    differences = ((key, ours.get(key), theirs.get(key)) for key in {**ours, **theirs})
    return next((each for each in differences if each[1] != each[2]), None)


def data_name(data: str) -> str:
    """The name of a data set. Where `data` is a path, it is the name of that folder or file.

    Stored features have the name of the data set that they were made of.
    """
    path = Path(data).expanduser().resolve()
    if is_own(data) and is_features(path):
        return StoredFeatures.read(path).about["data"]
    return (path.stem if path.suffix.lower() == ".csv" else path.name) if is_own(data) else data


def own_images(data: str, split: str | None, template: str | None, whole: bool) -> tuple[Dataset, str]:
    """The data set of somebody's own images and its identity, see `load_dataset` and `identity`.

    Both are asked for often. Those of a folder are kept as long as the stamps of its files are the same.
    """
    path = own_path(data).resolve()
    asked = (str(path), split, template, whole)
    if not path.is_dir():
        return _load_own(*asked)
    files = [*files_below(path), *([] if split is None else [Path(split)])]
    return _kept_images(asked, hash(tuple(stamp(file) for file in files if file.exists())))


def _load_own(path: str, split: str | None, template: str | None, whole: bool) -> tuple[Dataset, str]:
    dataset = load_dataset(path, split=split, template=template, whole=whole)
    return dataset, identity(dataset)


@functools.lru_cache(maxsize=4)
def _kept_images(asked: tuple[str, str | None, str | None, bool], stamps: int) -> tuple[Dataset, str]:  # noqa: ARG001
    return _load_own(*asked)


@functools.lru_cache(maxsize=32)
def _content(stamps: tuple[tuple[str, int, int], ...]) -> str:
    """Sixteen hexadecimal digits that name the content of files, kept as long as their stamps are the same."""
    sums = [f"{Path(path).name} {sha256(Path(path))}\n" for path, _, _ in stamps]
    return hashlib.sha256("".join(sums).encode()).hexdigest()[:16]
