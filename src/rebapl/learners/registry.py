"""The methods by name, and their published recipes.

The file of a method registers it; `PACKAGED` has the file of each name. The recipe of a method is a YAML file in the
folder `recipes`, in the form that `rebapl.yaml_files` describes.

    published:
      lr: 0.002                        fields of the `Recipe`,
      method.tokens: 16                settings of the method,
      inference.name: svgd             the inference that its authors train with (by default `mle`),
      inference.sampler.particles: 4   settings of that inference,
      method.prior_weight: {over: shots}    1 divided by the shots: 1/16 at 16 shots
    variants:                          values that differ by
      few-shot:                        protocol,
        published: {epochs: 100}
      few-shot@1:                      protocol at exactly that number of shots,
        published: {epochs: 50}
      eurosat:                         data set,
        published: {batch: 32}
      few-shot/eurosat:                protocol and data set; `few-shot/eurosat@1` with shots
        published: {method.tokens: 4}

If several variants apply, they are read in this order, and a later one replaces values of an earlier one. The variant
of a data set comes after those for shots. So a data set that is trained equally long at all shots needs one variant. If
the number of shots is not known, a value that depends on it has its default.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.learners.base import Learner, Recipe
from rebapl.plugins import Registry
from rebapl.settings import SettingError, Settings, nested
from rebapl.yaml_files import SettingsFile, Value, combined, read_settings_file

FOLDER = Path(__file__).parent / "recipes"
"""The recipe files of the methods that come with the package."""

LearnerClass = TypeVar("LearnerClass", bound=type[Learner[Any]])


@dataclass(frozen=True)
class Method:
    """A registered method: the class of its learner, the class of its settings, and its recipe file, if it has one.

    A learner without a recipe file has the same `recipe` for every protocol and data set.
    """

    name: str
    learner: type[Learner[Any]]
    config: type[Settings]
    file: Path | None = None

    @cached_property
    def recipes(self) -> SettingsFile | None:
        """The contents of the method's recipe file. It is read on first use, because prediction never needs it."""
        return None if self.file is None else read_recipes(self.file, self.config)

    @property
    def about(self) -> str:
        """One line that describes the method: the first line of the docstring of its learner, or else of its file.

        For the methods of this package, each of which has a file of its own, the file's docstring is preferred.
        """
        module = sys.modules.get(self.learner.__module__)
        texts = [vars(self.learner).get("__doc__"), None if module is None else module.__doc__]
        if self.learner.__module__.startswith(f"{__package__}."):
            texts.reverse()
        lines = (line.strip() for text in texts for line in (text or "").splitlines())
        return next((line for line in lines if line), "")

    def settings(self, given: Mapping[str, Any] | Settings | None = None) -> Settings:
        """The method's settings as an object. Those that are not `given` have their defaults.

        An error names the setting as `method.NAME`.

        >>> METHODS.find("coop").settings({"init": None, "tokens": 8}).plain()
        {'tokens': 8, 'init': None, 'position': 'end', 'class_specific': False}
        >>> METHODS.find("coop").settings({"tokens": 2.5})
        Traceback (most recent call last):
        rebapl.settings.SettingError: method.tokens is 2.5: it must be a whole number or null
        """
        if isinstance(given, self.config):
            return given
        try:
            return self.config(**(given.plain() if isinstance(given, Settings) else given or {}))
        except SettingError as error:
            raise error.below("method") from None

    def published(self, protocol: str, dataset: str, shots: int | None = None) -> tuple[dict[str, Any], Recipe]:
        """The published settings that differ from the method's defaults, and the recipe.

        The protocol `selection`, which rehearses base-to-novel, has those of base-to-novel.
        """
        protocol = "base-to-novel" if protocol == "selection" else protocol
        if self.recipes is None:
            return {}, self.learner.recipe
        conditions = []
        for key in (protocol, dataset, f"{protocol}/{dataset}"):
            conditions.append(key)
            if shots is not None and key != dataset:
                conditions.append(f"{key}@{shots}")
        return _settings_and_recipe(combined(self.recipes.under(conditions), {} if shots is None else {"shots": shots}))


PACKAGED = {
    "zero-shot": "zero_shot",
    "coop": "coop",
    "cocoop": "cocoop",
    "vpt": "vpt",
    "ivlp": "ivlp",
    "maple": "maple",
    "promptsrc": "promptsrc",
    "mmrl": "mmrl",
    "mmrl++": "mmrl_plus",
    "proda": "proda",
    "bpl": "bayesian",
    "app": "adaptable_prompts",
    "vamp": "vamp",
    "linear": "linear",
    "gda": "gda",
    "tip-adapter": "tip_adapter",
    "tip-adapter-f": "tip_adapter_f",
    "proker": "proker",
    "lp++": "lp_plus",
}
"""The methods of this package, and the modules of their files."""

METHODS: Registry[Method] = Registry(
    "method", "rebapl.learners", {name: f"{__package__}.{module}" for name, module in PACKAGED.items()}
)
"""All methods by name, including those of installed plugins. The file of a method is imported when it is looked up."""


def register(
    name: str, config: type[Settings], recipes: Path | str | None = None
) -> Callable[[LearnerClass], LearnerClass]:
    """Class decorator that registers a learner under `name`, with the class of its settings.

    The recipe of the method is in the file `recipes` (see above), or in the class attribute `recipe`. If a class is
    defined again, for example by a notebook cell that is run twice, the new class replaces the old one.
    """

    def add(learner: LearnerClass) -> LearnerClass:
        elsewhere = METHODS.packaged.get(name, learner.__module__) != learner.__module__
        taken = METHODS[name] if elsewhere else METHODS.known.get(name)
        if taken is not None and _identity(taken.learner) != _identity(learner):
            raise UserError(f"method '{name}' is {_identity(taken.learner)} already: choose another name")
        earlier = vars(learner).get("registered_as")
        if earlier not in (None, name):
            raise UserError(f"{_identity(learner)} is registered as '{earlier}' already: a class has one name")
        path = Path(recipes) if recipes is not None else FOLDER / f"{name}.yaml"
        if recipes is None and not path.is_file():
            if not isinstance(getattr(learner, "recipe", None), Recipe):
                raise UserError(
                    f"method '{name}' has no recipe: give {_identity(learner)} an attribute such as recipe = "
                    f"Recipe(lr=0.002, epochs=50, batch=32), or the path of a recipe file, register({name!r}, …, "
                    "recipes=path)"
                )
            method = Method(name, learner, config)
        else:
            if recipes is not None:
                read_recipes(path, config)  # raises an error now if the file is wrong
            method = Method(name, learner, config, path)
            learner.recipe = _RecipeOf(method)  # type: ignore[assignment]  # gives a Recipe
        learner.registered_as = name
        METHODS.known[name] = method
        return learner

    return add


class _RecipeOf:
    """The attribute `recipe` of a learner whose recipe is in a file. It is the one without variants."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def __get__(self, learner: object, kind: type) -> Recipe:
        return self.method.published("", "")[1]


def _settings_and_recipe(values: dict[str, Value]) -> tuple[dict[str, Any], Recipe]:
    tree = nested({name: value.value for name, value in values.items()})
    method, inference = tree.pop("method", {}), tree.pop("inference", {})
    return method, Recipe(**tree, inference=inference.pop("name", "mle"), inference_settings=inference)


def read_recipes(path: Path, config: type[Settings]) -> SettingsFile:
    """The recipes in a file, for a method with these settings. Unknown names and wrong values are errors."""
    names = [name for name in Recipe.model_fields if name != "inference_settings"]
    recipes = read_settings_file(path, [*names, "method"], ["shots"])
    for key in ("", *recipes.variants):
        _, at, shots = key.partition("@")
        if at and not shots.isdecimal():
            raise UserError(f"{path}: '{key}' does not end in a number of shots, as in 'few-shot@1'")
        try:
            settings, _ = _settings_and_recipe(combined(recipes.under([key]), {"shots": 1}))
            config(**settings)
        except SettingError as error:
            raise UserError(f"{path}: {f'{key}: ' if key else ''}{error}") from error
    return recipes


def _identity(learner: type) -> str:
    return f"{learner.__module__}.{learner.__qualname__}"


def build_learner(
    method: str,
    encoder: DualEncoder,
    class_names: Sequence[str],
    template: str | None,
    generator: torch.Generator | None,
    settings: Mapping[str, Any] | Settings | None = None,
) -> Learner[Any]:
    """A new learner of a method for these classes; `settings` override its defaults.

    Without a `generator` its parameters are not drawn: the caller then sets them.
    """
    known = METHODS.find(method)
    learner = known.learner(encoder, known.settings(settings)).bind(class_names, template)
    if generator is not None:
        learner.reset(generator)
    return learner


def published(method: str, protocol: str, dataset: str, shots: int | None = None) -> tuple[dict[str, Any], Recipe]:
    """The settings and the recipe with which the authors of a method report it for this protocol and data set.

    >>> [published("coop", "few-shot", "digits", shots)[1].epochs for shots in (1, 4, 16, None)]
    [50, 100, 200, 200]
    """
    return METHODS.find(method).published(protocol, dataset, shots)
