"""YAML files as people write them, and the common form of presets and recipes.

`read_yaml` reads YAML as people write it: `1e-3` is a number, only true and false are booleans, and a key that occurs
twice is an error. In presets and recipes, every value stands below its origin (`read_settings_file`):

    about: one line for people
    extends: another file's name, whose values come first
    paper:                                   an origin (see `ORIGINS`), and below it
      cycles: 3                              values,
      repulsion.distance.kind: mmd           nested settings with dots,
      epochs: {from: epochs, times: 3}       three times a quantity that is known when the file is used,
      method.prior_weight: {over: shots}     or 1 divided by such a quantity (with `times: 2`, 2 divided by it)
    variants:                                values for a condition, in the same form
      maple:
        paper:
          sampler.lr: 0.002
      few-shot/dtd, few-shot/eurosat:        under several conditions
        published: {epochs: 50}

If a file names another `kind` than the file that it extends, none of the other kind's settings are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rebapl.errors import UserError, unknown
from rebapl.files import refuse_special
from rebapl.settings import leaves, nested, overlaid

try:
    from yaml import CSafeLoader as SafeLoader  # ten times as fast, where PyYAML was built with it
except ImportError:
    from yaml import SafeLoader


class _Loader(SafeLoader):
    """Reads numbers and booleans as in YAML 1.2, and refuses a key that occurs twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(
                    f"line {key.start_mark.line + 1}: a name stands before a colon, not a mapping or list"
                )
            if key.value in keys:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: '{key.value}' stands twice")
            keys.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in pairs if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")
    ]
    for first, pairs in SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\d+[eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; raises `yaml.YAMLError` if the text is no YAML.

    >>> parse_yaml("1e-3"), parse_yaml("null"), parse_yaml("warm"), parse_yaml("{distance: energy}")
    (0.001, None, 'warm', {'distance': 'energy'})
    """
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; for an empty file, an empty mapping."""
    try:
        refuse_special(path)
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be read ({why})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{path} must hold settings, one `name: value` per line")
    return content


ORIGINS = {
    "definition": "what makes the method or the preset what it is",
    "published": "what the method's authors report, or have in their code",
    "recipe": "taken from the method's published recipe",
    "paper": "the ReBaPL paper",
    "authors' code": "the released code of the ReBaPL paper",
    "ours": "chosen in this project",
}
"""The origins that a value may have, and what each means."""


@dataclass(frozen=True)
class Value:
    """The value of a setting, and where it comes from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Derived:
    """A value that depends on the quantity `name`: `times` that quantity or, with `over`, `times` divided by it.

    A multiple of a whole number is rounded, and is at least 1. Only numbers have multiples; any quantity can be taken
    as it is.
    """

    name: str
    times: float = 1
    over: bool = False

    def at(self, quantities: Mapping[str, Any]) -> Any:
        """The value for these quantities."""
        quantity = quantities[self.name]
        if self.times == 1 and not self.over:
            return quantity
        if not isinstance(quantity, int | float) or (self.over and quantity == 0):
            wrong = f"divided by '{self.name}'" if self.over else f"{self.times} times '{self.name}'"
            raise UserError(f"a value is {wrong}, which is {quantity!r} here: write {{from: {self.name}}}, or a number")
        if self.over:
            return self.times / quantity
        return max(1, round(quantity * self.times)) if isinstance(quantity, int) else quantity * self.times


Layer = Mapping[str, Value]
"""Values by dotted name."""


@dataclass(frozen=True)
class SettingsFile:
    """The layers of a file, first those of the file that it extends, and further layers for conditions."""

    about: str = ""
    layers: tuple[Layer, ...] = ()
    variants: Mapping[str, tuple[Layer, ...]] = field(default_factory=dict)

    def under(self, conditions: Iterable[str]) -> list[Layer]:
        """The layers that apply under these conditions, each on top of those before it."""
        return [*self.layers, *(layer for condition in conditions for layer in self.variants.get(condition, ()))]


def combined(layers: Iterable[Layer], quantities: Mapping[str, Any]) -> dict[str, Value]:
    """Every value of layers that lie on top of each other, by dotted name, with its origin.

    A value that depends on a quantity which is not among `quantities` is left out.

    >>> below, above = {"curve.kind": Value("cosine", "paper")}, {"curve.floor": Value(0.1, "ours")}
    >>> combined([below, above], {})["curve.kind"]
    Value(value='cosine', origin='paper')
    """
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        known = {
            name: Value(entry.value.at(quantities), entry.origin) if isinstance(entry.value, Derived) else entry
            for name, entry in layer.items()
            if not isinstance(entry.value, Derived) or entry.value.name in quantities
        }
        tree = overlaid(tree, nested({name: entry.value for name, entry in known.items()}))
        for name, entry in known.items():
            for leaf, _ in leaves({name: entry.value}):  # a leaf may be only the name of a kind, see `overlaid`
                origins[leaf] = origins[f"{leaf}.kind"] = entry.origin
    return {name: Value(value, origins[name]) for name, value in leaves(tree)}


def read_settings_file(
    path: Path,
    names: Collection[str],
    quantities: Collection[str],
    fallback: Path | None = None,
    children: tuple[str, ...] = (),
) -> SettingsFile:
    """Read a file and the file that it extends, which lies beside it or in the folder `fallback`.

    `names` are the first parts of the dotted names of all settings. `quantities` are those on which a value may depend.
    `children` are the files that extend this one.
    """
    if path.stem in children:
        raise UserError(f"{path} extends itself: {' > '.join((*children, path.stem))}")
    content = read_yaml(path)
    about, parent, variants = (content.pop(key, None) for key in ("about", "extends", "variants"))
    below = SettingsFile()
    if parent is not None:
        candidates = [folder / f"{parent}.yaml" for folder in (path.parent, fallback) if folder is not None]
        extended = next((candidate for candidate in candidates if candidate.is_file()), None)
        if extended is None:
            raise UserError(f"{path} extends '{parent}', and there is no {candidates[0]}")
        below = read_settings_file(extended, names, quantities, fallback, (*children, path.stem))
    layers_under = dict(below.variants)
    for conditions, part in _mapping(variants, path, "variants").items():
        layer = _layer(part, path, names, quantities)
        for condition in map(str.strip, str(conditions).split(",")):
            layers_under[condition] = (*layers_under.get(condition, ()), layer)
    return SettingsFile(str(about or ""), (*below.layers, _layer(content, path, names, quantities)), layers_under)


def _mapping(content: Any, path: Path, where: str) -> Mapping[Any, Any]:
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: {content!r} stands where a mapping is expected, as {where}")
    return content


def _layer(content: Any, path: Path, names: Collection[str], quantities: Collection[str]) -> Layer:
    values: dict[str, Value] = {}
    for origin, part in _mapping(content, path, "values below their origins").items():
        if origin not in ORIGINS:
            raise unknown(f"origin in {path.name}", str(origin), (*ORIGINS, "about", "extends", "variants"))
        for name, value in _mapping(part, path, f"settings below '{origin}'").items():
            first = str(name).partition(".")[0]
            if first not in names:
                raise unknown(f"setting in {path.name}", first, names)
            if name in values:
                raise UserError(f"{path}: '{name}' stands twice, as {values[name].origin} and as {origin}")
            values[name] = Value(_derived(value, name, path, quantities), origin)
    return values


def _derived(value: Any, name: str, path: Path, quantities: Collection[str]) -> Any:
    """The value as it is written, or the `Derived` value that it describes."""
    match value:
        case {"from": quantity, **rest} | {"over": quantity, **rest}:
            times = rest.pop("times", 1)
            if rest or quantity not in [*quantities] or not isinstance(times, int | float):
                raise UserError(
                    f"{path}: '{name}' is {value}: write {{from: QUANTITY, times: NUMBER}} or {{over: QUANTITY}}, "
                    f"where the quantity is one of {', '.join(quantities)}"
                )
            return Derived(quantity, times, over="over" in value)
    return value
