"""The captioned pictures that `mini` is trained on: pictures show what captions say."""

import numpy as np
import pytest

from captioned import Facts, draw_example
from captioned.glyphs import DIGITS, FACES, SMALL_LETTERS, draw_glyph, typeface
from captioned.shapes import ALL_OUTLINES, ALL_TEXTURES, HOLES, mask_with_hole
from rebapl.data.drawing.canvas import COLOURS, polygon_mask
from rebapl.data.drawing.letters import CAPITALS, strokes_of
from rebapl.data.drawing.shapes import place, textured


@pytest.fixture(scope="module")
def examples():
    rng = np.random.default_rng(0)
    return [draw_example(rng) for _ in range(600)]


def test_an_example_is_a_function_of_the_seed():
    first, again, other = (draw_example(np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert np.array_equal(first.image, again.image)
    assert first[1:] == again[1:]
    assert not np.array_equal(first.image, other.image)


def test_images_are_small_rgb_and_show_something(examples):
    for example in examples:
        assert example.image.shape == (64, 64, 3)
        assert example.image.dtype == np.uint8
        assert np.ptp(example.image.reshape(-1, 3).astype(int), axis=0).max() > 40, example.caption


def test_a_caption_says_only_what_is_seen(examples):
    for example in examples:
        for fact, said in zip(example.seen, example.said, strict=True):
            assert said in ("", fact), example.caption


def test_what_is_said_stands_in_the_caption(examples):
    alike = [example for example in examples if example.said.kind == "shapes"]
    assert len(alike) > 100
    for example in alike:
        for fact in (example.said.thing, example.said.colour, example.said.size, example.said.position):
            assert fact in example.caption
        for colour in COLOURS:
            if f" {colour} " in f" {example.caption} ":
                assert colour in (example.said.colour, example.said.background)


def test_captions_vary_in_length_and_leave_things_out(examples):
    lengths = [len(example.caption.split()) for example in examples]
    assert min(lengths) == 1
    assert max(lengths) >= 25
    assert any(example.said.thing == "" for example in examples)
    assert {example.said.colour for example in examples} >= {"", *COLOURS}


def test_every_kind_of_fact_occurs(examples):
    seen = [example.seen for example in examples]
    assert {facts.kind for facts in seen} == {"shapes", "pair", "digit", "letter"}
    assert {facts.thing for facts in seen if facts.kind == "shapes"} == set(ALL_OUTLINES)
    assert {facts.texture for facts in seen if facts.kind == "shapes"} == set(ALL_TEXTURES)
    assert {facts.amount for facts in seen if facts.kind == "shapes"} == {"one", "two", "three", "four"}
    assert len({facts.thing for facts in seen if facts.kind == "digit"}) == 10
    assert len({facts.thing for facts in seen if facts.kind == "letter"}) == 26


def test_the_name_is_shared_by_pictures_of_the_same_thing(examples):
    example = examples[0]
    assert example._replace(image=examples[1].image, caption="").name == example.name
    assert example._replace(seen=Facts("digit", "nothing")).name != example.name


def area(points):
    x, y = points.T
    return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2


@pytest.mark.parametrize("shape", ALL_OUTLINES)
def test_a_shape_covers_the_area_of_its_polygon(shape):
    points = place(ALL_OUTLINES[shape], (32, 32), 24)
    assert polygon_mask(points).sum() == pytest.approx(area(points), rel=0.04)


def test_a_ring_does_not_cover_its_hole():
    outer, inner = (place(points, (32, 32), 24) for points in (ALL_OUTLINES["ring"], HOLES["ring"]))
    assert mask_with_hole(outer, inner).sum() == pytest.approx(area(outer) - area(inner), rel=0.04)


@pytest.mark.parametrize("name", ALL_TEXTURES)
def test_a_texture_holds_both_tones(name):
    share = textured(np.random.default_rng(3), ALL_TEXTURES[name], 9.0, (32, 32), 0.4)
    assert share.shape == (64, 64)
    assert share.min() >= 0
    assert share.max() <= 1
    assert (share.std() > 0.1) == (name != "solid")


@pytest.mark.parametrize("glyph", DIGITS + CAPITALS + SMALL_LETTERS)
def test_every_glyph_can_be_written_and_printed(glyph):
    rng = np.random.default_rng(2)
    seen = {draw_glyph(rng, glyph).seen for _ in range(30)}
    assert {facts.texture for facts in seen} == {"written", "printed"}
    assert len({facts.thing for facts in seen}) == 1
    points = np.concatenate(strokes_of(rng, glyph, 0))
    assert points.min() > -10
    assert points.max() < 145


def test_every_face_draws_different_letters():
    for face in FACES:
        font = typeface(face, 40)
        pictures = {bytes(font.getmask(glyph)) for glyph in DIGITS + CAPITALS + SMALL_LETTERS}
        assert len(pictures) == 62, face
