"""How methods were published to be trained: one YAML file per method, its values grouped by where they come from.

    published:                         an origin (see `ORIGINS`), and below it
      lr: 0.002                        fields of the `Recipe`,
      method.tokens: 16                settings of the method,
      inference: svgd                  the inference that its authors train with (`mle` if not given),
      inference.sampler.particles: 4   or settings of that inference
      method.prior_weight: {over_shots: 1.0}    a value divided by the shots: 1/16 at 16 of them
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
of a data set comes after those for shots. So a data set that is trained equally long for all shots says so once. Where
nobody says how many shots there are, a value that follows them is left to its default.
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
    `inference`: the name of the inference that the authors train with, and `inference_settings` what they set of it,
    by dotted name. With another inference these settings do not count.
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
    inference_settings: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Stated:
    """One value of a recipe file and where it comes from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class OverShots:
    """A value that follows the number of shots: `value` divided by it."""

    value: float

    def at(self, shots: int) -> float:
        return self.value / shots


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
        return _at(found, shots)

    def published(self, protocol: str, dataset: str, shots: int | None = None) -> tuple[dict[str, Any], Recipe]:
        """The method's settings that differ from its defaults there, and the recipe."""
        return _parted(self.stated(protocol, dataset, shots))


def _keys(protocol: str, dataset: str, shots: int | None) -> Iterator[str]:
    for key in (protocol, dataset, f"{protocol}/{dataset}"):
        yield key
        if shots is not None and key != dataset:
            yield f"{key}@{shots}"


def _at(stated: Mapping[str, Stated], shots: int | None) -> dict[str, Stated]:
    """The values at so many shots; without a number, those that follow it are left out."""
    found = {}
    for name, each in stated.items():
        if not isinstance(each.value, OverShots):
            found[name] = each
        elif shots is not None:
            found[name] = Stated(each.value.at(shots), each.origin)
    return found


def _parted(stated: Mapping[str, Stated]) -> tuple[dict[str, Any], Recipe]:
    method, inference = (
        {key.removeprefix(prefix): each.value for key, each in stated.items() if key.startswith(prefix)}
        for prefix in ("method.", "inference.")
    )
    own = {key: each.value for key, each in stated.items() if not key.startswith(("method.", "inference."))}
    if inference:
        own["inference_settings"] = inference
    return method, Recipe(**own)


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
            settings, _ = _parted(_at({**recipes.values, **part}, 1))
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
            values[name] = Stated(_read(value, name, path), origin)
    return values


def _read(value: Any, name: str, path: Path) -> Any:
    """As written, or as it follows the shots."""
    if not isinstance(value, Mapping):
        return value
    amount = value.get("over_shots")
    if value.keys() != {"over_shots"} or not isinstance(amount, int | float) or isinstance(amount, bool):
        raise UserError(f"{path}: '{name}' is {dict(value)}: a value that follows the shots is {{over_shots: NUMBER}}")
    return OverShots(float(amount))
