"""How methods were published to be trained: one YAML file per method, its values grouped by where they come from.

    published:                         an origin (see `ORIGINS`), and below it
      lr: 0.002                        fields of the `Recipe`,
      method.tokens: 16                or settings of the method
    variants:                          what differs, in the same form, by
      few-shot:                        protocol
        published: {epochs: 100}
      few-shot@1:                      protocol at exactly that number of shots
        published: {epochs: 50}
      eurosat:                         data set
        published: {batch: 32}
      few-shot/eurosat:                protocol and data set; `few-shot/eurosat@1` with shots
        published: {method.tokens: 4}

If several variants apply, they are read in this order, and a later one replaces values of an earlier one. The variant
of a data set comes after those for shots. So a data set that is trained equally long for all shots says so once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rebapl.errors import UserError, unknown
from rebapl.settings import SettingError, Settings
from rebapl.yaml_files import read_yaml

ORIGINS = ("definition", "published", "ours")
"""What makes the method what it is; what its authors report or have in their code; what was chosen here."""


class Recipe(Settings):
    """How the method was published to be trained. Data only: the loop reads it, the learner does not act on it.

    `averaging`: mean and standard deviation, in epochs, of the Gaussian weights with which parameters are averaged.
    `inference`: the name of the inference that the authors train with.
    """

    lr: float = Field(ge=0)
    epochs: int = Field(ge=0)
    batch: int = Field(ge=1)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    warmup_epochs: int = Field(default=1, ge=0)
    warmup_lr: float = Field(default=1e-5, ge=0)
    crop_scale: tuple[float, float] = Field(default=(0.08, 1.0), strict=False)
    averaging: tuple[float, float] | None = Field(default=None, strict=False)
    inference: str = "mle"


@dataclass(frozen=True)
class Stated:
    """One value of a recipe file and where it comes from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Recipes:
    """What a recipe file says: values for everywhere, and `variants` by protocol, shots and data set."""

    values: Mapping[str, Stated]
    variants: Mapping[str, Mapping[str, Stated]] = field(default_factory=dict)

    def stated(self, protocol: str, dataset: str, shots: int | None = None) -> dict[str, Stated]:
        """Every value that is stated for a protocol, a data set and a number of shots, with its origin."""
        found = dict(self.values)
        for key in _keys(protocol, dataset, shots):
            found |= self.variants.get(key, {})
        return found

    def published(self, protocol: str, dataset: str, shots: int | None = None) -> tuple[dict[str, Any], Recipe]:
        """The method's settings that differ from its defaults there, and the recipe."""
        return _parted(self.stated(protocol, dataset, shots))


def _keys(protocol: str, dataset: str, shots: int | None) -> Iterator[str]:
    for key in (protocol, dataset, f"{protocol}/{dataset}"):
        yield key
        if shots is not None and key != dataset:
            yield f"{key}@{shots}"


def _parted(stated: Mapping[str, Stated]) -> tuple[dict[str, Any], Recipe]:
    settings = {key.removeprefix("method."): each.value for key, each in stated.items() if key.startswith("method.")}
    return settings, Recipe(**{key: each.value for key, each in stated.items() if not key.startswith("method.")})


def recipes_of(recipe: Recipe) -> Recipes:
    """A recipe that a class states itself, the same everywhere."""
    given = {name: getattr(recipe, name) for name in recipe.model_fields_set}
    return Recipes({name: Stated(value, "published") for name, value in given.items()})


def read_recipes(path: Path, config: type[Settings]) -> Recipes:
    """The recipes in a file, for a method with these settings; names and values that cannot be are refused."""
    content = read_yaml(path)
    variants = content.pop("variants", None) or {}
    recipes = Recipes(_values(content, path), {str(key): _values(part, path) for key, part in variants.items()})
    for key, part in {"": {}, **recipes.variants}.items():
        _, at, shots = key.partition("@")
        if at and not shots.isdecimal():
            raise UserError(f"{path}: '{key}' does not end in a number of shots, as in 'few-shot@1'")
        try:
            settings, _ = _parted({**recipes.values, **part})
            config(**settings)
        except SettingError as error:
            raise UserError(f"{path}: {f'{key}: ' if key else ''}{error}") from error
    return recipes


def _values(content: Any, path: Path) -> dict[str, Stated]:
    values: dict[str, Stated] = {}
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: {content!r} stands where an origin is expected: {', '.join(ORIGINS)}")
    for origin, part in content.items():
        if origin not in ORIGINS:
            raise unknown(f"origin in {path.name}", str(origin), (*ORIGINS, "variants"))
        for name, value in (part or {}).items():
            if name in values:
                raise UserError(f"{path}: '{name}' stands twice, as {values[name].origin} and as {origin}")
            values[name] = Stated(value, origin)
    return values
