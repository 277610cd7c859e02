"""How methods were published to be trained: one YAML file per method, in the form that `rebapl.origins` describes.

    published:
      lr: 0.002                        fields of the `Recipe`,
      method.tokens: 16                settings of the method,
      inference.name: svgd             the inference that its authors train with (`mle` if not given),
      inference.sampler.particles: 4   settings of that inference
      method.prior_weight: {over: shots}    a value divided by the shots: 1/16 at 16 of them
    variants:                          what differs by
      few-shot:                        protocol,
        published: {epochs: 100}
      few-shot@1:                      protocol at exactly that number of shots,
        published: {epochs: 50}
      eurosat:                         data set,
        published: {batch: 32}
      few-shot/eurosat:                protocol and data set; `few-shot/eurosat@1` with shots
        published: {method.tokens: 4}

If several variants apply, they are read in this order, and a later one replaces values of an earlier one. The variant
of a data set comes after those for shots. So a data set that is trained equally long for all shots says so once. Where
nobody says how many shots there are, a value that follows them is left to its default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rebapl.errors import UserError
from rebapl.origins import SettingsFile, Value, combined, read_settings_file
from rebapl.settings import SettingError, Settings, nested


class Recipe(Settings):
    """How the method was published to be trained. Data only: the loop reads it, the learner does not act on it.

    `averaging`: mean and standard deviation, in epochs, of the Gaussian weights with which parameters are averaged.
    `inference`: the name of the inference that the authors train with, and `inference_settings` what they set of it.
    With another inference these settings do not count.
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


def recipe_at(
    recipes: SettingsFile, protocol: str, dataset: str, shots: int | None = None
) -> tuple[dict[str, Any], Recipe]:
    """The method's settings that differ from its defaults there, and the recipe."""
    conditions = []
    for key in (protocol, dataset, f"{protocol}/{dataset}"):
        conditions.append(key)
        if shots is not None and key != dataset:
            conditions.append(f"{key}@{shots}")
    return _parted(combined(recipes.under(conditions), {} if shots is None else {"shots": shots}))


def _parted(values: dict[str, Value]) -> tuple[dict[str, Any], Recipe]:
    tree = nested({name: each.value for name, each in values.items()})
    method, inference = tree.pop("method", {}), tree.pop("inference", {})
    return method, Recipe(**tree, inference=inference.pop("name", "mle"), inference_settings=inference)


def read_recipes(path: Path, config: type[Settings]) -> SettingsFile:
    """The recipes in a file, for a method with these settings; names and values that cannot be are refused."""
    names = [name for name in Recipe.model_fields if name != "inference_settings"]
    recipes = read_settings_file(path, [*names, "method"], ["shots"])
    for key in ("", *recipes.variants):
        _, at, shots = key.partition("@")
        if at and not shots.isdecimal():
            raise UserError(f"{path}: '{key}' does not end in a number of shots, as in 'few-shot@1'")
        try:
            settings, _ = _parted(combined(recipes.under([key]), {"shots": 1}))
            config(**settings)
        except SettingError as error:
            raise UserError(f"{path}: {f'{key}: ' if key else ''}{error}") from error
    return recipes
