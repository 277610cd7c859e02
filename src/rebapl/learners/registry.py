"""The methods by name. A method's file registers itself; nothing else needs to know of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError, unknown
from rebapl.learners.base import Learner, Recipe

METHODS: dict[str, tuple[type[Learner], type[Any]]] = {}


def register(name: str, config: type[Any]) -> Callable[[type[Learner]], type[Learner]]:
    """Class decorator: makes a learner known as `name`, with the dataclass of its settings."""

    def add(learner: type[Learner]) -> type[Learner]:
        METHODS[name] = (learner, config)
        return learner

    return add


def build_learner(
    method: str,
    encoder: DualEncoder,
    class_names: Sequence[str],
    template: str,
    generator: torch.Generator,
    settings: Mapping[str, Any] | None = None,
) -> Learner:
    """A freshly initialised learner of that method; `settings` override its published defaults."""
    if method not in METHODS:
        raise unknown("method", method, sorted(METHODS))
    kind, config = METHODS[method]
    known = [field.name for field in dataclasses.fields(config)]
    for key in settings or {}:
        if key not in known:
            raise (
                unknown(f"setting of method '{method}'", key, known)
                if known
                else UserError(f"method '{method}' has no settings, but '{key}' was given")
            )
    learner = kind(encoder, class_names, template, config(**(settings or {})))  # type: ignore[call-arg]
    learner.reset(generator)
    return learner


def published(method: str, protocol: str, dataset: str) -> tuple[dict[str, Any], Recipe]:
    """The settings and the recipe with which the authors report this method there."""
    if method not in METHODS:
        raise unknown("method", method, sorted(METHODS))
    kind, _ = METHODS[method]
    settings: dict[str, Any] = {}
    recipe = kind.recipe
    for key in (protocol, dataset, f"{protocol}/{dataset}"):
        if key in kind.variants:
            settings |= kind.variants[key].settings
            recipe = dataclasses.replace(recipe, **kind.variants[key].recipe)
    return settings, recipe
