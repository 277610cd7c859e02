import numpy as np
import pytest

from rebapl.data.drawing.canvas import COLOURS, contrast, shade_of, stroke_mask
from rebapl.data.drawing.letters import smooth


def test_a_smooth_stroke_goes_through_its_points():
    points = np.array([[0.0, 0], [10, 20], [30, 10], [40, 40]])
    curve = smooth(points, steps=8)
    assert np.allclose(curve[::8], points)


def test_a_stroke_covers_its_length_times_its_width_and_two_half_discs():
    assert stroke_mask([np.array([[10.0, 32], [50, 32]])], 6).sum() == pytest.approx(40 * 6 + np.pi * 9, rel=0.05)


def test_a_shade_stays_nearest_to_its_own_name():
    rng = np.random.default_rng(4)
    plain = {name: np.array(value) / 255 for name, value in COLOURS.items()}
    for name in COLOURS:
        shades = [shade_of(rng, name) for _ in range(50)]
        right = [min(plain, key=lambda other: contrast(shade, plain[other])) == name for shade in shades]
        assert np.mean(right) > 0.9
