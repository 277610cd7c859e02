"""The preset files: one YAML file each, its values grouped by where they come from.

    about: one line for people
    extends: another file's name, whose values come first
    paper:                                   an origin, and below it
      cycles: 3                              values,
      repulsion.metric: mmd                  nested ones with a dot,
      epochs: {recipe: epochs, times: 3}     or taken from the learner's recipe, perhaps several times
    methods:                                 what differs for a method, in the same form
      maple:
        paper:
          lr: 0.002

A file whose name begins with `_` is only there to be extended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rebapl.errors import UserError, unknown
from rebapl.sampling.settings import Adaptive, Inference, Repelling
from rebapl.yaml_files import read_yaml

ORIGINS = ("definition", "recipe", "paper", "authors' code", "ours")
"""What makes the preset what it is; the method's published recipe; the ReBaPL paper; its released code; chosen here."""

ORDER = "mle ensemble snapshot sgld sghmc csgld csghmc rebapl rebapl-paper rebapl-authors svgd".split()
"""From plain to elaborate, as lists show them; others come after."""

NESTED: dict[str, type] = {"repulsion": Repelling, "adaptive": Adaptive}


@dataclass(frozen=True)
class Value:
    """One setting and where it comes from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class FromRecipe:
    """A setting taken from a field of the learner's recipe, perhaps so many times of it."""

    name: str
    times: int = 1


@dataclass(frozen=True)
class Preset:
    """The values of a preset, and what differs for some methods."""

    about: str
    values: Mapping[str, Value]
    methods: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


def read_presets(folder: Path) -> dict[str, Preset]:
    """All presets in a folder, by name."""
    names = sorted(path.stem for path in folder.glob("[!_]*.yaml"))
    known = [name for name in ORDER if name in names]
    return {name: read_preset(folder / f"{name}.yaml") for name in (*known, *(n for n in names if n not in ORDER))}


def read_preset(path: Path, below: tuple[str, ...] = ()) -> Preset:
    """The preset in a file, on top of the one that it extends."""
    if path.stem in below:
        raise UserError(f"preset {path} extends itself: {' > '.join((*below, path.stem))}")
    content = read_yaml(path)
    about, parent = content.pop("about", ""), content.pop("extends", None)
    if parent is not None and not (path.parent / f"{parent}.yaml").is_file():
        raise UserError(f"{path} extends '{parent}', and there is no {path.parent / f'{parent}.yaml'}")
    start = Preset("", {}) if parent is None else read_preset(path.parent / f"{parent}.yaml", (*below, path.stem))
    given = content.pop("methods", {})
    methods = {name: {**start.methods.get(name, {}), **_values(part, path)} for name, part in given.items()}
    return Preset(about, {**start.values, **_values(content, path)}, {**start.methods, **methods})


def _values(content: Mapping[str, Any], path: Path) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for origin, settings in content.items():
        if origin not in ORIGINS:
            raise unknown(f"section of {path.name}", origin, (*ORIGINS, "about", "extends", "methods"))
        for name, value in (settings or {}).items():
            _check_name(name, path)
            if name in values:
                raise UserError(f"{path}: '{name}' stands twice, as {values[name].origin} and as {origin}")
            values[name] = Value(_read(value), origin)
    return values


def _check_name(name: str, path: Path) -> None:
    outer, _, inner = name.partition(".")
    kind, key = (NESTED[outer], inner) if outer in NESTED else (Inference, name)
    known = [each.name for each in fields(kind)]
    if key not in known:
        raise unknown(f"setting in {path.name}", name, [f"{outer}.{each}" for each in known] if inner else known)


def _read(value: Any) -> Any:
    """As written, or what it takes from the recipe."""
    if isinstance(value, dict) and "recipe" in value:
        return FromRecipe(value["recipe"], value.get("times", 1))
    return value
