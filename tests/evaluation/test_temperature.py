"""The temperature against a grid and against scikit-learn's scaling; the total variation against its definition."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import log_loss

from rebapl.errors import UserError
from rebapl.evaluation.diversity import total_variation_matrix
from rebapl.evaluation.temperature import fit_temperature, tempered


def overconfident(n: int = 400, classes: int = 5, factor: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels drawn from probabilities, and these probabilities sharpened by a factor that is the right temperature."""
    stream = torch.Generator().manual_seed(0)
    logits = torch.randn(n, classes, generator=stream)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=stream)[:, 0]
    return (factor * logits).softmax(-1), labels


def test_the_temperature_is_the_best_of_a_grid_and_undoes_the_sharpening() -> None:
    probabilities, labels = overconfident()
    found = fit_temperature(probabilities, labels)
    grid = np.geomspace(1, 10, 301)
    losses = [log_loss(labels, softmax(np.log(probabilities.double().numpy()) / t, axis=1)) for t in grid]
    assert found == pytest.approx(grid[int(np.argmin(losses))], rel=0.01)
    assert found == pytest.approx(3.0, rel=0.2)  # 400 labels: about two standard errors


def test_a_temperature_of_one_changes_nothing_and_a_high_one_levels() -> None:
    probabilities, _ = overconfident()
    torch.testing.assert_close(tempered(probabilities, 1.0), probabilities, atol=1e-6, rtol=1e-5)
    assert torch.equal(tempered(probabilities, 7.0).argmax(-1), probabilities.argmax(-1))
    torch.testing.assert_close(tempered(probabilities, 1e6), torch.full_like(probabilities, 0.2), atol=1e-4, rtol=0)
    assert tempered(torch.tensor([[1.0, 0.0]]), 2.0).isfinite().all()


def test_labels_and_images_must_match() -> None:
    with pytest.raises(UserError, match="0 labels for 3 images"):
        fit_temperature(torch.full((3, 2), 0.5), torch.tensor([], dtype=torch.long))


def test_total_variation_is_half_the_sum_of_differences() -> None:
    probabilities = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
    found = total_variation_matrix(probabilities)
    for s in range(4):
        for t in range(4):
            each = [0.5 * sum(abs(probabilities[s, n, c] - probabilities[t, n, c]) for c in range(3)) for n in range(6)]
            assert found[s, t].item() == pytest.approx(float(sum(each)) / 6, abs=1e-6)
