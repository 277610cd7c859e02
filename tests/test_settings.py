"""Settings objects: errors in one line that name the setting, its value and what is accepted; kinds; overlays."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field, ValidationError, model_validator

from rebapl.errors import UserError
from rebapl.settings import OneOf, SettingError, Settings, leaves, nested, overlaid


class Circle(Settings):
    kind: ClassVar[str] = "circle"
    radius: float = Field(gt=0)


class Square(Settings):
    kind: ClassVar[str] = "square"
    side: float = 1.0
    rounded: bool = False


SHAPES = {"circle": Circle, "square": Square}


class Ink(Settings):
    colour: Literal["black", "blue"] = "black"
    width: int = Field(default=1, ge=1, le=9)
    dashes: Literal["auto"] | float | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _no_wide_blue(self) -> Ink:
        if self.colour == "blue" and self.width > 5:
            raise SettingError(("width",), "is too wide for blue: at most 5")
        return self


class Drawing(Settings):
    shape: Annotated[Circle | Square, OneOf("shape", SHAPES)] = Square()
    frame: Annotated[Circle | Square | None, OneOf("frame", SHAPES, optional=True)] = None
    ink: Ink = Ink()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        # a name that does not exist
        ({"shap": "circle"}, "shap: there is no such setting, did you mean 'shape'? Accepted: shape, frame, ink"),
        (
            {"ink": {"colr": "blue"}},
            "ink.colr: there is no such setting, did you mean 'colour'? Accepted: colour, width, ",
        ),
        ({"ink": {"zzz": 1}}, "ink.zzz: there is no such setting here. Accepted: colour, width, dashes, name"),
        (
            {"shape": {"kind": "circle", "raduis": 2.0}},
            "shape.raduis: there is no such setting, did you mean 'radius'?",
        ),
        # another type
        ({"ink": {"width": "wide"}}, "ink.width is 'wide': it must be a whole number"),
        ({"ink": {"width": 2.5}}, "ink.width is 2.5: it must be a whole number"),
        ({"ink": {"name": 3}}, "ink.name is 3: it must be text or null"),
        ({"shape": {"kind": "square", "side": "x"}}, "shape.side is 'x': it must be a number"),
        ({"shape": {"kind": "square", "rounded": 1}}, "shape.rounded is 1: it must be true or false"),
        ({"shape": {"kind": "square", "side": float("inf")}}, "shape.side is inf: it must be a finite number"),
        # out of range
        ({"ink": {"width": 0}}, "ink.width is 0: it must be at least 1"),
        ({"shape": {"kind": "circle", "radius": 0.0}}, "shape.radius is 0.0: it must be above 0"),
        # one of several words, or of several types
        ({"ink": {"colour": "blu"}}, "ink.colour is 'blu': did you mean 'blue'? Accepted: black, blue"),
        ({"ink": {"colour": "red"}}, "ink.colour is 'red': Accepted: black, blue"),
        ({"ink": {"dashes": "some"}}, "ink.dashes is 'some': it must be 'auto' or a number or null"),
        # kinds
        ({"shape": "cirle"}, "shape: unknown kind of shape 'cirle': did you mean 'circle'? Accepted: circle, square"),
        ({"shape": {"side": 2.0}}, "shape has no `kind`: name one of circle, square"),
        ({"shape": {"kind": {}}}, "shape: unknown kind of shape '{}': Accepted: circle, square"),
        ({"shape": {"kind": ["circle"]}}, "shape: unknown kind of shape"),
        ({"side": 3}, "side: there is no such setting, did you mean 'shape.side'? Accepted: shape, frame, ink"),
        ({"shape": 3}, "shape is 3: give a kind of shape or a mapping with `kind` and its settings"),
        ({"shape": Ink()}, "shape is Ink: it must be one of the kinds of shape"),
        ({"shape": {"kind": "circle"}}, "shape.radius is missing: it has no default"),
        (
            {"shape": {"kind": "circle", "side": 1.0}},
            "shape.side: the shape is 'circle', and this is a setting of square",
        ),
        # null
        ({"shape": None}, "shape is None: give a kind of shape or a mapping with `kind` and its settings"),
        ({"ink": {"width": None}}, "ink.width is None: it must be a whole number"),
        # together
        ({"ink": {"colour": "blue", "width": 6}}, "ink.width is too wide for blue: at most 5"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as error:
        Drawing(**values)
    assert isinstance(error.value, UserError)
    assert not isinstance(error.value, ValidationError)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_null_is_accepted_where_it_is_said_to_be() -> None:
    assert Drawing(frame=None, ink={"dashes": None, "name": None}).frame is None


def test_a_whole_number_is_a_number() -> None:
    assert Drawing(shape={"kind": "circle", "radius": 2}).shape == Circle(radius=2.0)


def test_a_kind_is_an_object_a_name_or_a_mapping() -> None:
    square = Square(side=1.0)
    for given in (square, "square", {"kind": "square"}, {"kind": "square", "side": 1.0}):
        assert Drawing(shape=given).shape == square


def test_kinds_that_are_registered_later_count() -> None:
    kinds: dict[str, type[Settings]] = {"circle": Circle}
    shape = OneOf("shape", kinds)
    with pytest.raises(SettingError, match=r"Accepted: circle$"):
        shape.read("square")
    kinds["square"] = Square
    assert shape.read("square") == Square()


def test_settings_do_not_change_and_a_change_is_checked() -> None:
    drawing = Drawing()
    with pytest.raises(ValidationError, match="frozen"):
        drawing.ink = Ink(width=3)
    assert drawing.changed(ink=Ink(width=3)).ink.width == 3
    assert drawing.ink.width == 1
    with pytest.raises(SettingError, match=r"^width is 99: it must be at most 9$"):
        drawing.ink.changed(width=99)


def test_the_plain_form_has_everything_and_goes_round() -> None:
    drawing = Drawing(shape=Circle(radius=2.5), ink={"dashes": 4.0})
    plain = drawing.plain()
    assert plain == {
        "shape": {"kind": "circle", "radius": 2.5},
        "frame": None,
        "ink": {"colour": "black", "width": 1, "dashes": 4, "name": None},
    }
    assert isinstance(plain["ink"]["dashes"], int)  # one number is written one way, however it was given
    assert Drawing(**plain) == drawing


@pytest.mark.parametrize(
    ("below", "above", "together"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}}, {"a": 1, "b": {"c": 4, "d": 3}}),
        ({"b": {"c": 2}}, {"b": None}, {"b": None}),
        ({"b": None}, {"b": {"c": 2}}, {"b": {"c": 2}}),
        # the same kind keeps its settings, another kind takes nothing of the first one's
        ({"f": {"kind": "x", "p": 1}}, {"f": {"p": 2}}, {"f": {"kind": "x", "p": 2}}),
        ({"f": {"kind": "x", "p": 1}}, {"f": {"kind": "x", "q": 2}}, {"f": {"kind": "x", "p": 1, "q": 2}}),
        ({"f": {"kind": "x", "p": 1}}, {"f": {"kind": "y", "q": 2}}, {"f": {"kind": "y", "q": 2}}),
        ({"f": {"kind": "x", "p": 1}}, {"f": "x"}, {"f": {"kind": "x", "p": 1}}),
        ({"f": {"kind": "x", "p": 1}}, {"f": "y"}, {"f": {"kind": "y"}}),
        ({"f": {"name": "x", "p": 1}}, {"f": "y"}, {"f": {"name": "y"}}),
        ({"f": {"name": "x", "p": 1}}, {"f": {"q": 2}}, {"f": {"name": "x", "p": 1, "q": 2}}),
        ({"f": {"p": 1}}, {"f": {"name": "y"}}, {"f": {"p": 1, "name": "y"}}),
        ({"g": {"f": {"kind": "x", "p": 1}, "h": 0}}, {"g": {"f": "y"}}, {"g": {"f": {"kind": "y"}, "h": 0}}),
    ],
)
def test_settings_are_laid_on_top_of_others(below: Any, above: Any, together: Any) -> None:
    before = repr((below, above))
    assert overlaid(below, above) == together
    assert repr((below, above)) == before


def test_names_with_dots_and_back() -> None:
    flat = {"repulsion.distance.kind": "mmd", "repulsion.images": 8, "batch": 4, "empty": {}}
    assert nested(flat) == {"repulsion": {"distance": {"kind": "mmd"}, "images": 8}, "batch": 4, "empty": {}}
    assert dict(leaves(nested(flat))) == flat
    assert nested({"f": "x", "f.p": 1}) == {"f": {"p": 1}}


def test_text_that_is_not_valid_unicode_is_refused_in_words() -> None:
    class Named(Settings):
        name: str | None = Field(default=None, max_length=9)

    with pytest.raises(UserError, match="the name of a setting is not valid Unicode"):
        Named(**{"\ud800": 1})
    with pytest.raises(UserError, match=r"name is .*: it must be valid Unicode text or null"):
        Named(name="\ud800")
