"""Every distance, value and gradient, against other libraries, brute force and finite differences."""

import math
from collections.abc import Iterator

import numpy as np
import ot
import pytest
import torch
from scipy.spatial.distance import cdist, jensenshannon
from scipy.special import softmax
from scipy.stats import energy_distance, entropy, wasserstein_distance
from torch import Tensor

from rebapl.errors import UserError
from rebapl.repulsion import (
    DISTANCES,
    Distance,
    Fading,
    Repulsion,
    Stored,
    register_distance,
    sinkhorn,
    squared_distance,
)
from rebapl.repulsion.distances import median_squared_distance, squared_distances
from rebapl.repulsion.memory import Memory
from rebapl.repulsion.wasserstein import Sliced, with_directions

ALL = list(DISTANCES)


def stream() -> torch.Generator:
    """The generator from which a distance draws when it prepares a stored cloud."""
    return torch.Generator().manual_seed(0)


ROW_BY_ROW = ("paired", "kullback-leibler", "jensen-shannon")
BETWEEN_DISTRIBUTIONS = [name for name in ALL if name not in ROW_BY_ROW]


def two_clouds(n: int = 9, m: int = 9, d: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x, 0.7 * torch.randn(m, d, generator=generator, dtype=torch.float64) + 0.5


def mmd_by_hand(x: np.ndarray, y: np.ndarray, widths: list[float]) -> float:
    def k(a: np.ndarray, b: np.ndarray) -> float:
        return np.mean([np.exp(-cdist(a, b, "sqeuclidean") / (2 * w * w)) for w in widths])

    return k(x, x) + k(y, y) - 2 * k(x, y)


def entropic_cost(x: np.ndarray, y: np.ndarray, r: float) -> float:
    """min Σ γ C + r KL(γ | uniform), computed with POT's plan."""
    cost = cdist(x, y, "sqeuclidean")
    n, m = cost.shape
    plan = ot.sinkhorn(
        np.full(n, 1 / n), np.full(m, 1 / m), cost, r, method="sinkhorn_log", numItermax=1000, warn=False
    )
    return float((plan * cost).sum() + r * (plan * np.log(plan * n * m)).sum())


def test_pairwise_squared_distances_match_scipy() -> None:
    x, y = two_clouds(7, 5)
    np.testing.assert_allclose(squared_distances(x, y), cdist(x, y, "sqeuclidean"), rtol=1e-12)
    batched = squared_distances(x, torch.stack([y, 2 * y]))
    np.testing.assert_allclose(batched[1], cdist(x, 2 * y, "sqeuclidean"), rtol=1e-12)


def test_pairwise_squared_distances_survive_a_large_offset_and_autocast() -> None:
    x, y = two_clouds()
    expected = cdist(x, y, "sqeuclidean")
    far = squared_distances(x.float() + 1000, y.float() + 1000)  # plain x² + y² − 2xy is off by about 1 here
    np.testing.assert_allclose(far, expected, rtol=5e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_allclose(squared_distances(x.float(), y.float()), expected, rtol=1e-5)


def test_rounding_never_makes_a_squared_distance_negative() -> None:
    for seed in range(20):
        x = two_clouds(30, d=8, seed=seed)[0].float()
        assert squared_distances(x, x).min() >= 0
        for distance in ALL:
            assert squared_distance(x.flip(0), x, distance) >= 0, distance


@pytest.mark.parametrize("m", [9, 6])
def test_mmd_matches_brute_force(m: int) -> None:
    x, y = two_clouds(9, m)
    median = float(np.median(cdist(y, y)[np.triu_indices(m, 1)]))
    lower = float(np.sort(cdist(y, y)[np.triu_indices(m, 1)])[(m * (m - 1) // 2 - 1) // 2])  # torch's median
    assert lower == pytest.approx(median, rel=0.2)
    expected = mmd_by_hand(x.numpy(), y.numpy(), [0.5 * lower, lower, 2 * lower])
    assert squared_distance(x, y, "mmd").item() == pytest.approx(expected, rel=1e-10)
    fixed = mmd_by_hand(x.numpy(), y.numpy(), [1.3])
    assert squared_distance(x, y, "mmd", bandwidth=1.3).item() == pytest.approx(fixed, rel=1e-10)


def test_wasserstein_matches_pot() -> None:
    x, y = two_clouds()
    expected = ot.emd2([], [], ot.dist(x.numpy(), y.numpy()))
    assert squared_distance(x, y, "wasserstein").item() == pytest.approx(expected, rel=1e-9)


def test_sinkhorn_matches_pot(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = two_clouds()
    r = 0.3 * median_squared_distance(y).item()
    a, b = x.numpy(), y.numpy()
    expected = entropic_cost(a, b, r) - 0.5 * entropic_cost(a, a, r) - 0.5 * entropic_cost(b, b, r)
    assert squared_distance(x, y, "sinkhorn", regularisation=0.3).item() == pytest.approx(expected, rel=3e-3)
    monkeypatch.setattr(sinkhorn, "ITERATIONS", 2000)
    assert squared_distance(x, y, "sinkhorn", regularisation=0.3).item() == pytest.approx(expected, rel=1e-7)


def sinkhorn_gradient(x: Tensor, y: Tensor, dtype: torch.dtype, regularisation: float) -> Tensor:
    point = x.to(dtype).requires_grad_()
    distance = squared_distance(point, y.to(dtype), "sinkhorn", regularisation=regularisation)
    return torch.autograd.grad(distance, point)[0].double()


@pytest.mark.filterwarnings("ignore:Sinkhorn")
@pytest.mark.parametrize(("regularisation", "bound"), [(0.1, 0.01), (0.05, 0.02)])
@pytest.mark.parametrize("scale", [0.3, 1.3, 3.0])
@pytest.mark.parametrize(("n", "d"), [(5, 4), (8, 2), (8, 4), (16, 4), (32, 2), (32, 16), (16, 64)])
def test_sinkhorns_gradient_is_as_right_as_it_says_however_far_apart_the_clouds_are(
    n: int, d: int, scale: float, regularisation: float, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 with 50 updates against float64 with 1000. Without centring, the error at 3000 σ was a factor of 15."""
    generator = torch.Generator().manual_seed(n)
    y, around = (torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2))
    for apart in (0.0, 3.0, 1000.0, 3000.0):
        x = scale * around + apart / d**0.5
        found = sinkhorn_gradient(x, y, torch.float32, regularisation)
        with monkeypatch.context() as patch:
            patch.setattr(sinkhorn, "ITERATIONS", 1000)
            wanted = sinkhorn_gradient(x, y, torch.float64, regularisation)
        assert (found - wanted).norm() < bound * wanted.norm()


@pytest.mark.parametrize(
    ("distance", "times"),
    [("paired", 1.0), ("wasserstein", 1.0), ("sinkhorn", 1.04), ("mmd", 2.8), ("sliced", 2.9), ("energy", 5.2)],
)
def test_how_much_larger_the_scale_of_epsilon_is_with_few_images(distance: str, times: float) -> None:
    """The features of every image move by noise of their own, and all together by a common step half as long.

    The test compares the mean over 32 groups of 8 images with all 256 at once. The standard deviation of this mean over
    seeds is 5 % for `sliced` and at most 2 % for the others, so 25 % and 10 % are five of them.
    """
    generator = torch.Generator().manual_seed(0)
    before, noise, step = (torch.randn(n, 64, generator=generator, dtype=torch.float64) for n in (256, 256, 1))
    after = before + 0.3 * noise + 0.15 * 8 * step / step.norm()
    groups = zip(before.split(8), after.split(8), strict=True)
    few = sum(squared_distance(x, y, distance).item() for x, y in groups) / 32
    assert few / squared_distance(before, after, distance).item() == pytest.approx(
        times, rel=0.25 if distance == "sliced" else 0.1
    )


def test_sinkhorn_warns_where_its_updates_do_not_settle(recwarn: pytest.WarningsRecorder) -> None:
    """Two clusters of 16 points against 17 and 15: one point must move far, and 50 updates are off by 10 % or more."""
    generator = torch.Generator().manual_seed(32)
    y, x = (torch.randn(32, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    y[:16] += 5
    even, uneven = x.clone(), x.clone()
    even[:16] += 5
    uneven[:17] += 5
    squared_distance(even, y, "sinkhorn")
    assert not recwarn.list
    with pytest.warns(RuntimeWarning, match=r"after 50 updates .* % of the mass is in a wrong place"):
        squared_distance(uneven, y, "sinkhorn")
    memory = Memory(DISTANCES.find("sinkhorn")(), "all", stream(), anchor=uneven)
    with pytest.warns(RuntimeWarning, match="take a `regularisation` above 0.1"):
        memory.remember(y)


def test_sinkhorn_warns_where_theta_and_a_sample_do_not_settle(recwarn: pytest.WarningsRecorder) -> None:
    """The model before learning was as near as a check could wish; θ, when the norms are measured, is not."""
    generator = torch.Generator().manual_seed(32)
    y, x = (torch.randn(32, 4, generator=generator) for _ in range(2))
    y[:16] += 5
    even, uneven = x.clone(), x.clone()
    even[:16] += 5
    uneven[:17] += 5
    repulsion = Repulsion("sinkhorn", force=Fading(measure_every=2), anchor=even)
    repulsion.warn_if_unsettled()
    repulsion.remember(y)
    repulsion.begin_cycle()
    seen = []
    for cloud in (even, even, even, uneven, uneven):  # steps 0, 1, 2 and 4 measure
        theta = cloud.clone().requires_grad_()
        repulsion(theta, loss=theta.sum(), parameters=[theta])
        seen.append(repulsion.state["unsettled"].item())
        if len(seen) < 5:
            repulsion.warn_if_unsettled()
    assert seen[0] == seen[3] < sinkhorn.SETTLED < seen[4]
    assert not recwarn.list
    with pytest.warns(RuntimeWarning, match=rf"{100 * seen[4]:.1f} % of the mass is in a wrong place"):
        repulsion.warn_if_unsettled()
    recwarn.clear()
    repulsion.warn_if_unsettled()
    assert not recwarn.list, "once is enough"
    other = Repulsion("wasserstein", force=Fading(), anchor=even)
    other.remember(y)
    other.begin_cycle()
    other(theta, loss=theta.sum(), parameters=[theta])
    other.warn_if_unsettled()
    assert "unsettled" not in other.state


def test_sinkhorn_nears_wasserstein_and_mean_shift_at_its_ends() -> None:
    x, y = two_clouds()
    exact = squared_distance(x, y, "wasserstein").item()
    assert squared_distance(x, y, "sinkhorn", regularisation=0.05).item() == pytest.approx(exact, rel=0.05)
    shift = (x.mean(0) - y.mean(0)).square().sum().item()
    assert squared_distance(x, y, "sinkhorn", regularisation=1e3).item() == pytest.approx(shift, rel=0.01)


def test_sliced_matches_pot_on_the_same_directions() -> None:
    x, y = two_clouds()
    directions = ot.sliced.get_random_projections(4, 50, seed=1)
    expected = ot.sliced_wasserstein_distance(x.numpy(), y.numpy(), projections=directions, p=2) ** 2
    ours = Sliced().between(x, with_directions(y, torch.from_numpy(directions)))
    assert ours.item() == pytest.approx(expected, rel=1e-9)


def test_sliced_draws_from_the_generator_it_is_given() -> None:
    x, y = two_clouds()
    sliced = Sliced(projections=3)
    one, same, other = (sliced.between(x, sliced.prepare(y, torch.Generator().manual_seed(s))) for s in (5, 5, 6))
    assert one == same
    assert one != other


@pytest.mark.parametrize("m", [9, 6])
def test_energy_matches_brute_force_and_scipy(m: int) -> None:
    x, y = two_clouds(9, m)
    expected = 2 * cdist(x, y).mean() - cdist(x, x).mean() - cdist(y, y).mean()
    assert squared_distance(x, y, "energy").item() == pytest.approx(expected, rel=1e-10)
    on_line = energy_distance(x[:, 0].numpy(), y[:, 0].numpy()) ** 2
    assert squared_distance(x[:, :1], y[:, :1], "energy").item() == pytest.approx(on_line, rel=1e-6)


def test_on_a_line_transport_is_sorting() -> None:
    x, y = two_clouds(8, 8, 1)
    expected = np.mean((np.sort(x[:, 0]) - np.sort(y[:, 0])) ** 2)
    for distance in ("wasserstein", "sliced"):
        assert squared_distance(x, y, distance).item() == pytest.approx(expected, rel=1e-9)
    # a shift moves every quantile, so that W1 (scipy's) is the root of W2²
    shifted = wasserstein_distance(x[:, 0].numpy(), x[:, 0].numpy() + 3)
    assert squared_distance(x + 3, x, "sliced").sqrt().item() == pytest.approx(shifted)


def test_paired_is_row_by_row() -> None:
    x, y = two_clouds()
    expected = np.mean([np.sum((a - b) ** 2) for a, b in zip(x.numpy(), y.numpy(), strict=True)])
    assert squared_distance(x, y, "paired").item() == pytest.approx(expected)


def test_divergences_match_scipy() -> None:
    x, y = (3 * cloud for cloud in two_clouds())
    p, q = softmax(x.numpy(), -1), softmax(y.numpy(), -1)
    js = np.mean(jensenshannon(p, q, axis=-1) ** 2)
    assert squared_distance(x, y, "jensen-shannon").item() == pytest.approx(js, rel=1e-10)
    both = (entropy(p, q, axis=-1) + entropy(q, p, axis=-1)) / 2
    assert squared_distance(x, y, "kullback-leibler").item() == pytest.approx(both.mean(), rel=1e-10)


@pytest.mark.parametrize("distance", ["kullback-leibler", "jensen-shannon"])
def test_divergences_keep_their_digits_near_and_far(distance: str) -> None:
    """Near coincidence both are ½·Var_p(Δlogits) times 1 and ¼: in float32, far below where 1 − 1 would be noise."""
    x, y = two_clouds()
    p, change = x.softmax(-1), 1e-4 * y
    variance = (p * (change - (p * change).sum(-1, keepdim=True)).square()).sum(-1).mean()
    expected = variance / (2 if distance == "kullback-leibler" else 8)
    assert squared_distance((x + change).float(), x.float(), distance).item() == pytest.approx(
        expected.item(), rel=0.02
    )
    sure = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    value = squared_distance(sure, sure.detach().roll(1, -1), distance)
    value.backward()
    assert value.item() == pytest.approx(200 if distance == "kullback-leibler" else math.log(2), rel=1e-6)
    assert sure.grad is not None
    assert sure.grad.isfinite().all()


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("distance", ALL)
def test_gradient_matches_finite_differences(distance: str, unequal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinkhorn, "ITERATIONS", 300)  # the envelope theorem is for converged potentials
    if unequal and DISTANCES[distance].of_equal_sizes:
        pytest.skip("it needs equal sizes")
    x, y = two_clouds(6, 4 if unequal else 6, 3)
    options = {"regularisation": 0.5} if distance == "sinkhorn" else {}
    variable = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(squared_distance(variable, y, distance, **options), variable)
    step = 1e-5
    numeric = torch.zeros_like(x)
    for i in range(x.numel()):
        e = torch.zeros(x.numel(), dtype=x.dtype)
        e[i] = step
        up, down = (squared_distance(x + s * e.view_as(x), y, distance, **options) for s in (1, -1))
        numeric.view(-1)[i] = (up - down) / (2 * step)
    assert (gradient - numeric).norm() < 1e-7 * numeric.norm()


@pytest.mark.parametrize("distance", BETWEEN_DISTRIBUTIONS)
def test_order_of_points_does_not_matter(distance: str) -> None:
    x, y = two_clouds()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(2))
    expected = squared_distance(x, y, distance).item()
    assert squared_distance(x[order], y, distance).item() == pytest.approx(expected, rel=1e-9)
    assert squared_distance(x, y[order], distance).item() == pytest.approx(expected, rel=1e-9)
    assert squared_distance(x[order], y, "paired") != squared_distance(x, y, "paired")


@pytest.mark.parametrize("distance", ALL)
def test_it_is_symmetric_for_equal_length_scales(distance: str) -> None:
    x, y = two_clouds()
    y = x @ torch.linalg.qr(torch.randn(4, 4, dtype=x.dtype, generator=torch.Generator().manual_seed(1)))[0]
    assert squared_distance(x, y, distance).item() == pytest.approx(squared_distance(y, x, distance).item(), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("distance", ALL)
def test_equal_clouds_give_zero_with_a_finite_gradient(distance: str, dtype: torch.dtype) -> None:
    x = two_clouds(12)[0].to(dtype)
    variable = x.clone().requires_grad_()
    value = squared_distance(variable, x, distance)
    value.backward()
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert 0 <= value.item() < 1e-6
    assert variable.grad is not None
    assert variable.grad.isfinite().all()
    assert variable.grad.norm() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("distance", ALL)
def test_half_precision_inputs_are_computed_in_single(distance: str, dtype: torch.dtype) -> None:
    x, y = (cloud.to(dtype) for cloud in two_clouds())
    variable = x.clone().requires_grad_()
    value = squared_distance(variable, y, distance)
    value.backward()
    assert value.item() == pytest.approx(squared_distance(x.double(), y.double(), distance).item(), rel=1e-4)
    assert variable.grad is not None
    assert variable.grad.isfinite().all()


@pytest.mark.parametrize("distance", ALL)
def test_repeated_points_give_finite_gradients(distance: str) -> None:
    x, y = two_clouds(8, 8)
    x[1], x[2], y[1] = x[0], y[0], y[0]
    variable = x.float().requires_grad_()
    squared_distance(variable, y.float(), distance).backward()
    assert variable.grad is not None
    assert variable.grad.isfinite().all()
    assert variable.grad.norm() > 0.01


@pytest.mark.parametrize("distance", ALL)
def test_cached_statistics_of_a_subset_equal_a_fresh_computation(distance: str) -> None:
    """A step selects statistics by rows; only the length scale remains that of the whole pool."""
    x, pool = two_clouds(6, 20)
    rows = torch.tensor([17, 3, 4, 0, 11, 8])
    kept = DISTANCES.find(distance)().prepare(pool, stream()).rows(rows)
    longer = float(median_squared_distance(pool) / median_squared_distance(pool[rows]))
    fixed = {"regularisation": 0.1 * longer} if distance == "sinkhorn" else {}
    if distance == "mmd":
        widths = kept.shared["bandwidths"][0].tolist()
        fresh = mmd_by_hand(x.numpy(), pool[rows].numpy(), widths)
    else:
        same = DISTANCES.find(distance)(**fixed)
        fresh = same.between(x, same.prepare(pool[rows], stream())).item()
    assert DISTANCES.find(distance)().between(x, kept).item() == pytest.approx(fresh, rel=1e-9)


@pytest.mark.parametrize("distance", ALL)
def test_several_stored_samples_at_once_equal_one_by_one(distance: str) -> None:
    x, pool = two_clouds(9, 9)
    one = DISTANCES.find(distance)()
    stored = [one.prepare(c * pool, stream()) for c in (1.0, 1.5, -0.4)]
    joined = one.between(x, Stored.join(stored))
    single = [one.between(x, s).item() for s in stored]
    assert joined.tolist() == pytest.approx(single, rel=1e-12)


def test_non_finite_features_reach_the_caller() -> None:
    """The chain reports them; the exact solver must not fail first."""
    x, y = two_clouds()
    x[0, 0] = math.nan
    for distance in ALL:
        assert not squared_distance(x, y, distance).isfinite(), distance


@pytest.fixture
def _registry() -> Iterator[None]:
    """After each test, the distances that it has registered are removed."""
    before = dict(DISTANCES.known)
    yield
    DISTANCES.known.clear()
    DISTANCES.known.update(before)


@pytest.mark.usefixtures("_registry")
def test_a_new_distance_is_one_function() -> None:
    @register_distance("mean-shift")
    def mean_shift(x: Tensor, stored: Stored) -> Tensor:
        return (x.mean(0) - stored.cloud.mean(1)).square().sum(-1)

    x, _ = two_clouds()
    assert squared_distance(x, x + 1, "mean-shift").item() == pytest.approx(4)
    assert DISTANCES.find("mean-shift")().plain() == {"kind": "mean-shift"}
    with pytest.raises(UserError, match="'mean-shift' is taken by mean_shift: choose another name"):
        register_distance("mean-shift")(DISTANCES["mmd"])


@pytest.mark.usefixtures("_registry")
def test_a_new_distance_with_settings_is_one_class() -> None:
    @register_distance("shrunk")
    class Shrunk(Distance):
        by: float = 0.5

        def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:  # noqa: ARG002
            return Stored(self.by * cloud[None])

        def between(self, x: Tensor, stored: Stored) -> Tensor:
            return (x - stored.cloud).square().sum(-1).mean(-1)

    x, _ = two_clouds()
    assert squared_distance(x, 2 * x, "shrunk").item() == 0
    assert squared_distance(2 * x, x, Shrunk(by=2.0)).item() == 0
    with pytest.raises(UserError, match="by is 'x': it must be a number"):
        DISTANCES.find("shrunk")(by="x")


@pytest.mark.parametrize(
    ("distance", "settings", "says"),
    [
        ("sinkhron", {}, r"did you mean 'sinkhorn'\? Accepted: .*mmd, .*wasserstein"),
        ("energy", {"bandwidth": 1.0}, r"bandwidth: there is no such setting here\. Accepted: none"),
        ("mmd", {"bandwidth": -1.0}, "bandwidth is -1.0: it must be above 0"),
        ("sinkhorn", {"regularisation": 0}, "regularisation is 0: it must be at least 0.05"),
        ("sliced", {"projections": 0}, "projections is 0: it must be at least 1"),
    ],
)
def test_bad_settings_are_refused(distance: str, settings: dict[str, float], says: str) -> None:
    with pytest.raises(UserError, match=says):
        squared_distance(*two_clouds(), distance, **settings)


def test_clouds_that_do_not_fit_are_refused() -> None:
    x, y = two_clouds()
    for distance in (name for name in ALL if name not in ("mmd", "energy")):
        with pytest.raises(UserError, match=f"'{distance}' needs clouds of equally many points; got 9 and 5"):
            squared_distance(x, y[:5], distance)
    with pytest.raises(UserError, match="4 and 3 dimensions"):
        squared_distance(x, y[:, :3])
    with pytest.raises(UserError, match=r"shape \(9, 4, 1\)"):
        squared_distance(x[..., None], y)
    with pytest.raises(UserError, match=r"bandwidth=.*take the distance 'paired'"):
        squared_distance(x[:1], y[:1], "mmd")
