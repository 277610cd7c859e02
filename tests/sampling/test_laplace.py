"""Laplace's approximation against closed forms, SciPy, laplace-torch and the sampler."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rebapl.curvature import Curvature, softmax_curvature
from rebapl.errors import UserError
from rebapl.sampling import SGHMC, Chain, Inference
from rebapl.sampling.laplace import curvature_of, draws
from rebapl.sampling.settings import Laplace

N, C, D = 40, 3, 4


class Probe(nn.Module):
    """Logistic regression on (B, d) as a learner, with the prior of its recipe."""

    repels_in, repels_per_image = None, False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(C, D, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Any:
        from rebapl.learners import Output

        return Output(x @ self.weight.mT)

    def loss(self, output: Any, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.logits, labels)

    def reset(self, _: torch.Generator) -> None:
        nn.init.zeros_(self.weight)

    def use_noise(self, generator: torch.Generator) -> None: ...


class Curved(Probe):
    """Logits that are not linear in the parameters, so that the Gauss-Newton matrix is not the Hessian."""

    def forward(self, x: Tensor) -> Any:
        from rebapl.learners import Output

        return Output((x @ self.weight.mT).tanh().cumsum(-1))


class LinearProbe(Probe):
    def linear_inputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, torch.ones(C)


@pytest.fixture
def points() -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.randn(N, D, generator=stream), torch.randint(C, (N,), generator=stream)


def dense(learner: Probe, x: Tensor) -> np.ndarray:
    """H (C·d, C·d), by the formula, image by image."""
    total = np.zeros((C * D, C * D))
    p = learner(x).logits.softmax(-1).detach().numpy().astype(float)
    for n, a in enumerate(x.numpy().astype(float)):
        total += np.kron(np.diag(p[n]) - np.outer(p[n], p[n]), np.outer(a, a))
    return total


def matrix(curvature: Curvature) -> np.ndarray:
    """U diag(h) Uᵀ: the images of the unit vectors under U, which are its columns."""
    columns = curvature.rotate(torch.eye(len(curvature.eigenvalues), dtype=torch.float64)).numpy().T
    return columns * curvature.eigenvalues.numpy() @ columns.T


def found(learner: Probe, x: Tensor, structure: str) -> Curvature:
    return curvature_of(learner, dict(learner.named_parameters()), iter([x]), len(x), structure, torch.Generator())


def test_the_full_curvature_is_the_formula(points: tuple[Tensor, Tensor]) -> None:
    learner = Probe()
    np.testing.assert_allclose(matrix(found(learner, points[0], "full")), dense(learner, points[0]), atol=1e-5)


def test_the_formula_is_the_hessian_of_autograd_where_logits_are_linear(points: tuple[Tensor, Tensor]) -> None:
    x, y = points

    def total(weight: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x @ weight.view(C, D).mT, y, reduction="sum")

    hessian = torch.autograd.functional.hessian(total, Probe().weight.detach().flatten())
    np.testing.assert_allclose(hessian.numpy(), dense(Probe(), x), atol=1e-5)


def test_elsewhere_it_is_the_product_of_jacobians(points: tuple[Tensor, Tensor]) -> None:
    learner, x = Curved(), points[0]
    weight = {"weight": learner.weight.detach().double()}
    jacobian = torch.func.jacrev(lambda p: torch.func.functional_call(learner, p, x.double()).logits)(weight)["weight"]
    rows = jacobian.flatten(2).numpy()
    p = torch.func.functional_call(learner, weight, x.double()).logits.softmax(-1).numpy()
    expected = sum(j.T @ (np.diag(each) - np.outer(each, each)) @ j for j, each in zip(rows, p, strict=True))
    np.testing.assert_allclose(matrix(found(learner, x, "full")), expected, atol=1e-5)
    np.testing.assert_allclose(found(learner, x, "diagonal").eigenvalues, np.diag(expected), atol=1e-5)


def test_the_diagonal_is_that_of_the_formula(points: tuple[Tensor, Tensor]) -> None:
    learner = Probe()
    expected = np.diag(dense(learner, points[0]))
    np.testing.assert_allclose(found(learner, points[0], "diagonal").eigenvalues, expected, rtol=1e-5)


def test_labels_that_are_drawn_give_the_diagonal_on_average(
    points: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within five standard errors of 200 means: the false-alarm rate of twelve numbers is below 10⁻⁵."""
    monkeypatch.setattr("rebapl.sampling.laplace.PASSES", 1)
    learner, stream, images = Probe(), torch.Generator().manual_seed(5), points[0][:8]
    parameters = dict(learner.named_parameters())
    many = torch.stack(
        [curvature_of(learner, parameters, iter([images]), 8, "diagonal", stream).eigenvalues for _ in range(200)]
    )
    expected = torch.tensor(np.diag(dense(learner, images)))
    assert ((many.mean(0) - expected).abs() < 5 * many.std(0) / 200**0.5 + 1e-9).all()


def test_kronecker_factors_are_the_mean_and_the_sum(points: tuple[Tensor, Tensor]) -> None:
    learner, x = LinearProbe(), points[0]
    p = learner(x).logits.softmax(-1).detach().numpy().astype(float)
    of_classes = np.mean([np.diag(each) - np.outer(each, each) for each in p], axis=0)
    expected = np.kron(of_classes, x.numpy().astype(float).T @ x.numpy().astype(float))
    np.testing.assert_allclose(matrix(found(learner, x, "kronecker")), expected, atol=1e-5)
    np.testing.assert_allclose(softmax_curvature(torch.tensor(p)), of_classes, atol=1e-12)


@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
def test_one_batch_is_in_memory_at_a_time(points: tuple[Tensor, Tensor], structure: str) -> None:
    """Each batch is passed through the learner before the next one is made, and together they give the whole."""
    events: list[str] = []

    class Noting(LinearProbe):
        def forward(self, x: Tensor) -> Any:
            events.append("pass")
            return super().forward(x)

    def made() -> Iterator[Tensor]:
        for batch in points[0].split(N // 4):
            events.append("batch")
            yield batch

    learner = Noting()
    parts = curvature_of(learner, dict(learner.named_parameters()), made(), N, structure, torch.Generator())
    assert [event for event, _ in itertools.groupby(events)] == ["batch", "pass"] * 4
    np.testing.assert_allclose(matrix(parts), matrix(found(LinearProbe(), points[0], structure)), atol=1e-6)


def test_one_image_makes_the_kronecker_form_exact(points: tuple[Tensor, Tensor]) -> None:
    learner, x = LinearProbe(), points[0][:1]
    np.testing.assert_allclose(matrix(found(learner, x, "kronecker")), dense(learner, x), atol=1e-5)


def test_auto_takes_what_the_learner_allows(points: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    def auto(learner: Probe, like: str) -> bool:
        given, expected = (matrix(found(learner, points[0], each)) for each in ("auto", like))
        return np.allclose(given, expected)

    assert auto(LinearProbe(), "full")
    monkeypatch.setattr("rebapl.sampling.laplace.FULL", 5)
    assert auto(LinearProbe(), "kronecker")
    assert auto(Probe(), "diagonal")
    with pytest.raises(UserError, match=r"laplace\.structure is 'kronecker'"):
        found(Probe(), points[0], "kronecker")


def test_draws_have_the_covariance(points: tuple[Tensor, Tensor]) -> None:
    """20 000 draws; each entry within six standard errors, so that 144 of them raise a false alarm below 10⁻⁶."""
    curvature, count, precision = found(Probe(), points[0], "full"), 20_000, 2.0
    drawn = curvature.draw(count, precision, torch.Generator().manual_seed(3)).numpy()
    expected = np.linalg.inv(dense(Probe(), points[0]) + precision * np.eye(C * D))
    variances = np.diag(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) / count)
    assert (np.abs(np.cov(drawn.T) - expected) < 6 * error).all()
    assert (np.abs(drawn.mean(0)) < 6 * np.sqrt(variances / count)).all()


def test_the_evidence_of_a_linear_gaussian_model_is_exact() -> None:
    """y = Xθ + noise of variance 1: SciPy knows log p(y | δ) = log N(y; 0, I + XXᵀ/δ), and which δ is the best."""
    from scipy.optimize import minimize_scalar
    from scipy.stats import multivariate_normal

    rng = np.random.default_rng(4)
    x = rng.normal(size=(25, 6))
    y = x @ rng.normal(size=6) * 0.5 + rng.normal(size=25)
    curvature = Curvature.full(torch.tensor(x.T @ x))

    def exact(precision: float) -> float:
        return multivariate_normal(np.zeros(25), np.eye(25) + x @ x.T / precision).logpdf(y)

    def ours(precision: float) -> float:
        theta = np.linalg.solve(x.T @ x + precision * np.eye(6), x.T @ y)
        fit = multivariate_normal(x @ theta, np.eye(25)).logpdf(y)
        return curvature.evidence(fit, float(theta @ theta), precision)

    for precision in (0.1, 1.0, 10.0):
        assert ours(precision) == pytest.approx(exact(precision), abs=1e-9)
    best = float(np.exp(minimize_scalar(lambda log: -exact(np.exp(log)), bounds=(-5, 5), method="bounded").x))
    theta = np.linalg.solve(x.T @ x + best * np.eye(6), x.T @ y)
    assert curvature.best_precision(float(theta @ theta)) == pytest.approx(best, rel=1e-3), (
        "the fixed point is the best"
    )


def test_samples_lie_around_the_mode_with_the_precision_of_the_recipe(points: tuple[Tensor, Tensor]) -> None:
    learner = Probe()
    parameters = dict(learner.named_parameters())
    many = draws(
        learner, parameters, iter([points[0]]), Laplace(samples=4000, prior="recipe"),
        images=N, num_data=N, decay=0.05, stream=torch.Generator().manual_seed(0),
    )  # fmt: skip
    rows = torch.stack([each["weight"].flatten() for each in many]).numpy().astype(float)
    expected = np.linalg.inv(dense(learner, points[0]) + 0.05 * N * np.eye(C * D))
    assert (
        np.abs(rows.mean(0) - learner.weight.detach().flatten().numpy()) < 6 * np.sqrt(np.diag(expected) / 4000)
    ).all()
    np.testing.assert_allclose(np.diag(np.cov(rows.T)), np.diag(expected), rtol=6 * np.sqrt(2 / 4000))
    with pytest.raises(UserError, match="take 'evidence'"):
        draws(learner, parameters, iter([points[0]]), Laplace(prior="recipe"), images=N, num_data=N, decay=0.0,
              stream=torch.Generator())  # fmt: skip


def chain(points: tuple[Tensor, Tensor], **changes: Any) -> Chain:
    sampler = {"kind": "sgd", "lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}
    inference = Inference(sampler=sampler, epochs=60, batch=N, **{"laplace": {"samples": 5}, **changes})
    return Chain(Probe(), inference, lambda _: points, num_data=N, steps_per_epoch=1, seed=7)


def test_the_loop_gives_the_samples_of_its_seed_and_resumes(points: tuple[Tensor, Tensor]) -> None:
    first = list(chain(points).run())
    assert len(first) == 5 == chain(points).inference.samples
    assert torch.pdist(torch.stack([each.parameters["weight"].flatten() for each in first])).min() > 1e-3
    half = chain(points)
    for _ in range(30):
        half.step()
    rest = chain(points)
    rest.load_state_dict(half.state_dict())
    again = list(rest.run())
    assert all(torch.equal(a.parameters["weight"], b.parameters["weight"]) for a, b in zip(first, again, strict=True))


def test_each_cold_cycle_has_draws_of_its_own(points: tuple[Tensor, Tensor]) -> None:
    """The problem is convex, so all cycles end at the same mode."""
    samples = list(chain(points, cycles=2, restart="cold").run())
    assert [each.cycle for each in samples] == [0] * 5 + [1] * 5
    assert not torch.equal(samples[0].parameters["weight"], samples[5].parameters["weight"])


def test_it_is_refused_where_it_cannot_act() -> None:
    sampler = {"kind": "sghmc", "lr": 0.1}
    with pytest.raises(UserError, match="laplace is for sgd and adamw"):
        Inference(sampler=sampler, epochs=2, batch=2, laplace={})
    optimising = {"sampler": {"kind": "sgd", "lr": 0.1}, "epochs": 2, "batch": 2, "cycles": 3, "restart": "cold"}
    with pytest.raises(UserError, match="laplace does not go with adaptive"):
        Inference(**optimising, laplace={}, adaptive={})


def test_on_a_quadratic_problem_the_sampler_has_the_covariance_of_laplace() -> None:
    """L(θ) = ½ θᵀ A θ / N: both target N(0, (A + N·wd)⁻¹), SGHMC in 20 000 independent chains of 400 steps.

    The chains' ends are independent draws. In the eigenbasis, a variance of n draws has the standard error v·√(2/n),
    1 % of itself, and a covariance √(v·w/n). All six are compared, each within five standard errors, which fails in
    fewer than one of 10⁵ seeds. The chains start at 0; after 400 steps less than e⁻³⁰ of that is left.
    """
    values = torch.tensor([2.0, 5.0, 12.0])
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
    matrix_a, num_data, decay, chains = rotation @ torch.diag(values) @ rotation.mT, 10, 0.1, 20_000
    theta = nn.Parameter(torch.zeros(chains, 3))
    stream = torch.Generator().manual_seed(2)
    rule = SGHMC([theta], lr=0.1, momentum=0.7, num_data=num_data, weight_decay=decay, generator=stream)
    for _ in range(400):
        theta.grad = theta.detach() @ matrix_a / num_data
        rule.step()
    curvature = Curvature.full(matrix_a)
    columns = curvature.rotate(torch.eye(3, dtype=torch.float64)).numpy().T
    covariance = columns / (curvature.eigenvalues.numpy() + num_data * decay) @ columns.T
    np.testing.assert_allclose(
        covariance, np.linalg.inv(matrix_a.double().numpy() + num_data * decay * np.eye(3)), rtol=1e-5
    )
    ends, basis = theta.detach().double().numpy(), rotation.double().numpy()
    theirs, ours = basis.T @ (ends.T @ ends / chains) @ basis, basis.T @ covariance @ basis
    variances = np.diag(ours)
    np.testing.assert_allclose(variances, 1 / (values.numpy() + num_data * decay), rtol=1e-5)
    errors = np.sqrt((np.outer(variances, variances) + ours**2) / chains)
    assert (np.abs(theirs - ours) < 5 * errors).all()


@pytest.mark.parametrize(("structure", "theirs"), [("full", "full"), ("diagonal", "diag"), ("kronecker", "kron")])
def test_laplace_torch_has_the_same_posterior(points: tuple[Tensor, Tensor], structure: str, theirs: str) -> None:
    """`make test` installs laplace-torch by tests/laplace-torch.txt, which says why it is no plain requirement."""
    laplace = pytest.importorskip("laplace", reason="pip install --no-deps --requirement tests/laplace-torch.txt")
    learner, (x, y) = LinearProbe(), points
    model = nn.Linear(D, C, bias=False)
    model.weight.data.copy_(learner.weight.data)
    approximation = laplace.Laplace(
        model, "classification", subset_of_weights="all", hessian_structure=theirs, prior_precision=2.0
    )
    approximation.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=N))
    curvature = found(learner, x, structure)
    ours = np.linalg.inv(matrix(curvature) + 2.0 * np.eye(C * D))
    if structure == "diagonal":
        covariance = np.diag(approximation.posterior_variance.detach().numpy())
    elif structure == "kronecker":
        covariance = np.linalg.inv(approximation.posterior_precision.to_matrix().detach().double().numpy())
    else:
        covariance = approximation.posterior_covariance.detach().numpy()
    np.testing.assert_allclose(covariance, ours, atol=1e-5)
    log_likelihood = -N * learner.loss(learner(x), y).item()
    evidence = curvature.evidence(log_likelihood, learner.weight.square().sum().item(), 2.0)
    assert approximation.log_marginal_likelihood().item() == pytest.approx(evidence, rel=1e-5)
