"""YAML as people write it: `1e-3` is a number, only true and false are booleans, a key stands once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rebapl.errors import UserError
from rebapl.files import refuse_special

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
