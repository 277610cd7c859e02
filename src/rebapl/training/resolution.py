"""The method and the inference of a training, with every setting filled in.

This is done once for each training. The result is what is hashed, run and saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from rebapl.backbones import DEFAULT_BACKBONE
from rebapl.data.catalogue import is_own
from rebapl.data.dataset import Dataset
from rebapl.data.embedded import EMBEDDED
from rebapl.data.features import StoredFeatures, is_features
from rebapl.errors import UserError
from rebapl.learnable import Conjugate
from rebapl.learners import METHODS, Learner, Recipe
from rebapl.sampling import Inference
from rebapl.sampling.presets import has_own_epochs, preset, preset_values
from rebapl.sampling.settings import Laplace
from rebapl.settings import SettingError, Settings, leaves, nested, overlaid, refuse

CUSTOM = "custom"
"""The name of the inference if it is given as an object."""

NOTHING = "none"
"""The name of the inference if the method takes no training steps: zero-shot, or a closed form."""


class AtOnce(Settings):
    """The settings of an inference that act on a method that takes no training steps.

    `laplace`, of which only `samples` is used, is for a method with a known posterior (`Conjugate`).
    """

    views: int = Field(default=1, ge=1)
    laplace: Laplace | None = None


@dataclass(frozen=True)
class ResolvedTraining:
    """A method and an inference with all their settings, and the range of the random crops.

    `inference` is None for a method that takes no training steps. `draws` is then the number of samples to draw from
    its known posterior, or None for its closed form alone. `views` is the number of views of an image in an answer.
    """

    method: str
    method_settings: Settings
    inference_name: str
    inference: Inference | None
    crop_scale: tuple[float, float]
    draws: int | None = None
    views: int = 1

    def plain(self) -> dict[str, Any]:
        """Every setting as plain values for JSON."""
        inference = {} if self.inference is None else self.inference.plain()
        if self.draws is not None:
            inference["laplace"] = {"samples": self.draws}
        if self.views > 1:
            inference["views"] = self.views
        return {
            "method": {"name": self.method, **self.method_settings.plain()},
            "inference": {"name": self.inference_name, **inference},
            "crop_scale": [float(end) for end in self.crop_scale],
        }


def default_backbone(data: str | Dataset) -> str:
    """The backbone that a run on this data set, or on the one of this name or path, uses unless another one is named.

    The embedded tasks have small pictures made for `mini`, so they need no other files. A folder of stored features
    uses the backbone that computed them, and all other data sets use CLIP ViT-B/16.

    >>> default_backbone("digits"), default_backbone("eurosat")
    ('mini', 'openai/clip-vit-base-patch16')
    """
    stored, name = None, data
    if isinstance(data, Dataset):
        stored, name = data.features, data.catalogue_name
    elif data and is_own(data) and is_features(folder := Path(data).expanduser()):
        stored = StoredFeatures.read(folder)
    if stored is not None:
        return stored.backbone
    return "mini" if name in EMBEDDED else DEFAULT_BACKBONE


def resolve_training(
    method: str | Learner[Any],
    inference: str | Inference | None,
    *,
    protocol: str,
    data: str,
    shots: int | None = None,
    epochs: int | None = None,
    method_settings: Mapping[str, Any] | None = None,
    inference_settings: Mapping[str, Any] | None = None,
) -> ResolvedTraining:
    """Fill in all settings of a training.

    They are those published for this method, protocol and data set, and those of the preset. `method_settings` and
    `inference_settings` replace some of them; these mappings may be nested or have dotted names. A method that is given
    as a learner keeps its own settings. An inference that is given as an object is used as it is. If `inference` is
    None, it is the one with which the method was published. `epochs` replaces the recipe's number, so that everything
    that a preset derives from that number changes with it. If the method takes no training steps, the inference must be
    one that acts all the same: see `AtOnce`.

    >>> resolved = resolve_training("maple", "rebapl", protocol="base-to-novel", data="eurosat", epochs=2)
    >>> resolved.inference.sampler.lr, resolved.crop_scale
    (0.0035, (0.08, 1.0))
    >>> resolve_training("app", None, protocol="base-to-novel", data="dtd", shots=4).inference.samples
    4
    """
    if isinstance(method, Learner):
        if method_settings:
            raise UserError("a learner given as an object has its settings already: leave method_settings out")
        name, own, recipe = method.method or type(method).__name__, method.config, method.recipe
        per_image, conjugate = method.repels_per_image, isinstance(method, Conjugate)
    else:
        entry = METHODS.find(method)
        published, recipe = entry.published(protocol, data, shots)
        name, own = method, entry.settings({**published, **(method_settings or {})})
        per_image, conjugate = entry.learner.per_image(own), issubclass(entry.learner, Conjugate)
    inference = recipe.inference if inference is None else inference
    if recipe.epochs == 0:
        inference_name, at_once = _at_once(name, recipe, conjugate, inference, epochs, inference_settings)
        draws = None if at_once.laplace is None else at_once.laplace.samples
        return ResolvedTraining(name, own, inference_name, None, recipe.crop_scale, draws, at_once.views)
    if isinstance(inference, Inference):
        if inference_settings or epochs is not None:
            raise UserError("an inference given as an object has all its settings: change them there")
        return ResolvedTraining(name, own, CUSTOM, inference, recipe.crop_scale, views=inference.views)
    of_recipe = recipe.inference_settings if inference == recipe.inference else {}
    changes = overlaid(nested(of_recipe), nested(inference_settings or {}))
    if epochs is not None:
        recipe = recipe.changed(epochs=epochs)
        if recipe.epochs < 1:
            refuse("epochs", f"is {epochs}: it must be at least 1")
        if has_own_epochs(inference, name):
            changes = {"epochs": epochs, **changes}
    try:
        settings = preset(inference, recipe, name, per_image, **changes)
    except SettingError as error:
        raise error.below("inference") from None
    return ResolvedTraining(name, own, inference, settings, recipe.crop_scale, views=settings.views)


def _at_once(
    method: str,
    recipe: Recipe,
    conjugate: bool,
    inference: str | Inference,
    epochs: int | None,
    settings: Mapping[str, Any] | None,
) -> tuple[str, AtOnce]:
    """What acts of an inference for a method without training steps, and the name of the inference.

    An inference is refused if nothing of it acts, unless it is the recipe's own.
    """
    nothing = f"method '{method}' learns nothing in steps"
    if isinstance(inference, Inference):
        raise UserError(f"{nothing}: leave the inference out")
    inference = recipe.inference if inference == NOTHING else inference
    values = {name: value.value for name, value in preset_values(inference, recipe, method).items()}
    acting = ["views", *(["laplace.samples"] if conjugate and "laplace.samples" in values else [])]
    if inference != recipe.inference and len(acting) == 1 and values.get("views", 1) == 1:
        others = "tta or laplace" if conjugate else "tta"
        raise UserError(f"{nothing}, so '{inference}' would do nothing: leave the inference out, or take {others}")
    requested = dict(leaves(nested(settings or {})))
    if epochs is not None or requested.keys() - set(acting):
        alone = " and ".join(f"inference.{name}" for name in acting)
        raise UserError(f"{nothing}: of the settings of '{inference}' it has {alone} alone")
    values |= requested
    try:
        at_once = AtOnce(**nested({name: values[name] for name in acting if name in values}))
    except SettingError as error:
        raise error.below("inference") from None
    return NOTHING if inference == recipe.inference else inference, at_once
