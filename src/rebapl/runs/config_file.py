"""Run configurations as people write them: a YAML file, and `key=value` words on top.

    extends: common.yaml          # another file, whose settings come first
    data: eurosat
    method: {name: maple, tokens: 4}
    inference:
      name: rebapl
      temperature: 0.1
      repulsion: {metric: energy}
    seed: 2

`method` and `inference` are a name, or a mapping with `name` and settings. On the command line the same keys are
written with dots: `seed=2 inference.repulsion.metric=energy`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rebapl.errors import UserError, unknown
from rebapl.runs.config import RunConfig
from rebapl.sampling.settings import check_kinds
from rebapl.yaml_files import parse_yaml, read_yaml

SECTIONS = ("method", "inference")
KEYS = tuple(each.name for each in dataclasses.fields(RunConfig) if not each.name.endswith("_settings"))


def read_config_file(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The settings in a file, on top of those in the file that it `extends` (a path from where it lies)."""
    path = path.resolve()
    if path in below:
        raise UserError(f"{path} extends itself")
    content = read_yaml(path)
    parent = content.pop("extends", None)
    _check_keys(content, f" in {path.name}", (*KEYS, "extends"))
    if parent is None:
        return content
    return merged(read_config_file(path.parent / str(parent), (*below, path)), content)


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words as nested settings; values are read as YAML.

    >>> read_words(["seed=2", "method.tokens=16", "inference.repulsion.metric=energy", "inference.lr=1e-3"])
    {'seed': 2, 'method': {'tokens': 16}, 'inference': {'repulsion': {'metric': 'energy'}, 'lr': 0.001}}
    """
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise UserError(f"'{word}': write key=value, such as seed=2 or inference.temperature=0.1")
        try:
            value: Any = parse_yaml(text)
        except yaml.YAMLError as error:
            raise UserError(
                f"'{word}': the value is not YAML; text with signs such as {{}}, [] or : goes in quotes, as in "
                f"\"{key}='…'\" ({' '.join(str(error).split())})"
            ) from error
        for name in reversed(path):
            value = {name: value}
        _check_keys(value)
        settings = merged(settings, value)
    return settings


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """`second` on top of `first`, mappings inside one another. Settings go when the method or inference changes.

    >>> merged({"method": {"name": "maple", "tokens": 4}}, {"method": {"depth": 3}})
    {'method': {'name': 'maple', 'tokens': 4, 'depth': 3}}
    >>> merged({"method": {"name": "maple", "tokens": 4}}, {"method": "coop"})
    {'method': {'name': 'coop'}}
    """
    result = dict(first)
    for key, value in second.items():
        if key in SECTIONS:
            before, after = _section(result.get(key), key), _section(value, key)
            if "name" in after and after["name"] != before.get("name", after["name"]):
                before = {}
            result[key] = _deep(before, after)
        else:
            result[key] = value
    return result


def build_config(settings: Mapping[str, Any]) -> RunConfig:
    """The configuration of nested settings; unknown keys and values of the wrong kind are refused.

    >>> build_config({"data": "digits", "method": {"name": "maple", "tokens": 4}}).method_settings
    {'tokens': 4}
    """
    _check_keys(settings)
    values = {key: value for key, value in settings.items() if key not in SECTIONS}
    for key in SECTIONS:
        section = _section(settings.get(key), key)
        if "name" in section:
            values[key] = section.pop("name")
        values[f"{key}_settings"] = section
    if values.get("data") is None:
        raise UserError("which data set? Give --data, or data=… (`rebapl data list` names those there are)")
    if isinstance(values.get("targets"), str):
        values["targets"] = [name.strip() for name in values["targets"].split(",")]
    config = RunConfig(**values)
    check_kinds(config)
    return config


def _section(value: Any, key: str) -> dict[str, Any]:
    """A method or an inference as a mapping with its name among the settings."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        raise UserError(f"{key} is {value!r}: give its name, or a mapping with `name` and settings")
    return dict(value)


def _deep(first: Any, second: Any) -> Any:
    if not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        return second
    return {**first, **{key: _deep(first.get(key), value) for key, value in second.items()}}


def _check_keys(settings: Mapping[str, Any], where: str = "", accepted: Sequence[str] = KEYS) -> None:
    for key, value in settings.items():
        if key not in accepted:
            raise unknown(f"setting{where}", key, accepted)
        if isinstance(value, Mapping) and key not in SECTIONS:
            raise UserError(f"setting{where} '{key}' has no settings of its own; {' and '.join(SECTIONS)} have")
