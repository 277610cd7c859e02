"""The preset files: one YAML file each, its values grouped by where they come from.

    about: one line for people
    extends: another file's name, whose values come first
    paper:                                   an origin, and below it
      cycles: 3                              values,
      repulsion.distance.kind: mmd           nested ones with dots,
      epochs: {recipe: epochs, times: 3}     or taken from the learner's recipe, perhaps several times
    methods:                                 what differs for a method, in the same form
      maple:
        paper:
          sampler.lr: 0.002

Where a file gives another `kind` than the one it extends, nothing of the other kind's settings stays. A file whose
name begins with `_` is only there to be extended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rebapl.errors import UserError, unknown
from rebapl.sampling.settings import Inference
from rebapl.yaml_files import read_yaml

ORIGINS = ("definition", "recipe", "paper", "authors' code", "ours")
"""What makes the preset what it is; the method's published recipe; the ReBaPL paper; its released code; chosen here."""

ORDER = "mle ensemble snapshot sgld sghmc csgld csghmc rebapl rebapl-paper rebapl-authors svgd".split()
"""From plain to elaborate, as lists show them; others come after."""


@dataclass(frozen=True)
class Value:
    """One setting and where it comes from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class FromRecipe:
    """A setting taken from the learner's recipe, perhaps so many times of it; whole numbers stay whole, at least 1."""

    name: str
    times: float = 1


@dataclass(frozen=True)
class Preset:
    """The values of a preset by dotted name, and what differs for some methods."""

    about: str
    values: Mapping[str, Value]
    methods: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


def read_presets(folder: Path) -> dict[str, Preset]:
    """All presets in a folder, by name."""
    names = sorted(path.stem for path in folder.glob("[!_]*.yaml"))
    known = [name for name in ORDER if name in names]
    return {name: read_preset(folder / f"{name}.yaml") for name in (*known, *(n for n in names if n not in ORDER))}


def read_preset(path: Path, fallback: Path | None = None, children: tuple[str, ...] = ()) -> Preset:
    """The preset in a file, on top of the one that it extends, which lies beside it or in the folder `fallback`."""
    if path.stem in children:
        raise UserError(f"preset {path} extends itself: {' > '.join((*children, path.stem))}")
    content = read_yaml(path)
    about, parent = content.pop("about", ""), content.pop("extends", None)
    start = Preset("", {})
    if parent is not None:
        below = [folder / f"{parent}.yaml" for folder in (path.parent, fallback) if folder is not None]
        there = [each for each in below if each.is_file()]
        if not there:
            raise UserError(f"{path} extends '{parent}', and there is no {below[0]}")
        start = read_preset(there[0], fallback, (*children, path.stem))
    given = content.pop("methods", {})
    methods = {name: on_top(start.methods.get(name, {}), _values(part, path)) for name, part in given.items()}
    return Preset(about, on_top(start.values, _values(content, path)), {**start.methods, **methods})


def on_top(below: Mapping[str, Value], above: Mapping[str, Value]) -> dict[str, Value]:
    """Values on top of others: a value replaces all below its name, and another kind what the first kind had."""
    kept = dict(below)
    for name, entry in above.items():
        outer, _, last = name.rpartition(".")
        if last == "kind" and name in kept and kept[name].value != entry.value:
            kept = {each: value for each, value in kept.items() if not each.startswith(f"{outer}.")}
        kept = {
            each: value
            for each, value in kept.items()
            if not each.startswith(f"{name}.") and not name.startswith(f"{each}.")
        }
        kept[name] = entry
    return kept


def _values(content: Mapping[str, Any], path: Path) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for origin, settings in content.items():
        if origin not in ORIGINS:
            raise unknown(f"section of {path.name}", origin, (*ORIGINS, "about", "extends", "methods"))
        for name, value in (settings or {}).items():
            if name.partition(".")[0] not in Inference.model_fields:
                raise unknown(f"setting in {path.name}", name.partition(".")[0], Inference.model_fields)
            if name in values:
                raise UserError(f"{path}: '{name}' stands twice, as {values[name].origin} and as {origin}")
            values[name] = Value(_read(value), origin)
    # kinds first, so that a change of kind does not take away what stands beside it
    return dict(sorted(values.items(), key=lambda item: not item[0].endswith(".kind")))


def _read(value: Any) -> Any:
    """As written, or what it takes from the recipe."""
    if isinstance(value, dict) and "recipe" in value:
        return FromRecipe(value["recipe"], value.get("times", 1))
    return value
