"""The settings of a run: as a person writes them (`RunConfig`), and with every value filled in (`ResolvedRun`)."""

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
from rebapl.data.embedded import NOISE
from rebapl.data.features import StoredFeatures, is_features
from rebapl.data.identity import identity
from rebapl.data.images import files_below
from rebapl.data.task import Task, check_fold_use, load_task, part_names, split_of
from rebapl.errors import UserError
from rebapl.files import content_sha256, sha256, stamp
from rebapl.settings import Settings, leaves
from rebapl.training import ResolvedTraining, default_backbone, resolve_training

if TYPE_CHECKING:
    from rebapl.data.corruptions import Corruption

TRAINED_CLASSES = {"base-to-novel": "base", "selection": "pseudo-base"}
"""Which classes a protocol trains on. A protocol that is not named here trains on all of them."""

HASH_LENGTH = 10

INDEPENDENT = "such cycles have cold restarts (`ensemble`, or inference.restart=cold), no repulsion and no adaptive end"
"""What makes cycles independent, for error messages."""

Names = Annotated[tuple[str, ...], Field(strict=False)]


class RunConfig(Settings):
    """Everything that the numbers of a run depend on, and what the run is scored on, as a person writes it.

    The machine and the folder of the data sets are not part of it. `split`, `template`, `targets` and `fold` have the
    same meaning as in `load_task`. `method_settings` replace the settings published for the method, `epochs` replaces
    the published number of epochs, and `inference_settings` replace values of the preset. `outside` names additional
    test images that belong to none of the trained classes (see `score_outside`). `corruptions` names the ways in which
    the test images are corrupted for additional scores (see `named_corruptions`). With a `cycle`, counted from 0, only
    this cycle is sampled, which must not depend on the others (see `Inference.independent_cycles`). Without an
    `inference`, the method uses the one that it was published with: `svgd` for APP, `mle` for the others. Without a
    `backbone`, embedded tasks use the embedded `mini`, and all other data use CLIP ViT-B/16.

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
    cycle: int | None = Field(default=None, ge=0)
    method_settings: dict[str, Any] = Field(default_factory=dict)
    inference_settings: dict[str, Any] = Field(default_factory=dict)
    outside: Names = ()
    corruptions: Names = ()

    def __init__(self, data: str, method: str = "coop", inference: str | None = None, **others: Any) -> None:
        super().__init__(data=data, method=method, inference=inference, **others)

    @property
    def inference_name(self) -> str:
        """The requested inference, or the one that the method was published with."""
        return self.inference or self.resolved().training.inference_name

    @property
    def backbone_name(self) -> str:
        """The requested backbone, or the default one for the data."""
        return self.backbone or default_backbone(self.data)

    def dataset(self, root: Path | None = None) -> Dataset:
        """The data set of this run; `root` is the folder of data sets. With a `fold`, own images are not split."""
        if is_own(self.data):
            return own_images(self.data, self.split, self.template, whole=self.fold is not None)[0]
        return load_dataset(self.data, root, split=self.split, template=self.template)

    def task(self, root: Path | None = None, *, keep_split: bool = False) -> Task:
        """Load the task of this run. `root` is the folder of data sets.

        With `keep_split`, a split that is drawn from the user's own images is stored next to these images. Training
        does this.
        """
        return load_task(
            self.dataset(root) if self.fold is not None else self.data,
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
        """The names of the test parts on which the run is scored."""
        return part_names(self.protocol, self.data, self.targets)

    def corruptions_by_severity(self) -> list[Corruption]:
        """The requested corruptions, one for each severity. Unknown names are refused."""
        if not self.corruptions:
            return []
        from rebapl.data.corruptions import named_corruptions  # late: few runs need them

        return named_corruptions(self.corruptions)

    def resolved(self) -> ResolvedRun:
        """Fill in every setting that the training depends on. Settings that contradict each other are refused.

        What a run is scored on is left out, so configurations that train in the same way give the same result.
        """
        self.parts()
        self.corruptions_by_severity()
        if self.fold is not None:
            check_fold_use(self.fold, self.protocol, self.split)
        training = resolve_training(
            self.method,
            self.inference,
            protocol=self.protocol,
            data=catalogue_name(self.data),
            shots=self.shots,
            epochs=self.epochs,
            method_settings=self.method_settings,
            inference_settings=self.inference_settings,
        )
        independent = 1 if training.inference is None else training.inference.independent_cycles
        if self.cycle is not None and not self.cycle < independent > 1:
            raise UserError(
                f"cycle = {self.cycle}: this run has no such cycle that does not depend on the others: {INDEPENDENT}"
            )
        data, backbone = self.data, self.backbone_name
        if is_own(data) and Path(data).expanduser().exists():
            data = f"images:{own_images(data, self.split, self.template, self.fold is not None)[1]}"
        if stamps := backbone_stamps(backbone):
            backbone = f"{Path(backbone).expanduser().resolve().name}:{_content(stamps)}"
        unchanged = ("split", "template", "shots", "seed", "test_images", "fold")
        settings = {
            "data": data,
            "backbone": backbone,
            "classes": TRAINED_CLASSES.get(self.protocol, "all"),
            **{name: getattr(self, name) for name in unchanged},
            **({} if self.cycle is None else {"cycle": self.cycle}),
            **training.plain(),
        }
        return ResolvedRun(settings, training)

    def hash(self) -> str:
        """Ten hexadecimal digits that identify the resolved settings."""
        return hash_of(self.resolved().settings)


@dataclass(frozen=True)
class ResolvedRun:
    """A run with every setting filled in. These settings are hashed, used for the training, and saved.

    `settings` has plain JSON values. Its `data` and `backbone` are not paths: each is a name, a name with a hash of the
    content or, for the user's own images, their `identity`. `training` has the settings of the method and of the
    inference as objects.
    """

    settings: dict[str, Any]
    training: ResolvedTraining


def with_full_paths(config: RunConfig) -> RunConfig:
    """The same configuration with absolute paths of data, backbone and outside images.

    So it means the same in every working folder. A name in the catalogue, of a test part or of the data stays a name,
    even if there is a folder of that name.
    """
    paths = {"data": config.data, "backbone": config.backbone_name}
    paths = {key: path for key, path in paths.items() if (is_own(path) if key == "data" else path != "mini")}
    absolute: dict[str, Any] = {key: full_path(path) for key, path in paths.items() if full_path(path) != path}
    if config.outside:
        names = (NOISE, "novel", *config.parts(), data_name(config.data))
        absolute["outside"] = tuple(
            name if name in names or not is_own(split_of(name)[0]) else full_path(name) for name in config.outside
        )
    return config.changed(**absolute)


def full_path(name: str) -> str:
    """The absolute path of a file or folder; a name that is no such path stays as it is."""
    path = Path(name).expanduser().resolve()
    return str(path) if path.exists() else name


def hash_of(resolved: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits that identify resolved settings, whatever the order of the settings."""
    return content_sha256(resolved)[:HASH_LENGTH]


def first_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The dotted name of the first setting that differs, and its value in both mappings; None if none differs."""
    ours, theirs = dict(leaves(first)), dict(leaves(second))
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key):
            return key, ours.get(key), theirs.get(key)
    return None


def data_name(data: str) -> str:
    """The name of a data set. If `data` is a path, it is the name of that folder, or of that file without its ending.

    Stored features have the name of the data set from which they were computed.
    """
    path = Path(data).expanduser().resolve()
    if is_own(data) and is_features(path):
        return StoredFeatures.read(path).about["data"]
    return (path.stem if path.suffix.lower() == ".csv" else path.name) if is_own(data) else data


def catalogue_name(data: str) -> str:
    """The name by which catalogues and recipes know a data set; empty if `data` is the path of somebody's own images.

    Stored features have the name of the data set from which they were computed.

    >>> catalogue_name("eurosat"), catalogue_name("photos/eurosat")
    ('eurosat', '')
    """
    if not is_own(data):
        return data
    folder = Path(data).expanduser()
    stored = StoredFeatures.read(folder) if is_features(folder) else None
    return "" if stored is None or stored.own else stored.about["data"]


def own_images(data: str, split: str | None, template: str | None, whole: bool) -> tuple[Dataset, str]:
    """The data set of the user's own images, and its identity (see `load_dataset` and `identity`).

    Both are needed often. For a folder they are cached until the stamp of one of its files changes.
    """
    path = own_path(data).resolve()
    load = _own_images if path.is_dir() else _own_images.__wrapped__
    files = [*files_below(path), *([] if split is None else [Path(split)])] if path.is_dir() else []
    return load(str(path), split, template, whole, hash(tuple(stamp(file) for file in files if file.exists())))


@functools.lru_cache(maxsize=4)
def _own_images(
    path: str,
    split: str | None,
    template: str | None,
    whole: bool,
    stamps: int,  # noqa: ARG001 (part of the key of the cache)
) -> tuple[Dataset, str]:
    dataset = load_dataset(path, split=split, template=template, whole=whole)
    return dataset, identity(dataset)


@functools.lru_cache(maxsize=32)
def _content(stamps: tuple[tuple[str, int, int], ...]) -> str:
    """Sixteen hexadecimal digits that identify the content of files, cached until one of their stamps changes."""
    sums = [f"{Path(path).name} {sha256(Path(path))}\n" for path, _, _ in stamps]
    return hashlib.sha256("".join(sums).encode()).hexdigest()[:16]
