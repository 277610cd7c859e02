"""Settings as objects, one class for each algorithm. They are checked when they are built, and an error is one line.

A settings class is a frozen pydantic model. It refuses unknown names, values of a wrong type and values out of range,
with a `UserError` that says which setting it is, what was given and what is accepted. A field that may hold one of
several kinds (of sampler, force, distance …) is annotated with `OneOf`. Its value is a mapping whose `kind` says to
which class the other values belong, or only the name of the kind.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from rebapl.errors import UserError, printable, unknown

Model = TypeVar("Model", bound="Settings")


class SettingError(UserError):
    """A setting that is refused: its `path` inside the object that is being built, and what is `wrong` with it."""

    def __init__(self, path: tuple[str, ...], wrong: str) -> None:
        super().__init__(f"{printable('.'.join(path))}{'' if wrong.startswith(':') or not path else ' '}{wrong}")
        self.path, self.wrong = path, wrong

    def below(self, *outer: str) -> SettingError:
        """The same error, when the object is itself the setting `outer` of another object."""
        return SettingError((*outer, *self.path), self.wrong)


def refuse(setting: str, wrong: str) -> NoReturn:
    """Refuse a setting, given by its dotted name, because it does not go with other settings.

    >>> refuse("restart.kick", "does nothing here")
    Traceback (most recent call last):
    rebapl.settings.SettingError: restart.kick does nothing here
    """
    raise SettingError(tuple(setting.split(".")), wrong)


class Settings(BaseModel):
    """The base of all settings.

    >>> class Step(Settings):
    ...     lr: float = 0.1
    >>> Step(lr="fast")
    Traceback (most recent call last):
    rebapl.settings.SettingError: lr is 'fast': it must be a number
    >>> Step(lrr=0.1)
    Traceback (most recent call last):
    rebapl.settings.SettingError: lrr: there is no such setting, did you mean 'lr'? Accepted: lr
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)

    kind: ClassVar[str]
    """The name of a class among the kinds of a `OneOf`."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _in_words(error, type(self)) from None

    def changed(self: Model, **changes: Any) -> Model:
        """The same settings with some changed, checked again."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**own, **(self.model_extra or {}), **changes})

    def plain(self) -> dict[str, Any]:
        """Every setting as plain values for JSON, nested, with the name of each kind under `kind`."""
        kind = {"kind": self.kind} if hasattr(self, "kind") else {}
        return {**kind, **{name: _plain(getattr(self, name)) for name in type(self).model_fields}}


class Record(Settings):
    """A part of a results file. Known values are checked, and unknown ones are kept unchanged."""

    model_config = ConfigDict(extra="allow")

    def as_json(self) -> dict[str, Any]:
        """The values as plain values for JSON, without those that are None or have their default."""
        return self.model_dump(exclude_none=True, exclude_defaults=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.plain()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # so that 1 and 1.0 are stored alike
    return value


class OneOf:
    """Marks a field that holds settings of one of several kinds, as in `Annotated[Settings, OneOf("force", FORCES)]`.

    `what` is the word for such settings in errors. `kinds` maps names to classes; classes that are added later count
    too.
    """

    def __init__(self, what: str, kinds: Mapping[str, type[Any]], optional: bool = False) -> None:
        self.what, self.kinds, self.optional = what, kinds, optional

    def read(self, value: Any) -> Any:
        """The settings object for a mapping or for the name of a kind. A settings object is returned as it is."""
        kinds = self.kinds
        if value is None and self.optional:
            return None
        if isinstance(value, Settings):
            if type(value) not in kinds.values():
                raise SettingError((), f"is {type(value).__name__}: it must be one of the kinds of {self.what}")
            return value
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, Mapping):
            raise SettingError(
                (), f"is {value!r}: give a kind of {self.what} or a mapping with `kind` and its settings"
            )
        values = dict(value)
        name = values.pop("kind", None)
        if name is None:
            raise SettingError((), f"has no `kind`: name one of {', '.join(kinds)}")
        if not isinstance(name, str) or name not in kinds:
            raise SettingError((), f": {unknown(f'kind of {self.what}', str(name), kinds)}")
        try:
            return kinds[name](**values)
        except SettingError as error:
            setting = error.path[0] if len(error.path) == 1 else ""
            others = [other for other, kind in kinds.items() if setting in kind.model_fields]
            if setting in kinds[name].model_fields or not others:
                raise
            wrong = f": the {self.what} is '{name}', and this is a setting of {' and '.join(others)}"
            raise SettingError(error.path, wrong) from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        names = [{"const": name} for name in self.kinds]
        mappings = [_tagged(name, kind) for name, kind in self.kinds.items()]
        return {"anyOf": [*names, *mappings, *([{"type": "null"}] if self.optional else [])]}


def _tagged(name: str, kind: type[Settings]) -> dict[str, Any]:
    schema = inlined_schema(kind)
    schema["properties"] = {"kind": {"const": name}, **schema.get("properties", {})}
    schema["required"] = ["kind", *schema.get("required", [])]
    return schema


def inlined_schema(kind: type[Settings], without: Collection[str] = ()) -> dict[str, Any]:
    """The JSON schema of a settings class, without references and without the keywords in `without`."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return inlined(definitions[part["$ref"].rpartition("/")[2]])
        return {keyword: inlined(value) for keyword, value in part.items() if keyword not in without}

    return inlined(schema)


TAGS = ("kind", "name")
"""The keys that name the algorithm, method or preset to which the other settings of a mapping belong."""


def overlaid(below: Any, above: Any) -> Any:
    """Join settings: those of `above` replace those of `below`, also within nested mappings.

    If `above` has another `kind` or `name` than `below`, nothing of `below` is kept, because those settings belong to
    the other algorithm.

    >>> overlaid({"kind": "fading", "fraction": 1.0}, {"fraction": 0.5})
    {'kind': 'fading', 'fraction': 0.5}
    >>> overlaid({"kind": "fading", "fraction": 1.0}, {"kind": "absolute"}), overlaid({"kind": "mmd"}, "energy")
    ({'kind': 'absolute'}, {'kind': 'energy'})
    """
    if not isinstance(below, Mapping):
        return above
    tag = next((tag for tag in TAGS if tag in below), None)
    if isinstance(above, str) and tag is not None:
        above = {tag: above}
    if not isinstance(above, Mapping):
        return above
    if tag in above and above[tag] != below[tag]:
        return dict(above)
    return {**below, **{key: overlaid(below.get(key), value) for key, value in above.items()}}


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted names into nested mappings.

    >>> nested({"repulsion.distance": "energy", "repulsion.images": 8, "batch": 4})
    {'repulsion': {'distance': 'energy', 'images': 8}, 'batch': 4}
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        first, *others = name.split(".")
        for part in reversed(others):
            value = {part: value}
        tree[first] = overlaid(tree.get(first), value)
    return tree


def leaves(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """All values of nested mappings, with their dotted names. An empty mapping counts as a value.

    >>> dict(leaves({"repulsion": {"distance": {"kind": "mmd"}}, "batch": 4}))
    {'repulsion.distance.kind': 'mmd', 'batch': 4}
    """
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


SHOWN = 80
"""How many characters of a wrong value an error shows, at most."""

_MUST = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_unicode": "valid Unicode text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of settings",
    "none_required": "null",
    "too_short": "at least {min_length} values",
    "too_long": "at most {max_length} values",
    "string_too_short": "at least {min_length} long",
    "string_too_long": "at most {max_length} long",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
}


def _in_words(error: ValidationError, model: type[Settings]) -> SettingError:
    """The first problem, in one line. An unknown name comes before a missing one, which is often the same misspelt."""
    errors = error.errors()
    first = next((problem for problem in errors if problem["type"] == "extra_forbidden"), errors[0])
    path, kind, context = tuple(map(str, first["loc"])), first["type"], first.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, SettingError):
        return cause.below(*path)
    if kind == "value_error":
        return SettingError(path, f"{': ' if path else ''}{cause}")
    if kind == "extra_forbidden":
        return SettingError(path, _unknown_setting(path[-1], model))
    if kind == "missing":
        return SettingError(path, "is missing: it has no default")
    if not path:
        return SettingError((), "the name of a setting is not valid Unicode")
    of_setting = [problem for problem in errors if problem["loc"][:1] == first["loc"][:1]]  # one per member of a union
    null = " or null" if type(None) in _union_members(model, path[0]) else ""
    if len(of_setting) == 1 and kind == "literal_error":
        near = difflib.get_close_matches(str(first["input"]), accepted := _accepted(context), n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        return SettingError(path, f"is {first['input']!r}: {hint}Accepted: {', '.join(accepted)}{null}")
    must = " or ".join(dict.fromkeys(_must(problem) for problem in of_setting))
    value = repr(first["input"])
    shown = value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
    return SettingError(path[:1] if len(of_setting) > 1 else path, f"is {shown}: it must be {must}{null}")


def _must(problem: Any) -> str:
    """What the value must be instead, from one problem that pydantic reports."""
    if problem["type"] == "literal_error":
        return " or ".join(f"'{word}'" for word in _accepted(problem["ctx"]))
    return _MUST.get(problem["type"], problem["msg"]).format(**problem.get("ctx", {}))


def _accepted(context: Mapping[str, Any]) -> list[str]:
    return [word.strip(" '") for word in context["expected"].replace(" or ", ",").split(",")]


def _union_members(model: type[Settings], name: str) -> tuple[Any, ...]:
    annotation = model.model_fields[name].annotation if name in model.model_fields else None
    return getattr(annotation, "__args__", ())


def _unknown_setting(name: str, model: type[Settings]) -> str:
    accepted = list(model.model_fields)
    deeper = [path for path in _paths(model) if path.endswith(f".{name}")]
    near = sorted(deeper, key=lambda path: path.count("."))[:1] or difflib.get_close_matches(name, accepted, n=1)
    hint = f", did you mean '{near[0]}'?" if near else " here."
    return f": there is no such setting{hint} Accepted: {', '.join(accepted) or 'none'}"


def _paths(model: type[Settings], before: str = "") -> Iterator[str]:
    """The dotted names of all settings, also of those inside others."""
    for name, field in model.model_fields.items():
        yield f"{before}{name}"
        kinds = [kind for mark in field.metadata if isinstance(mark, OneOf) for kind in mark.kinds.values()]
        for type_ in {*kinds, field.annotation, *getattr(field.annotation, "__args__", ())}:
            if isinstance(type_, type) and issubclass(type_, Settings):
                yield from _paths(type_, f"{before}{name}.")
