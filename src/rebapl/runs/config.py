"""What a run depends on: as it was asked for, and with every setting that this comes down to."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rebapl.backbones import DEFAULT_BACKBONE
from rebapl.data.embedded import EMBEDDED
from rebapl.data.published import PUBLISHED
from rebapl.data.task import Task, load_task, part_names
from rebapl.learners import METHODS, Recipe, published
from rebapl.sampling import Inference, preset

TRAINED_CLASSES = {"base-to-novel": "base", "selection": "pseudo-base"}
"""Which classes a protocol trains on; all of them where it is not named."""

HASH_LENGTH = 10


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that a run's numbers depend on, the machine and the place of the data aside.

    `split`, `template`, `targets` and `cache` as in `load_task`; `epochs` (per cycle) and the two mappings go on top
    of what the method was published with and of the inference's preset.

    >>> config = RunConfig("digits", "maple", "rebapl", backbone="mini")
    >>> same = RunConfig("digits", "maple", "rebapl", backbone="mini", inference_settings={"cycles": 3})
    >>> config.hash() == same.hash()
    True
    """

    data: str
    method: str = "coop"
    inference: str = "mle"
    protocol: str = "base-to-novel"
    shots: int = 16
    seed: int = 1
    backbone: str = DEFAULT_BACKBONE
    epochs: int | None = None
    test_images: int | None = None
    split: str | None = None
    template: str | None = None
    targets: tuple[str, ...] | None = None
    cache: int | None = None
    method_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inference_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.targets is not None:
            object.__setattr__(self, "targets", tuple(self.targets))

    def task(self, root: Path | None = None) -> Task:
        """The task; `root` is the folder of data sets."""
        return load_task(
            self.data,
            self.shots,
            self.seed,
            self.protocol,
            self.test_images,
            root=root,
            split=self.split,
            template=self.template,
            targets=self.targets,
            cache=self.cache,
        )

    def parts(self) -> list[str]:
        """The names of the parts to be scored."""
        return part_names(self.protocol, self.data, self.targets)

    def resolved(self) -> dict[str, Any]:
        """Every setting that the training depends on, as plain values; settings that make no sense are refused.

        Protocols that train alike resolve alike: the targets of a transfer are no part of it.
        """
        self.parts()
        settings, recipe = published(self.method, published_protocol(self.protocol), data_name(self.data))
        method = resolve_method(self.method, {**settings, **self.method_settings})
        inference = resolve_inference(self.inference, recipe, self.method, self.epochs, self.inference_settings)
        trained: dict[str, Any] = {"name": "none"}
        if inference is not None:
            trained = {"name": self.inference, **dataclasses.asdict(inference), "crop_scale": recipe.crop_scale}
        resolved = {
            "data": _data_identity(self.data),
            "split": self.split,
            "template": self.template,
            "cache": self.cache,
            "classes": TRAINED_CLASSES.get(self.protocol, "all"),
            "shots": self.shots,
            "seed": self.seed,
            "test_images": self.test_images,
            "backbone": _backbone_identity(self.backbone),
            "method": {"name": self.method, **method},
            "inference": trained,
        }
        return json.loads(json.dumps(_plain(resolved)))

    def hash(self) -> str:
        """Ten hexadecimal digits that name the resolved settings."""
        return hash_of(self.resolved())


def with_full_paths(config: RunConfig) -> RunConfig:
    """The same configuration, understood from any working folder."""
    paths = {"data": config.data if _is_own(config.data) else "", "backbone": config.backbone}
    full = {key: Path(path).expanduser().resolve() for key, path in paths.items() if path and path != "mini"}
    changes: dict[str, Any] = {key: str(path) for key, path in full.items() if path.exists()}
    return dataclasses.replace(config, **changes)


def hash_of(resolved: Mapping[str, Any]) -> str:
    """The name of resolved settings, whatever their order."""
    text = json.dumps(resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def first_difference(first: Any, second: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """The first setting in which two differ, with both values; nested ones with dots."""
    if not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return None if first == second else (name, first, second)
    for key in [*first, *(key for key in second if key not in first)]:
        found = first_difference(first.get(key), second.get(key), f"{name}.{key}" if name else key)
        if found:
            return found
    return None


def published_protocol(protocol: str) -> str:
    """The protocol whose published settings count: selecting settings is a rehearsal of base-to-novel."""
    return "base-to-novel" if protocol == "selection" else protocol


def data_name(data: str) -> str:
    """The name of a data set, also of one that is given by its path."""
    path = Path(data).expanduser().resolve()
    return (path.stem if path.suffix.lower() == ".csv" else path.name) if _is_own(data) else data


def resolve_method(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a method, given some."""
    return METHODS.find(method).settings(settings).plain()


def resolve_inference(
    name: str, recipe: Recipe, method: str, epochs: int | None, settings: Mapping[str, Any]
) -> Inference | None:
    """All settings of an inference for a recipe; None where there is nothing to learn."""
    if recipe.epochs == 0:
        return None
    changes = {**({} if epochs is None else {"epochs": epochs}), **settings}
    return preset(name, recipe, method, **changes)


def _is_own(data: str) -> bool:
    return data not in EMBEDDED and data not in PUBLISHED


def _data_identity(data: str) -> str:
    """A data set's name; a person's own by its full path, a list of images by its content as well."""
    path = Path(data).expanduser().resolve()
    if not _is_own(data) or not path.exists():
        return data
    return f"{path}:{_content(_stamps([path]))}" if path.is_file() else str(path)


def _backbone_identity(backbone: str) -> str:
    """A name or hub id as it is; a local folder by its last name and content, so that it may lie anywhere."""
    folder = Path(backbone).expanduser()
    if backbone == "mini" or not folder.is_dir():
        return backbone
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".txt", ".model"))
    return f"{folder.resolve().name}:{_content(_stamps(files))}"


def _stamps(files: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    return tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)


@functools.lru_cache(maxsize=32)
def _content(stamps: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, _, _ in stamps:
        digest.update(Path(path).name.encode())
        with Path(path).open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:
    """The same as JSON has it, a whole number as one whichever way it was written."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
