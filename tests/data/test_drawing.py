import numpy as np
import pytest

from rebapl.data.drawing.canvas import COLOURS, contrast, polygon_mask, shade_of, stroke_mask
from rebapl.data.drawing.letters import smooth
from rebapl.data.drawing.shapes import SHAPES, TEXTURES, outline, place, texture


def test_a_smooth_stroke_goes_through_its_points():
    points = np.array([[0.0, 0], [10, 20], [30, 10], [40, 40]])
    curve = smooth(points, steps=8)
    assert np.allclose(curve[::8], points)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_covers_the_area_of_its_polygon(shape):
    points = place(outline(shape), (32, 32), 24)
    x, y = points.T
    area = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
    assert polygon_mask(points).sum() == pytest.approx(area, rel=0.04)


def test_a_stroke_covers_its_length_times_its_width_and_two_half_discs():
    assert stroke_mask([np.array([[10.0, 32], [50, 32]])], 6).sum() == pytest.approx(40 * 6 + np.pi * 9, rel=0.05)


@pytest.mark.parametrize("name", TEXTURES)
def test_a_texture_holds_both_tones(name):
    share = texture(np.random.default_rng(3), name, 9.0, (32, 32), 0.4)
    assert share.shape == (64, 64)
    assert share.min() >= 0
    assert share.max() <= 1
    assert (share.std() > 0.1) == (name != "solid")


def test_a_shade_stays_nearest_to_its_own_name():
    rng = np.random.default_rng(4)
    plain = {name: np.array(value) / 255 for name, value in COLOURS.items()}
    for name in COLOURS:
        shades = [shade_of(rng, name) for _ in range(50)]
        right = [min(plain, key=lambda other: contrast(shade, plain[other])) == name for shade in shades]
        assert np.mean(right) > 0.9
