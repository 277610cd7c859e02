"""Run configurations as people write them: a YAML file, and `key=value` words that replace its values.

    extends: common.yaml          # another file, which is read first; the values below replace its values
    data: eurosat
    method: {name: maple, tokens: 4}
    inference:
      name: rebapl
      sampler: {temperature: 0.1}
      repulsion: {distance: energy}
    seed: 2

`method` and `inference` are a name, or a mapping with `name` and settings. On the command line the same keys are
written with dots: `seed=2 inference.repulsion.distance=energy`. The `config.json` of a run can be given instead of such
a file; the resulting configuration has the same hash as that run. `run_schema` describes the files to editors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rebapl.errors import UserError, printable, unknown
from rebapl.learners import METHODS
from rebapl.runs.config import RunConfig
from rebapl.sampling import PRESETS, Inference
from rebapl.settings import inlined_schema, nested, overlaid
from rebapl.yaml_files import parse_yaml, read_yaml

SECTIONS = ("method", "inference")
LISTS = ("targets", "outside", "corruptions")
"""Settings that are lists of names. Each may also be one text with commas between the names."""
KEYS = tuple(name for name in RunConfig.model_fields if not name.endswith("_settings"))


def gather_settings(file: Path | None, options: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The settings of a file, of options and of `key=value` words. Later values replace earlier ones.

    Where a later source names another method, the earlier settings of the method are dropped. The same holds for the
    inference.

    >>> gather_settings(None, {"data": "digits", "method": "maple"}, ["method.tokens=4", "method.depth=3"])
    {'data': 'digits', 'method': {'name': 'maple', 'tokens': 4, 'depth': 3}}
    >>> gather_settings(None, {"method": "maple"}, ["method=coop", "method.tokens=4"])
    {'method': {'name': 'coop', 'tokens': 4}}
    """
    settings = {} if file is None else read_config_file(file)
    for changes in (_checked(options), read_words(words)):
        settings = overlaid(settings, changes)
    return settings


def read_config_file(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read the settings in a file. They replace those of the file that it `extends` (a path relative to its folder)."""
    path = path.resolve()
    if path in below:
        raise UserError(f"{path} extends itself")
    content = read_yaml(path)
    if "resolved" in content:
        return _settings_of_run(content, path)
    parent = content.pop("extends", None)
    settings = _checked(content, f" in {path.name}", (*KEYS, "extends"))
    return (
        settings if parent is None else overlaid(read_config_file(path.parent / str(parent), (*below, path)), settings)
    )


def _settings_of_run(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Read the settings in the `config.json` of a run, so that they give the same run again.

    The settings as the person wrote them are taken if they still resolve to the same values. Otherwise all resolved
    settings of the method and the inference are taken.
    """
    settings = {key: value for key, value in content.items() if key in KEYS and value is not None}
    resolved = content["resolved"]
    try:
        for key in SECTIONS:
            settings[key] = {"name": content.get(key), **(content.get(f"{key}_settings") or {})}
        for more in ({}, {key: dict(resolved[key]) for key in SECTIONS}):
            if build_config(settings | more).resolved().settings == resolved:
                return settings | more
    except (UserError, KeyError, TypeError, AttributeError, ValueError) as error:
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
        if not equals or not all(key.strip().split(".")):
            raise UserError(f"'{printable(word)}': write key=value, such as seed=2 or inference.cycles=5")
        try:
            value: Any = parse_yaml(text)
        except yaml.YAMLError as error:
            raise UserError(
                f"'{printable(word)}': the value is not YAML; text with signs such as {{}}, [] or : goes in quotes, as "
                f"in \"{printable(key)}='…'\" ({' '.join(str(error).split())})"
            ) from error
        settings = overlaid(settings, _checked(nested({key.strip(): value})))
    return settings


def build_config(settings: Mapping[str, Any]) -> RunConfig:
    """Build the configuration of nested settings. Unknown keys and values of the wrong kind are refused.

    >>> build_config({"data": "digits", "method": {"name": "maple", "tokens": 4}}).method_settings
    {'tokens': 4}
    """
    values = _checked(settings)
    for key in SECTIONS:
        section = values.pop(key, {})
        if "name" in section:
            values[key] = section.pop("name")
        values[f"{key}_settings"] = section
    if values.get("data") is None:
        raise UserError("which data set? Give --data, or data=… (`rebapl data list` names those there are)")
    texts = {key: value for key in LISTS if isinstance(value := values.get(key), str)}
    values |= {key: [name.strip() for name in text.split(",")] for key, text in texts.items()}
    return RunConfig(**values)


def _checked(content: Mapping[str, Any], where: str = "", accepted: Sequence[str] = KEYS) -> dict[str, Any]:
    """The content, with `method` and `inference` as nested mappings of name and settings. Unknown keys are refused."""
    settings = {}
    for key, value in content.items():
        if key not in accepted:
            raise unknown(f"setting{where}", key, accepted)
        if key not in SECTIONS:
            if isinstance(value, Mapping):
                raise UserError(f"setting{where} '{key}' has no settings of its own; {' and '.join(SECTIONS)} have")
            settings[key] = value
        elif value is None or isinstance(value, str):
            settings[key] = {} if value is None else {"name": value}
        elif isinstance(value, Mapping):
            settings[key] = nested({str(name): setting for name, setting in value.items()})
        else:
            raise UserError(f"{key} is {value!r}: give its name, or a mapping with `name` and settings")
    return settings


def run_schema() -> dict[str, Any]:
    """The JSON schema of configuration files, with which editors complete and check YAML.

    It lists the settings of each method and of each kind of sampler, force or distance, including those that plugins
    add. It does not describe which values fit together (a repulsion needs several cycles, for example): this is checked
    when a configuration is resolved.

    >>> schema = run_schema()
    >>> schema["properties"]["protocol"]["enum"][:2], "maple" in schema["properties"]["method"]["anyOf"][0]["enum"]
    (['base-to-novel', 'few-shot'], True)
    """
    own = inlined_schema(RunConfig)["properties"]
    # These settings replace some values of a preset: none is required, and without `kind` the preset's kind holds.
    inference = inlined_schema(Inference, without=("required", "default"))["properties"]
    methods = [
        {"name": {"const": name}, **inlined_schema(method.config).get("properties", {})}
        for name, method in METHODS.items()
    ]
    dotted: dict[str, Any] = {rf"^({'|'.join(inference)})\.[a-z_.]+$": {}}
    keys = {key: own[key] for key in KEYS} | {
        "method": {
            "description": "What is learned.",
            "anyOf": [{"enum": list(METHODS)}, *map(_mapping, methods)],
            "default": own["method"]["default"],
        },
        "inference": {
            "description": "How it is learned; if not given, the inference that the method was published with.",
            "anyOf": [
                {"enum": list(PRESETS)},
                _mapping({"name": {"enum": list(PRESETS)}, **inference}, patternProperties=dotted),
            ],
        },
    }
    keys |= {key: {"anyOf": [keys[key], {"type": "string"}]} for key in LISTS}
    extends = {
        "type": "string",
        "description": "Another configuration file, which is read first. This file replaces its values.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rebapl run",
        "description": "A run of rebapl: data, what is learned and how.",
        **_mapping({"extends": extends, **keys}),
    }


def _mapping(properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more, "additionalProperties": False}
