"""Training and prediction on a GPU agree with the CPU, in float32 and with the towers in bfloat16."""

from typing import Any

import pytest
import torch

from rebapl.backbones import load_backbone
from rebapl.data.task import Task, load_task
from rebapl.evaluation.tasks import evaluate
from rebapl.learners import METHODS
from rebapl.training.fit import fit

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("digits", shots=4, seed=1, test_images=100)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-2), (torch.bfloat16, 0.15)])
def test_predictions_after_training_agree_with_the_cpu(task: Task, dtype: torch.dtype, tolerance: float) -> None:
    """Mean absolute difference of probabilities after 20 steps of CoOp, whose start is the same everywhere."""
    views = torch.randint(256, (40, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    settings = {"epochs": 5, "inference_settings": {"batch": 5}}
    cpu = fit(task, load_backbone("mini"), "coop", "mle", **settings).predict_views(views).probabilities
    gpu = fit(task, load_backbone("mini", "cuda", dtype), "coop", "mle", **settings).predict_views(views).probabilities
    assert (cpu - gpu.cpu()).abs().mean() < tolerance


@pytest.mark.parametrize("inference", ["mle", "rebapl", "svgd"])
@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.learner.recipe.epochs > 0])
def test_every_method_trains_and_predicts_in_bfloat16(task: Task, method: str, inference: str) -> None:
    encoder = load_backbone("mini", "cuda", torch.bfloat16)
    settings: dict[str, Any] = {"batch": 5}
    if inference == "mle":
        settings["averaging"] = None
    if inference == "rebapl" and METHODS.find(method).learner.repels_per_image:
        settings["repulsion"] = {"images": 4, "pool": 8}
    posterior = fit(task, encoder, method, inference, epochs=2, inference_settings=settings)
    assert all(p.dtype == torch.float32 for p in posterior.learner.parameters())
    for part in evaluate(posterior, task).values():
        assert part["accuracy"] > 40  # chance is 20
        assert part["nll"] < 5
