"""YAML files: read as people write them, and the one form of presets and recipes.

As people write them: `1e-3` is a number, only true and false are booleans, a key stands once (`read_yaml`). In presets
and recipes every value stands below its origin (`read_settings_file`):

    about: one line for people
    extends: another file's name, whose values come first
    paper:                                   an origin (see `ORIGINS`), and below it
      cycles: 3                              values,
      repulsion.distance.kind: mmd           nested ones with dots,
      epochs: {from: epochs, times: 3}       or three times a quantity that is known when the file is used,
      method.prior_weight: {over: shots}     or one over such a quantity (`times: 2`: two over it)
    variants:                                what differs under a condition, in the same form
      maple:
        paper:
          sampler.lr: 0.002
      few-shot/dtd, few-shot/eurosat:        under several conditions
        published: {epochs: 50}

Where a file gives another `kind` than the one it extends, nothing of the other kind's settings stays.
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
    """YAML 1.2's numbers and booleans, and no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(
                    f"line {key.start_mark.line + 1}: a name stands before a colon, not a mapping or list"
                )
            if key.value in seen:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: '{key.value}' stands twice")
            seen.add(key.value)
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
    """The value that a text stands for; `yaml.YAMLError` where it is none.

    >>> parse_yaml("1e-3"), parse_yaml("null"), parse_yaml("warm"), parse_yaml("{distance: energy}")
    (0.001, None, 'warm', {'distance': 'energy'})
    """
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file; an empty file is an empty one."""
    try:
        refuse_special(path)
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error})") from error
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
"""Where a value may come from."""


@dataclass(frozen=True)
class Value:
    """One setting and where it comes from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Derived:
    """A value that follows the quantity `name`: `times` that quantity or, with `over`, `times` divided by it.

    A multiple of a whole number is rounded, and is at least 1.
    """

    name: str
    times: float = 1
    over: bool = False

    def at(self, quantities: Mapping[str, Any]) -> Any:
        """The value for these quantities."""
        quantity = quantities[self.name]
        if self.over:
            return self.times / quantity
        if self.times == 1:
            return quantity
        return max(1, round(quantity * self.times)) if isinstance(quantity, int) else quantity * self.times


Layer = Mapping[str, Value]
"""Values by dotted name."""


@dataclass(frozen=True)
class SettingsFile:
    """The layers of a file, those of the file that it extends first, and further layers under conditions."""

    about: str = ""
    layers: tuple[Layer, ...] = ()
    variants: Mapping[str, tuple[Layer, ...]] = field(default_factory=dict)

    def under(self, conditions: Iterable[str]) -> list[Layer]:
        """The layers that hold under these conditions, each on top of those before it."""
        return [*self.layers, *(layer for each in conditions for layer in self.variants.get(each, ()))]


def combined(layers: Iterable[Layer], quantities: Mapping[str, Any]) -> dict[str, Value]:
    """Every value of layers that lie on top of each other, by dotted name, with its origin.

    A value that follows a quantity which is not known is left out.

    >>> below, above = {"curve.kind": Value("cosine", "paper")}, {"curve.floor": Value(0.1, "ours")}
    >>> combined([below, above], {})["curve.kind"]
    Value(value='cosine', origin='paper')
    """
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        here = {
            name: Value(each.value.at(quantities), each.origin) if isinstance(each.value, Derived) else each
            for name, each in layer.items()
            if not isinstance(each.value, Derived) or each.value.name in quantities
        }
        tree = overlaid(tree, nested({name: each.value for name, each in here.items()}))
        for name, each in here.items():
            for leaf, _ in leaves({name: each.value}):
                origins[leaf] = origins[f"{leaf}.kind"] = each.origin  # the name of a kind alone gives that kind
    return {name: Value(value, origins[name]) for name, value in leaves(tree)}


def read_settings_file(
    path: Path,
    names: Collection[str],
    quantities: Collection[str],
    fallback: Path | None = None,
    children: tuple[str, ...] = (),
) -> SettingsFile:
    """Read a file, on top of the one that it extends, which lies beside it or in the folder `fallback`.

    `names` are the settings that there are, by the first part of their dotted names. `quantities` are those that a
    value may follow. `children` are the files that extend this one.
    """
    if path.stem in children:
        raise UserError(f"{path} extends itself: {' > '.join((*children, path.stem))}")
    content = read_yaml(path)
    about, parent, variants = (content.pop(key, None) for key in ("about", "extends", "variants"))
    below = SettingsFile()
    if parent is not None:
        places = [folder / f"{parent}.yaml" for folder in (path.parent, fallback) if folder is not None]
        found = next((each for each in places if each.is_file()), None)
        if found is None:
            raise UserError(f"{path} extends '{parent}', and there is no {places[0]}")
        below = read_settings_file(found, names, quantities, fallback, (*children, path.stem))
    conditions = dict(below.variants)
    for keys, part in _mapping(variants, path, "variants").items():
        layer = _layer(part, path, names, quantities)
        for key in map(str.strip, str(keys).split(",")):
            conditions[key] = (*conditions.get(key, ()), layer)
    return SettingsFile(str(about or ""), (*below.layers, _layer(content, path, names, quantities)), conditions)


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
    """The value as it is written, or what it follows."""
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
