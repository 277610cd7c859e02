"""What heads find by themselves, against formulas of NumPy and other libraries; and what they do with other classes."""

import numpy as np
import pytest
import torch
from plain import unit
from scipy.optimize import minimize, minimize_scalar
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners import METHODS, Learner, build_learner
from rebapl.learners.gda import discriminant, moments, parts
from rebapl.learners.head import blended
from rebapl.learners.linear import EXACT, log_evidence, mode

NAMES = ["red cat", "dog", "big old tree"]
HEADS = [name for name, method in METHODS.items() if method.learner.learns_from_features]
every_head = pytest.mark.parametrize("method", HEADS)


def built(method: str, encoder: DualEncoder, **settings: object) -> Learner:
    return build_learner(method, encoder, NAMES, "a photo of a {}.", torch.Generator().manual_seed(0), settings)


def data(encoder: DualEncoder, per_class: int = 8, noise: float = 0.4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of three classes, each around a direction that is not that of its text."""
    stream = torch.Generator().manual_seed(seed)
    width = encoder.joint_width
    centres = unit(torch.randn(len(NAMES), width, generator=torch.Generator().manual_seed(9)))
    labels = torch.arange(len(NAMES)).repeat(per_class)
    return unit(centres[labels] + noise * torch.randn(len(labels), width, generator=stream)), labels


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def nll(logits: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(softmax(logits)[np.arange(len(labels)), labels]).mean())


# All heads


@every_head
def test_what_was_seen_helps_on_other_images_of_the_same_classes(encoder: DualEncoder, method: str) -> None:
    learner, (held_out, labels) = built(method, encoder), data(encoder, noise=0.15, seed=1)
    before = learner.loss(learner(held_out), labels)
    learner.see(*data(encoder, noise=0.15))
    if method == "linear":  # which `see` prepares, and a loop moves
        features, seen = data(encoder, noise=0.15)
        inputs, offset = encoder.logit_scale * features, encoder.logits(features, learner.base)
        with torch.no_grad():
            learner.residual.copy_(mode(inputs, offset, seen, learner.prior_std, learner.residual)[0])
    after = torch.nn.functional.cross_entropy(learner(held_out).logits, labels)
    assert after < 0.7 * before


@every_head
def test_one_image_of_a_class_leaves_finite_answers(encoder: DualEncoder, method: str) -> None:
    learner = built(method, encoder)
    features, labels = data(encoder, per_class=1)
    learner.see(features, labels)
    assert learner(features).logits.isfinite().all()


@every_head
def test_a_class_without_images_answers_by_its_text_and_the_others_keep_what_they_learned(
    encoder: DualEncoder, images: Tensor, method: str
) -> None:
    """p(c) = p_zero-shot(T)·p_head(c | T) for the classes T of training, and p_zero-shot(c) for the others."""
    learner = built(method, encoder)
    learner.see(*data(encoder))
    names = ["dog", "green fish", "red cat", "old tree"]
    zero_shot = build_learner("zero-shot", encoder, names, "a photo of a {}.", torch.Generator())(images)
    texts, head = (x.logits.double().softmax(-1) for x in (zero_shot, learner(images)))
    own = [NAMES.index("dog"), NAMES.index("red cat")]
    wanted = texts.clone()
    wanted[:, [0, 2]] = texts[:, [0, 2]].sum(1, True) * head[:, own] / head[:, own].sum(1, True)
    mixed = learner.bind(names)
    torch.testing.assert_close(mixed(images).logits.double().softmax(-1), wanted, rtol=1e-4, atol=1e-6)
    assert not mixed.logits_are_products
    torch.testing.assert_close(learner.bind(["green fish", "old tree"])(images).logits, zero_shot.logits[:, [1, 3]])
    assert torch.equal(learner.bind(list(reversed(NAMES)))(images).logits.flip(1), learner(images).logits)


@every_head
def test_images_and_their_features_give_the_same(encoder: DualEncoder, images: Tensor, method: str) -> None:
    learner = built(method, encoder)
    learner.see(*data(encoder))
    assert torch.equal(learner(images).logits, learner(encoder.image_features(images)).logits)


def test_the_blend_has_the_least_loss_of_all_pairs() -> None:
    stream = np.random.default_rng(0)
    labels = stream.integers(3, size=60)
    first, second = (scale * np.eye(3)[labels] + stream.normal(size=(60, 3)) for scale in (1.0, 0.7))
    kappa, alpha, loss = blended(torch.tensor(first), torch.tensor(second), torch.tensor(labels))
    ratio = np.sqrt(np.var(second, axis=1).mean() / np.var(first, axis=1).mean())

    def objective(k: float, a: float) -> float:
        return nll(k * first + a * second, labels) + ((k - 1) ** 2 + (ratio * a) ** 2) / (2 * 60)

    best = minimize_scalar(lambda k: minimize_scalar(lambda a: objective(k, a)).fun)
    assert loss == pytest.approx(best.fun, abs=1e-8)
    assert kappa == pytest.approx(best.x, abs=1e-3)
    assert objective(kappa, alpha) == pytest.approx(loss, abs=1e-10)


@every_head
def test_a_few_images_that_zero_shot_knows_leave_no_head_endlessly_sure(encoder: DualEncoder, method: str) -> None:
    """Each image is the text of its class with a little noise: every κ is correct, and a larger one more confident."""
    learner = built(method, encoder)
    labels = torch.arange(len(NAMES)).repeat(4)
    noise = torch.randn(len(labels), encoder.joint_width, generator=torch.Generator().manual_seed(0))
    features = unit(learner.text_features[labels] + 0.02 * noise)
    learner.see(features, labels)
    zero_shot = encoder.logits(features, learner.text_features)
    assert bool((zero_shot.argmax(-1) == labels).all())
    assert learner(features).logits.std() < 4 * zero_shot.std()


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e12])
def test_the_blend_is_that_of_scipy_at_any_scale_and_at_the_edges(scale: float) -> None:
    """Sixty random problems, most of them with κ = 0 or α = 0."""
    edges = 0
    for seed in range(60):
        stream = np.random.default_rng(seed)
        n, sign = int(stream.integers(2, 30)), stream.choice([-1, 0, 1], size=2)
        labels = stream.integers(3, size=n)
        parts = [own * 2 * np.eye(3)[labels] + stream.normal(size=(n, 3)) for own in sign]
        ratio = np.sqrt(np.var(parts[1], axis=1).mean() / np.var(parts[0], axis=1).mean())

        def objective(at: np.ndarray, parts: list = parts, labels: np.ndarray = labels, ratio: float = ratio) -> float:
            prior = ((at[0] - 1) ** 2 + (ratio * at[1]) ** 2) / (2 * len(labels))
            return nll(at[0] * parts[0] + at[1] * parts[1], labels) + prior

        best = minimize(objective, (1.0, 0.1), bounds=[(0, None)] * 2, tol=1e-12)
        kappa, alpha, loss = blended(torch.tensor(parts[0]), torch.tensor(scale * parts[1]), torch.tensor(labels))
        assert loss == pytest.approx(best.fun, abs=1e-7)
        assert objective(np.array([kappa, scale * alpha])) == pytest.approx(loss, abs=1e-9)
        edges += 0.0 in (kappa, alpha)
    assert edges > 20


def test_what_does_not_help_has_no_weight_in_the_blend() -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    good = torch.eye(3)[labels] + 0.1 * torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    good[0] = good[1]  # not perfect, or no number would be the best
    _, alpha, _ = blended(good, -good.roll(1, 0) - torch.eye(3)[labels], labels)
    assert alpha == 0.0


# linear


def test_from_zero_it_is_logistic_regression_with_a_ridge(encoder: DualEncoder) -> None:
    features, labels = data(encoder)
    learner = built("linear", encoder, start="zero", prior=0.3)
    learner.see(features, labels)
    inputs, offset = encoder.logit_scale * features, encoder.logits(features, learner.base)
    residual = torch.zeros_like(learner.residual)
    for _ in range(20):
        residual, _ = mode(inputs.double(), offset.double(), labels, learner.prior_std.double(), residual.double())
    theirs = LogisticRegression(C=0.3**2, fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs.fit(inputs.numpy().astype(float), labels.numpy())
    with torch.no_grad():
        learner.residual.copy_(residual)
    found = learner(features).logits.softmax(-1)
    np.testing.assert_allclose(found.detach().numpy(), theirs.predict_proba(inputs.numpy().astype(float)), atol=1e-5)


def test_the_evidence_is_the_laplace_formula_with_the_dense_hessian(encoder: DualEncoder) -> None:
    """NumPy: every second derivative of the negative log joint by hand, and its determinant."""
    features, labels = data(encoder, per_class=4)
    scale = float(encoder.logit_scale)
    x, y = scale * features.numpy().astype(float)[:, :12], labels.numpy()
    std, rng = np.array([0.1, 0.2, 0.3]), np.random.default_rng(1)
    residual, offset = rng.normal(size=(3, 12)), rng.normal(size=(len(y), 3))
    logits = offset + x @ (std[:, None] * residual).T
    p = softmax(logits)
    hessian = np.eye(36)
    for n in range(len(y)):
        jacobian = np.zeros((3, 36))
        for c in range(3):
            jacobian[c, 12 * c : 12 * (c + 1)] = std[c] * x[n]
        hessian += jacobian.T @ (np.diag(p[n]) - np.outer(p[n], p[n])) @ jacobian
    expected = -len(y) * nll(logits, y) - (residual**2).sum() / 2 - np.linalg.slogdet(hessian)[1] / 2
    given = [torch.tensor(each) for each in (x, offset, y, std[:, None], residual)]
    assert log_evidence(*given) == pytest.approx(expected, rel=1e-9)


def test_the_evidence_of_many_images_has_a_block_for_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    x, offset, y = rng.normal(size=(9, 4)), rng.normal(size=(9, 2)), rng.integers(2, size=9)
    std, residual = np.array([[0.5], [0.8]]), rng.normal(size=(2, 4))
    logits = offset + x @ (std * residual).T
    p = softmax(logits)
    blocks = [np.eye(4) + std[c] ** 2 * (x.T * (p[:, c] * (1 - p[:, c]))) @ x for c in range(2)]
    expected = -9 * nll(logits, y) - (residual**2).sum() / 2 - sum(np.linalg.slogdet(b)[1] for b in blocks) / 2
    monkeypatch.setattr("rebapl.learners.linear.EXACT", 1)
    assert EXACT > 18
    given = [torch.tensor(each) for each in (x, offset, y, std, residual)]
    assert log_evidence(*given) == pytest.approx(expected, rel=1e-9)


def test_the_evidence_prefers_a_width_near_that_of_the_truth() -> None:
    """Labels drawn from the model itself, many of them, with σ = 0.4 in front of unit inputs of scale 1/0.1."""
    from rebapl.learners.linear import best_width

    stream = torch.Generator().manual_seed(3)
    inputs = 10 * unit(torch.randn(900, 8, generator=stream, dtype=torch.float64))
    weights = 0.4 * torch.randn(4, 8, generator=stream, dtype=torch.float64)
    labels = torch.multinomial((inputs @ weights.mT).softmax(-1), 1, generator=stream)[:, 0]
    found = best_width(inputs.float(), torch.zeros(900, 4), labels, torch.ones(4, 1)) / 10
    assert found == pytest.approx(float(weights.std()), rel=0.35)  # 32 weights say it to an eighth


def test_classes_that_zero_shot_knows_are_held_closer(encoder: DualEncoder) -> None:
    learner = built("linear", encoder, prior=0.1, class_constraint=True)
    features = torch.cat([learner.text_features, unit(learner.text_features[:1] - learner.text_features[2:])])
    labels = torch.tensor([0, 1, 2, 2])
    learner.see(features, labels)
    p = softmax(encoder.logits(features, learner.text_features).numpy().astype(float))
    expected = [0.1 / np.sqrt(p[labels == c, c].mean()) for c in range(3)]
    np.testing.assert_allclose(learner.prior_std[:, 0].detach().numpy(), expected, rtol=1e-5)


def test_texts_are_further_examples(encoder: DualEncoder) -> None:
    learner, (features, labels) = built("linear", encoder, texts_as_examples=True), data(encoder)
    more, of_them = learner.see(features, labels)
    assert torch.equal(more, torch.cat([features, learner.text_features]))
    assert of_them.tolist() == [*labels.tolist(), 0, 1, 2]
    assert learner.examples == len(features) + 3


# gda


def test_the_discriminant_is_that_of_scikit_learn_with_the_same_covariance(encoder: DualEncoder) -> None:
    features, labels = data(encoder)
    x, e = features.numpy().astype(float), encoder.joint_width
    means = np.stack([x[labels.numpy() == c].mean(0) for c in range(3)])
    around = x - means[labels.numpy()]
    covariance = np.cov(around.T)
    shrunk = ((len(x) - 1) * covariance + np.trace(covariance) * np.eye(e)) / e

    class Given:
        def fit(self, _: np.ndarray) -> "Given":
            self.covariance_ = shrunk
            return self

    theirs = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=Given()).fit(x, labels.numpy())
    weight, bias = discriminant(*moments(features, labels, 3))
    ours = softmax(x @ weight.numpy().T + bias.numpy())
    np.testing.assert_allclose(ours, theirs.predict_proba(x), atol=1e-5)


def test_parts_of_the_images_are_scored_by_the_others(encoder: DualEncoder) -> None:
    """κ and α by hand: five discriminants, each of which scores only images that it was not fitted to."""
    learner, (features, labels) = built("gda", encoder), data(encoder, noise=0.8)
    learner.see(features, labels)
    part = parts(labels, 5)
    assert [part[labels == c].tolist() for c in range(3)] == [[0, 1, 2, 3, 4, 0, 1, 2]] * 3
    held_out = torch.zeros(len(labels), 3)
    for fold in range(5):
        weight, bias = discriminant(*moments(features[part != fold], labels[part != fold], 3))
        held_out[part == fold] = features[part == fold] @ weight.T + bias
    zero_shot = encoder.logits(features, learner.text_features)
    kappa, alpha, _ = blended(zero_shot, held_out, labels)
    weight, bias = discriminant(*moments(features, labels, 3))
    expected = kappa * zero_shot + alpha * (features @ weight.T + bias)
    torch.testing.assert_close(learner(features).logits, expected, atol=1e-4, rtol=1e-4)


def test_two_images_of_a_class_already_teach_a_discriminant(encoder: DualEncoder) -> None:
    """Without one part, one image of each class remains, which has no covariance: the mean variance of all is used."""
    learner, (features, labels) = built("gda", encoder), data(encoder, per_class=2, noise=0.1)
    learner.see(features, labels)
    part, held_out, shrunk = parts(labels, 2), torch.zeros(6, 3), moments(features, labels, 3)[2]
    for fold in range(2):
        means, shares, _ = moments(features[part != fold], labels[part != fold], 3)
        weight, bias = discriminant(means, shares, shrunk.trace() / len(shrunk) * torch.eye(len(shrunk)).double())
        held_out[part == fold] = features[part == fold] @ weight.T + bias
    kappa, alpha, _ = blended(encoder.logits(features, learner.text_features), held_out, labels)
    assert (learner.text_weight.item(), learner.alpha) == pytest.approx((kappa, alpha), rel=1e-5)
    assert alpha > 0
    assert bool((learner(features).logits.argmax(-1) == labels).all())


def of_unequal_counts(encoder: DualEncoder) -> tuple[Tensor, Tensor]:
    """Eight, six and four images of the three classes."""
    features, labels = data(encoder, noise=0.8)
    keep = torch.arange(24) < torch.tensor([24, 18, 12])[labels]
    return features[keep], labels[keep]


def posterior_of_means(features: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean of each class mean, the number of its images, and P, by NumPy."""
    x, y = features.numpy().astype(float), labels.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(3)])
    squares = sum(np.outer(each, each) for each in x - means[y])
    e = x.shape[1]
    return means, np.bincount(y), e * np.linalg.inv(squares + np.trace(squares) / (len(x) - 1) * np.eye(e))


def test_drawn_discriminants_have_the_covariance_of_their_means(encoder: DualEncoder) -> None:
    """4000 draws, each number within six standard errors: a false alarm of all e² + e + 1 is rarer than 10⁻⁴."""
    learner, (features, labels) = built("gda", encoder), of_unequal_counts(encoder)
    learner.see(features, labels)
    count, (means, n, p) = 4000, posterior_of_means(features, labels)
    drawn = learner.draws(features, labels, count, torch.Generator().manual_seed(0))
    weight = np.stack([(each["weight"][0] - each["weight"][2]).numpy() for each in drawn]) / learner.alpha
    bias = np.array([float(each["bias"][0] - each["bias"][2]) for each in drawn]) / learner.alpha
    expected = p * (1 / n[0] + 1 / n[2])
    variances = np.diag(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) / count)
    assert (np.abs(np.cov(weight.T) - expected) < 6 * error).all()
    assert (np.abs(weight.mean(0) - p @ (means[0] - means[2])) < 6 * np.sqrt(variances / count)).all()
    squared, e = np.einsum("ci,ij,cj->c", means, p, means), len(p)
    middle = np.log(n) - squared / 2 - e / n / 2
    spread = squared / n + e / n**2 / 2
    assert abs(bias.mean() - (middle[0] - middle[2])) < 6 * np.sqrt((spread[0] + spread[2]) / count)


def test_drawn_discriminants_answer_as_densities_around_means_that_numpy_draws(encoder: DualEncoder) -> None:
    """2 × 2000 draws, nine probabilities within six standard errors: a false alarm is rarer than 10⁻⁷."""
    learner, (features, labels) = built("gda", encoder), of_unequal_counts(encoder)
    learner.see(features, labels)
    count, (means, n, p) = 2000, posterior_of_means(features, labels)
    asked, rng, root = (
        features[:3].numpy().astype(float),
        np.random.default_rng(1),
        np.linalg.cholesky(np.linalg.inv(p)),
    )
    zero_shot = encoder.logits(features[:3], learner.text_features).numpy().astype(float)
    expected = []
    for _ in range(count):
        drawn = means + (root @ rng.normal(size=means.T.shape)).T / np.sqrt(n)[:, None]
        apart = asked[:, None] - drawn
        density = np.log(n / n.sum()) - np.einsum("bci,ij,bcj->bc", apart, p, apart) / 2
        expected.append(softmax(learner.text_weight.item() * zero_shot + learner.alpha * density))
    given = []
    for each in learner.draws(features, labels, count, torch.Generator().manual_seed(2)):
        learner.load_state_dict({**learner.state_dict(), **each})
        given.append(softmax(learner(features[:3]).logits.numpy().astype(float)))
    error = np.sqrt((np.var(expected, axis=0) + np.var(given, axis=0)) / count)
    assert np.std(given, axis=0).max() > 0.01
    assert (np.abs(np.mean(given, axis=0) - np.mean(expected, axis=0)) < 6 * error + 1e-6).all()


# Caches


@pytest.mark.parametrize("method", ["tip-adapter", "tip-adapter-f"])
def test_the_cache_has_the_images_and_sharpness_is_chosen_without_the_own_key(
    encoder: DualEncoder, method: str
) -> None:
    from rebapl.learners.tip_adapter import SHARPNESSES

    learner, (features, labels) = built(method, encoder), data(encoder, noise=0.8)
    learner.see(features, labels)
    x, y = features.numpy().astype(float), labels.numpy()
    zero_shot = encoder.logits(features, learner.text_features)
    losses = []
    for beta in SHARPNESSES:
        sums = [[[np.exp(-beta * (1 - x[n] @ x[m])) for m in range(len(y)) if m != n and y[m] == c]
                 for c in range(3)] for n in range(len(y))]  # fmt: skip
        others = np.array([[8 * np.mean(each) for each in row] for row in sums])  # as of eight images each
        losses.append(blended(zero_shot, torch.tensor(others), labels)[2])
    assert learner.sharpness.item() == SHARPNESSES[int(np.argmin(losses))]
    assert torch.equal(learner.keys, features)
    assert torch.equal(learner.values > 0, torch.eye(3)[labels] > 0)


def test_resetting_gives_the_keys_back(encoder: DualEncoder) -> None:
    learner, (features, labels) = built("tip-adapter-f", encoder), data(encoder)
    learner.see(features, labels)
    with torch.no_grad():
        learner.keys.add_(1.0)
    learner.reset(torch.Generator())
    assert torch.equal(learner.keys, features)


def test_kernel_ridge_regression_left_out_is_that_of_fits_without_the_image(encoder: DualEncoder) -> None:
    """Scikit-learn's regression, fitted without each image in turn at the sharpness and ridge that were chosen."""
    from sklearn.kernel_ridge import KernelRidge

    from rebapl.learners.proker import RIDGES

    learner, (features, labels) = built("proker", encoder), data(encoder, noise=0.8)
    learner.see(features, labels)
    x, beta = features.numpy().astype(float), learner.sharpness.item()
    zero_shot = encoder.logits(features, learner.text_features)
    wrong = np.eye(3)[labels.numpy()] - softmax(zero_shot.numpy().astype(float))
    tried = []
    for ridge in RIDGES:
        model = KernelRidge(alpha=ridge, kernel="rbf", gamma=beta / 2)  # ‖x − f‖² = 2 (1 − x·f)
        left_out = [
            model.fit(np.delete(x, n, 0), np.delete(wrong, n, 0)).predict(x[n : n + 1])[0] for n in range(len(x))
        ]
        kappa, alpha, loss = blended(zero_shot, torch.tensor(np.array(left_out)), labels)
        tried.append((loss, kappa, alpha * model.fit(x, wrong).predict(x)))
    _, kappa, expected = min(tried, key=lambda each: each[0])
    assert learner.text_weight.item() == pytest.approx(kappa, abs=1e-4)
    np.testing.assert_allclose(learner.extra(features).numpy(), expected, atol=1e-4)


def test_drawn_coefficients_are_those_of_the_gaussian_process_of_scikit_learn(encoder: DualEncoder) -> None:
    """Draws agree with the process on the training images. Elsewhere, their variance lacks a known part."""
    from scipy.stats import multivariate_normal
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    from rebapl.learners.proker import coefficients

    (features, labels), (others, _), beta, ridge = data(encoder, noise=0.8), data(encoder, 2, seed=5), 3.0, 0.1
    x, new = features.numpy().astype(float), others.numpy().astype(float)
    wrong = np.eye(3)[labels.numpy()] - 0.3 * np.random.default_rng(0).random((len(x), 3))
    between, across = (np.exp(-beta * (1 - each @ x.T)) for each in (x, new))
    np.fill_diagonal(between, 1)
    mean, root = (each.numpy() for each in coefficients(torch.tensor(between), torch.tensor(wrong), ridge))

    def evidence(scale: float) -> float:
        whole = multivariate_normal(np.zeros(len(x)), scale * (between + ridge * np.eye(len(x))))
        return float(sum(whole.logpdf(wrong.T)))

    scale = np.trace(wrong.T @ np.linalg.inv(between + ridge * np.eye(len(x))) @ wrong) / wrong.size
    best = minimize_scalar(lambda log: -evidence(np.exp(log)), bounds=(-8, 4), method="bounded").x
    assert np.exp(best) == pytest.approx(scale, rel=1e-4)
    process = GaussianProcessRegressor(
        ConstantKernel(scale, "fixed") * RBF(beta**-0.5, "fixed"), alpha=scale * ridge, optimizer=None
    ).fit(x, wrong)
    of_process, covariance = process.predict(x, return_cov=True)
    np.testing.assert_allclose(between @ mean, of_process, atol=1e-5)
    ours = between @ root @ root.T @ between
    for c in range(3):
        np.testing.assert_allclose(ours, covariance[..., c], atol=1e-5)
    of_process, covariance = process.predict(new, return_cov=True)
    lacks = scale * (np.exp(-beta * (1 - new @ new.T)) - across @ np.linalg.inv(between) @ across.T)
    np.testing.assert_allclose(across @ mean, of_process, atol=1e-5)
    np.testing.assert_allclose(across @ root @ root.T @ across.T + lacks, covariance[..., 0], atol=1e-5)


def test_coefficients_are_drawn_around_the_mean_with_that_covariance(encoder: DualEncoder) -> None:
    """4000 draws, each of 24² + 24 numbers within six standard errors: a false alarm is rarer than 10⁻⁵."""
    from rebapl.learners.proker import coefficients
    from rebapl.learners.tip_adapter import kernel

    learner, (features, labels), count = built("proker", encoder), data(encoder, noise=0.8), 4000
    learner.see(features, labels)
    drawn = learner.draws(features, labels, count, torch.Generator().manual_seed(0))
    answers = torch.stack([kernel(features, features, learner.sharpness) @ each["values"] for each in drawn])
    between = kernel(features.double(), features.double(), learner.sharpness.double())
    _, root = coefficients(between, learner.wrong(features, labels), learner.ridge)
    expected = (learner.alpha**2 * between @ root @ root.mT @ between).numpy()
    variances = np.diag(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) / count)
    assert variances.min() > 0
    assert (np.abs(np.cov(answers[..., 1].numpy().T) - expected) < 6 * error).all()
    mean = answers.mean(0)[:, 1].numpy()
    assert (np.abs(mean - learner.extra(features)[:, 1].numpy()) < 6 * np.sqrt(variances / count) + 1e-5).all()


def test_an_image_that_is_there_twice_does_not_throw_the_coefficients_far(encoder: DualEncoder) -> None:
    learner, (features, labels) = built("proker", encoder), data(encoder, noise=0.8)
    features, labels = torch.cat([features, features[:3]]), torch.cat([labels, labels[:3]])
    learner.see(features, labels)
    drawn = learner.draws(features, labels, 3, torch.Generator().manual_seed(0))
    assert all(each["values"].abs().max() < 1e3 for each in drawn)


# lp++


def test_it_starts_from_prototypes_that_were_weighed_without_the_own_image(encoder: DualEncoder) -> None:
    learner, (features, labels) = built("lp++", encoder), data(encoder, noise=0.8)
    learner.see(features, labels)
    x, y = features.numpy().astype(float), labels.numpy()
    left_out = np.array(
        [[x[n] @ x[(y == c) & (np.arange(len(y)) != n)].mean(0) for c in range(3)] for n in range(len(y))]
    )
    zero_shot = encoder.logits(features, learner.text_features)
    kappa, share, _ = blended(zero_shot, encoder.logit_scale * torch.tensor(left_out), labels)
    prototypes = np.stack([x[y == c].mean(0) for c in range(3)])
    np.testing.assert_allclose(learner.weight.detach().numpy(), share * prototypes, atol=1e-4)
    np.testing.assert_allclose(learner.blend.detach().numpy(), kappa, atol=1e-4)
