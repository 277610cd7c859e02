"""Corruptions: drawn from a seed, growing with severity, and each against a second plain formula where there is one."""

import colorsys
import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from rebapl.data.corruptions import CORRUPTIONS, SEVERITIES, Corruption, corrupted, named_corruptions
from rebapl.data.embedded import EMBEDDED, NOISE_IMAGES, noise_images
from rebapl.errors import UserError

PAPER = """gaussian-noise shot-noise impulse-noise defocus-blur glass-blur motion-blur zoom-blur snow frost fog
brightness contrast elastic-transform pixelate jpeg-compression"""

FALLS = {"elastic-transform": [2], "frost": [1, 3], "glass-blur": [], "snow": [2]}
"""Severities after which the published settings change in kind, so that the distance to the clean image may fall."""


def picture(side: int = 64) -> np.ndarray:
    """A picture of medium contrast with smooth parts and edges, uint8 (side, side, 3)."""
    drawn = EMBEDDED["shapes"]()
    image = drawn.load(drawn.test[0].key).resize((side, side), Image.Resampling.BICUBIC)
    return (0.25 * 255 + 0.5 * np.asarray(image)).round().astype(np.uint8)


def at(name: str, severity: int, pixels: np.ndarray, seed: int = 0) -> np.ndarray:
    return corrupted(pixels, name, severity, np.random.default_rng(seed))


def test_the_fifteen_of_the_paper_at_five_severities() -> None:
    assert list(CORRUPTIONS) == PAPER.split()
    assert all(len(settings) == len(SEVERITIES) for _, settings in CORRUPTIONS.values())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_draws_depend_on_seed_and_key_alone(name: str) -> None:
    views = torch.from_numpy(np.stack([picture().transpose(2, 0, 1)] * 3))
    corruption = Corruption(name, 3)
    together = corruption(views, ["a", "b", "c"])
    assert together.shape == views.shape
    assert together.dtype == torch.uint8
    assert torch.equal(corruption(views[:1], ["b"])[0], together[1])
    random = not torch.equal(together[0], together[1])
    assert random == (not torch.equal(corruption(views, ["a", "b", "c"], seed=1), together))
    drawn = ("noise", "glass", "motion", "snow", "frost", "fog", "elastic")
    assert random == any(word in name for word in drawn)


@pytest.mark.parametrize("side", [64, 224])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_higher_severity_is_further_from_the_clean_image(name: str, side: int) -> None:
    pixels = picture(side)
    distances = [
        np.mean([np.square(at(name, severity, pixels, seed) - 1.0 * pixels).mean() for seed in range(3)])
        for severity in SEVERITIES
    ]
    assert min(distances) > 0
    if name == "glass-blur" and side < 100:  # its displacements are whole pixels: the severities hardly differ
        return
    for severity in SEVERITIES[:-1]:
        if severity not in FALLS.get(name, []):
            assert distances[severity] > distances[severity - 1], (name, severity, distances)


def test_noise_has_the_published_variance() -> None:
    """Fails by chance about once in 10⁵ times, if the seed were another one: bounds of 4.5 standard errors."""
    grey = np.full((224, 224, 3), 128, dtype=np.uint8)
    value, values = 128 / 255, grey.size
    spread = (at("gaussian-noise", 1, grey) / 255 - value).std()
    assert spread == pytest.approx(0.08, abs=4.5 * 0.08 / np.sqrt(2 * values))
    variance = (at("shot-noise", 1, grey) / 255).var()
    # rounding to bytes adds 1/(12·255²); the variance of a sample variance is about 2σ⁴/n
    assert variance == pytest.approx(value / 60, abs=4.5 * (value / 60) * np.sqrt(2 / values) + 1e-4)
    hit = at("impulse-noise", 5, grey)
    error = 4.5 * np.sqrt(0.27 * 0.73 / values)
    assert (hit != 128).mean() == pytest.approx(0.27, abs=error)
    assert (hit == 0).mean() == pytest.approx(0.135, abs=error)
    assert (hit == 255).mean() == pytest.approx(0.135, abs=error)


def test_defocus_is_the_mean_over_a_disk() -> None:
    point = np.zeros((224, 224, 3), dtype=np.uint8)
    point[112, 112] = 255
    rows, columns = np.mgrid[-112:112, -112:112]
    disk = (rows**2 + columns**2 <= 10**2).astype(float)
    disk = ndimage.gaussian_filter(disk / disk.sum(), 0.5)
    found = CORRUPTIONS["defocus-blur"][0](point / 255, 1.0, None, 10, 0.5)
    assert found[..., 0].sum() == pytest.approx(1)
    assert abs(found[..., 0] - disk).max() < 0.4 * disk.max()  # on the edge, where pixels are partly covered
    assert abs(found[..., 0] - disk).sum() < 0.06


def test_motion_blur_is_half_a_gaussian_along_a_line() -> None:
    point = np.zeros((99, 99, 3))
    point[49, 49] = 1
    found = CORRUPTIONS["motion-blur"][0](point, 1.0, np.random.default_rng(0), 10, 3)
    weights = np.exp(-(np.arange(21) ** 2) / 18)
    turn = np.deg2rad(np.random.default_rng(0).uniform(-45, 45))
    expected = np.zeros((99, 99))
    for step, weight in enumerate(weights / weights.sum()):
        expected[49 - round(step * np.sin(turn)), 49 - round(step * np.cos(turn))] += weight
    assert found[..., 1] == pytest.approx(expected)


def test_zoom_blur_averages_scipys_zooms() -> None:
    pixels = ndimage.gaussian_filter(picture(224) / 255, (3, 3, 0))
    found = CORRUPTIONS["zoom-blur"][0](pixels, 1.0, None, 1.11, 0.01)
    rows = np.arange(224) - 111.5
    zooms = [pixels]
    for factor in 1 + 0.01 * np.arange(12):  # 1.11 comes along, since its float is a little below
        grid = np.meshgrid(111.5 + rows / factor, 111.5 + rows / factor, indexing="ij")
        zooms.append(np.stack([ndimage.map_coordinates(pixels[..., c], grid, order=1) for c in range(3)], -1))
    assert found[2:-2, 2:-2] == pytest.approx(np.mean(zooms, 0)[2:-2, 2:-2], abs=2e-3)


def test_glass_only_moves_pixels_a_little_between_its_blurs() -> None:
    ramp = np.stack([*np.mgrid[:224, :224], np.zeros((224, 224))], -1) / 224
    found = CORRUPTIONS["glass-blur"][0](ramp, 1.0, np.random.default_rng(0), 1e-6, 2, 1)  # without the blur
    assert np.array_equal(np.unique(found.reshape(-1, 3), axis=0), np.unique(ramp.reshape(-1, 3), axis=0))
    moved = abs(found - ramp)[..., :2] * 224
    assert 1 < np.percentile(moved, 99) < 12  # a pixel may be passed on, by up to 2 at a time
    assert (moved.max(-1) > 0).mean() > 0.8


def test_brightness_is_that_of_hsv() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(5, 5, 3), dtype=np.uint8)
    pixels[0, 0] = 0
    found = at("brightness", 3, pixels)
    for here in np.ndindex(5, 5):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[here] / 255))
        expected = 255 * np.array(colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.3)))
        assert found[here] == pytest.approx(expected, abs=0.51)


def test_contrast_jpeg_and_pixels() -> None:
    pixels = picture()
    means = pixels.mean((0, 1))
    assert at("contrast", 2, pixels) == pytest.approx((pixels - means) * 0.3 + means, abs=0.51)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=10)
    assert np.array_equal(at("jpeg-compression", 4, pixels), np.asarray(Image.open(file)))
    blocks = pixels.reshape(16, 4, 16, 4, 3).mean((1, 3))
    assert at("pixelate", 5, pixels)[::4, ::4] == pytest.approx(blocks, abs=1)


def plasma(side: int, decay: float, draws: np.random.Generator) -> np.ndarray:
    """Diamond-square on a torus, point by point: each new point is the mean of the four around it, and noise.

    The authors' noise is w·uniform(−w, w), and w begins with 100 and is divided by `decay` at each level.
    """
    n = 1
    while n < side:
        n *= 2
    cloud, step, wibble = np.zeros((n, n)), n, 100.0
    while step > 1:
        half, corners = step // 2, range(0, n, step)
        around = {  # the places of the new points behind a corner, and the steps from there to the four points around
            (half, half): [(-half, -half), (-half, half), (half, -half), (half, half)],
            (0, half): [(-half, 0), (half, 0), (0, -half), (0, half)],
            (half, 0): [(-half, 0), (half, 0), (0, -half), (0, half)],
        }
        for (down, right), steps in around.items():
            noise = iter(draws.uniform(-1, 1, len(corners) ** 2))
            for row, column in itertools.product(corners, corners):
                place = row + down, column + right
                known = [cloud[(place[0] + a) % n, (place[1] + b) % n] for a, b in steps]
                cloud[place] = np.mean(known) + wibble**2 * next(noise)
        step, wibble = half, wibble / decay
    return (cloud - cloud.min()) / (cloud.max() - cloud.min())


FOG = [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)]
"""As printed in the authors' code: the strength of the fog, and how fast its noise decays."""


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_is_diamond_square_noise_by_a_second_implementation(severity: int) -> None:
    pixels = picture(48)  # the cloud has 64 px, of which a part is taken
    strength, decay = FOG[severity - 1]
    image = pixels / 255
    foggy = image + strength * plasma(48, decay, np.random.default_rng(5))[:48, :48, None]
    expected = 255 * np.clip(foggy * image.max() / (image.max() + strength), 0, 1)
    assert at("fog", severity, pixels, seed=5) == pytest.approx(expected, abs=0.51)


def test_fog_is_a_cloud_in_which_neighbours_are_alike() -> None:
    white = np.ones((64, 64, 3))
    fog = CORRUPTIONS["fog"][0](white, 1.0, np.random.default_rng(0), 1.5, 2)[..., 0]
    assert (fog.min(), fog.max()) == pytest.approx((1 / 2.5, 1))  # (1 + 1.5·p)/2.5, p from 0 to 1
    assert stats.pearsonr(fog[1:].ravel(), fog[:-1].ravel()).statistic > 0.95


SNOW = [
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
]
"""As printed in the authors' code: mean, std and zoom of the noise, threshold, radius and std of the blur, weight."""


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_by_a_second_formula(severity: int) -> None:
    """SciPy's interpolation zooms the noise and takes the points of the blur, and Pillow computes the grey values.

    Near the edges, the two libraries interpolate differently. Values are rounded to bytes twice.
    """
    mean, std, zoom, threshold, radius, blur, weight = SNOW[severity - 1]
    pixels, draws = picture(224), np.random.default_rng(7)
    rows, columns = np.mgrid[:224, :224]
    noise = draws.normal(mean, std, (224, 224))
    centred = [111.5 + (each - 111.5) / zoom for each in (rows, columns)]
    flakes = ndimage.map_coordinates(noise, centred, order=1, mode="nearest")
    flakes = np.where(flakes < threshold, 0, np.minimum(flakes, 1))
    turn = np.deg2rad(draws.uniform(-135, -45))
    steps = np.arange(2 * radius + 1)
    weights = stats.norm.pdf(steps, scale=blur)
    falling = sum(
        share * ndimage.map_coordinates(flakes, [rows + down, columns + right], order=0, mode="nearest")
        for share, down, right in zip(
            weights / weights.sum(), np.rint(steps * np.sin(turn)), np.rint(steps * np.cos(turn)), strict=True
        )
    )
    grey = np.asarray(Image.fromarray(pixels).convert("L"))[..., None] / 255
    whiter = np.maximum(pixels / 255, 1.5 * grey + 0.5)
    expected = weight * pixels / 255 + (1 - weight) * whiter + (falling + np.rot90(falling, 2))[..., None]
    found = at("snow", severity, pixels, seed=7)
    assert found[2:-2, 2:-2] == pytest.approx(255 * expected.clip(0, 1)[2:-2, 2:-2], abs=1.1)
    assert 0.005 < falling.mean() < 0.5  # there are flakes


ELASTIC = [(488, 170.8, 24.4), (488, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88)]
"""As in the authors' code, where they are multiples of 244: strength and std of the ripple, movement of the corners."""


def between_pixels(values: np.ndarray, places: np.ndarray, edge: str) -> np.ndarray:
    """Linear interpolation of `values` (H, W) at `places` (2, H, W), with NumPy's extension beyond the `edge`."""
    wide = np.pad(values, (reach := min(values.shape) - 1), mode=edge)  # type: ignore[call-overload]
    low = np.floor(places).astype(int)
    down, right = places - low
    row, column = low + reach
    upper = wide[row, column] * (1 - right) + wide[row, column + 1] * right
    lower = wide[row + 1, column] * (1 - right) + wide[row + 1, column + 1] * right
    return upper * (1 - down) + lower * down


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_by_a_second_formula(severity: int, moved: bool) -> None:
    """The ripple alone, and after the affine map: SciPy's filter in two dimensions, and interpolation by NumPy."""
    strength, std, corner = ELASTIC[severity - 1]
    image, draws = picture(224) / 255, np.random.default_rng(11)
    moves = draws.uniform(-1, 1, (3, 2)) * (corner if moved else 0)
    noise = draws.uniform(-1, 1, (2, 224, 224))
    here = np.mgrid[:224, :224].astype(float)
    centre, reach = 112, 74
    corners = np.array([(centre + reach, centre + reach), (centre + reach, centre - reach), (centre - reach,) * 2])
    matrix, *_ = np.linalg.lstsq(np.c_[corners, np.ones(3)], corners + moves)  # from a pixel to where it goes
    source = np.einsum("ij,jhw->ihw", np.linalg.inv(matrix[:2].T), here - matrix[2][:, None, None])
    shift = strength * np.stack([ndimage.gaussian_filter(each, std, mode="reflect", truncate=3) for each in noise])
    channel = between_pixels(image[..., 1], source, "reflect")
    expected = between_pixels(channel, here + shift, "symmetric")
    settings = strength, std, corner if moved else 0.0
    found = CORRUPTIONS["elastic-transform"][0](image, 1.0, np.random.default_rng(11), *settings)[..., 1]
    assert found == pytest.approx(expected, abs=1e-6)
    if moved:
        assert np.array_equal(at("elastic-transform", severity, picture(224), seed=11)[..., 1], (255 * found).round())
    assert abs(shift).mean() > 0.1


def test_elastic_moves_three_corners_as_far_as_it_says() -> None:
    spots = np.zeros((224, 224, 3))
    spots[:] = np.mgrid[:224, :224].transpose(1, 2, 0).sum(-1, keepdims=True) / 448  # a ramp: values tell displacements
    moves = np.random.default_rng(3).uniform(-1, 1, (3, 2)) * 24.4
    found = CORRUPTIONS["elastic-transform"][0](spots, 1.0, np.random.default_rng(3), 0.0, 1.0, 24.4)[..., 0]
    for corner, move in zip(112 + 74 * np.array([(1, 1), (1, -1), (-1, -1)]), moves, strict=True):
        seen = ndimage.map_coordinates(found, (corner + move)[:, None], order=1)
        assert seen == pytest.approx(corner.sum() / 448, abs=1e-3)


def test_names() -> None:
    assert named_corruptions(["fog", "fog@3"]) == [Corruption("fog", each) for each in SEVERITIES]
    with pytest.raises(UserError, match="did you mean 'fog'"):
        named_corruptions(["fogg"])
    with pytest.raises(UserError, match="severity '6' of corruption fog: a severity is a whole number from 1 to 5"):
        named_corruptions(["fog@6"])


def test_noise_images_are_noise_at_six_scales() -> None:
    noise = noise_images()
    assert len(noise.test) == NOISE_IMAGES
    first, again = (np.asarray(noise.load(noise.test[2].key)) for _ in range(2))
    assert np.array_equal(first, again)
    squares = first[::8, ::8]  # 28 squares of 8 px a side
    assert np.array_equal(first, squares.repeat(8, 0).repeat(8, 1))
    assert stats.kstest(squares.ravel() / 256, "uniform").pvalue > 1e-4  # fails once in 10⁴ times, if the key changes
