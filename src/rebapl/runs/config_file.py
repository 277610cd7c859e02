"""Run configurations as people write them: a YAML file, and `key=value` words that replace what it says.

    extends: common.yaml          # another file, which is read first; this file replaces what it says
    data: eurosat
    method: {name: maple, tokens: 4}
    inference:
      name: rebapl
      sampler: {temperature: 0.1}
      repulsion: {distance: energy}
    seed: 2

`method` and `inference` are a name, or a mapping with `name` and settings. On the command line the same keys are
written with dots: `seed=2 inference.repulsion.distance=energy`. The `config.json` of a run can be read like such a
file; the configuration that results names the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rebapl.errors import UserError, printable, unknown
from rebapl.runs.config import RunConfig
from rebapl.settings import nested, overlaid
from rebapl.yaml_files import parse_yaml, read_yaml

SECTIONS = ("method", "inference")
KEYS = tuple(name for name in RunConfig.model_fields if not name.endswith("_settings"))


def read_config_file(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read the settings in a file. They replace those of the file that it `extends` (a path from its own folder)."""
    path = path.resolve()
    if path in below:
        raise UserError(f"{path} extends itself")
    content = read_yaml(path)
    if "resolved" in content:
        return _of_run(content, path)
    parent = content.pop("extends", None)
    _check_keys(content, f" in {path.name}", (*KEYS, "extends"))
    if parent is None:
        return content
    return merged(read_config_file(path.parent / str(parent), (*below, path)), content)


def _of_run(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Read the settings in the `config.json` of a run, so that they name the same run again.

    The settings that were asked for are enough if they still resolve to the same. Otherwise all resolved ones are
    taken.
    """
    asked = {key: value for key, value in content.items() if key not in ("hash", "resolved") and value is not None}
    settings = {key: value for key, value in asked.items() if key in KEYS}
    for key in SECTIONS:
        settings[key] = {"name": asked.get(key), **(asked.get(f"{key}_settings") or {})}
    resolved = content["resolved"]
    try:
        if build_config(settings).resolved().plain() == resolved:
            return settings
        whole = {key: dict(resolved[key]) for key in SECTIONS}
        if build_config(settings | whole).resolved().plain() == resolved:
            return settings | whole
    except (UserError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is of a run that this version cannot make again ({error})") from error
    raise UserError(
        f"{path} is of a run that this version or these files would not make again: its data, its backbone or what was "
        "published for its method have changed"
    )


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` words as nested settings. The values are read as YAML.

    >>> read_words(["seed=2", "method.tokens=16", "inference.repulsion.distance=energy", "inference.batch=8"])
    {'seed': 2, 'method': {'tokens': 16}, 'inference': {'repulsion': {'distance': 'energy'}, 'batch': 8}}
    """
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise UserError(f"'{printable(word)}': write key=value, such as seed=2 or inference.cycles=5")
        try:
            value: Any = parse_yaml(text)
        except yaml.YAMLError as error:
            raise UserError(
                f"'{printable(word)}': the value is not YAML; text with signs such as {{}}, [] or : goes in quotes, as "
                f"in \"{printable(key)}='…'\" ({' '.join(str(error).split())})"
            ) from error
        for name in reversed(path):
            value = {name: value}
        _check_keys(value)
        settings = merged(settings, value)
    return settings


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Join settings: those of `second` replace those of `first`, also within nested mappings.

    If `second` names another method, the settings that `first` has for its own method are dropped, because they belong
    to that method. The same holds for the inference.


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
            result[key] = overlaid(before, nested(after))
        else:
            result[key] = value
    return result


def build_config(settings: Mapping[str, Any]) -> RunConfig:
    """Build the configuration of nested settings. Unknown keys and values of the wrong kind are refused.

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
    return RunConfig(**values)


def _section(value: Any, key: str) -> dict[str, Any]:
    """A method or an inference as a mapping that holds its name and its settings."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        raise UserError(f"{key} is {value!r}: give its name, or a mapping with `name` and settings")
    return dict(value)


def _check_keys(settings: Mapping[str, Any], where: str = "", accepted: Sequence[str] = KEYS) -> None:
    for key, value in settings.items():
        if key not in accepted:
            raise unknown(f"setting{where}", key, accepted)
        if isinstance(value, Mapping) and key not in SECTIONS:
            raise UserError(f"setting{where} '{key}' has no settings of its own; {' and '.join(SECTIONS)} have")
