"""The JSON schema of run configuration files, with which editors complete and check YAML.

It says which settings each method and each kind of sampler, force or distance has, also of those that plugins bring. It
does not say which values go together (a repulsion needs several cycles, for example): that is checked when a
configuration is resolved.
"""

from __future__ import annotations

from typing import Any

from rebapl.learners import METHODS
from rebapl.runs.config import RunConfig
from rebapl.sampling import PRESETS, Inference
from rebapl.settings import inlined_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def run_schema() -> dict[str, Any]:
    """The schema, as JSON has it.

    >>> schema = run_schema()
    >>> schema["properties"]["protocol"]["enum"][:2], "maple" in schema["properties"]["method"]["anyOf"][0]["enum"]
    (['base-to-novel', 'few-shot'], True)
    """
    own = inlined_schema(RunConfig)["properties"]
    keys = {key: value for key, value in own.items() if not key.endswith("_settings")}
    keys["method"] = _method(own["method"]["default"])
    keys["inference"] = _inference()
    keys["targets"]["anyOf"].append({"type": "string"})  # names with commas
    extends = {"type": "string", "description": "Another configuration file, whose settings come first."}
    return {
        "$schema": DIALECT,
        "title": "rebapl run",
        "description": "A run of rebapl: data, what is learned and how.",
        "type": "object",
        "properties": {"extends": extends, **keys},
        "additionalProperties": False,
    }


def _method(default: str) -> dict[str, Any]:
    """A method's name, or a mapping with its settings. The name may be missing there if an extended file gives it."""
    mappings = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, **inlined_schema(method.config).get("properties", {})},
            "additionalProperties": False,
        }
        for name, method in METHODS.items()
    ]
    return {"description": "What is learned.", "anyOf": [{"enum": list(METHODS)}, *mappings], "default": default}


def _inference() -> dict[str, Any]:
    """A preset's name, or a mapping of the name and settings that replace its values. Any of them may be left out."""
    settings = _partial(inlined_schema(Inference))
    names = list(PRESETS)
    mapping = {
        "type": "object",
        "properties": {"name": {"enum": names}, **settings["properties"]},
        "patternProperties": {rf"^({'|'.join(settings['properties'])})\.[a-z_.]+$": {}},
        "additionalProperties": False,
    }
    described = "How it is learned; as the method was published if not given."
    return {"description": described, "anyOf": [{"enum": names}, mapping]}


def _partial(schema: Any) -> Any:
    """The schema of settings that replace some values of others, so that none of them is required.

    A mapping without `kind` keeps the kind that the preset has. So settings of any kind are accepted in it.
    """
    if isinstance(schema, list):
        return [_partial(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    loose = {key: _partial(part) for key, part in schema.items() if key not in ("required", "default", "properties")}
    if "properties" in schema:  # whatever their names are
        loose["properties"] = {name: _partial(part) for name, part in schema["properties"].items()}
    if "oneOf" in loose:  # several kinds have settings of the same name, so more than one may match
        loose["anyOf"] = loose.pop("oneOf")
    return loose
