"""Second implementations of heads, image by image and class by class, from fitted or learned parameters.

How they find them is tested in `tests/learners/test_heads.py`.
"""

import torch
import torch.nn.functional as F
from plain import Parameters, Task, unit
from torch import Tensor

from rebapl.learners import Learner

PER_CLASS = 3
"""The number of images of each class from which a head of the shared suite learns."""


def show(learner: Learner) -> None:
    """Let a head learn from features near its texts. Nothing happens for other learners."""
    if learner.learns_from_features:
        stream = torch.Generator().manual_seed(11)
        labels = torch.arange(len(learner.class_names)).repeat(PER_CLASS)
        noise = torch.randn(len(labels), learner.encoder.joint_width, generator=stream)
        learner.see(unit(learner.text_features[labels] + 0.3 * noise), labels)


def _answer(task: Task, rows: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    logits = torch.stack([torch.stack(row) for row in rows])
    return logits, F.cross_entropy(logits, task.labels)


def linear(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    texts, examples = unit(task.templated(task.template)), PER_CLASS * len(task.names)
    if task.settings.get("texts_as_examples"):
        examples += len(task.names)
    if task.settings.get("start") == "zero":
        texts = torch.zeros_like(texts)
    weights = [p["text_weight"] * t + std * r for t, std, r in zip(texts, p["prior_std"], p["residual"], strict=True)]
    logits, loss = _answer(task, [[task.clip.scale * (x @ w) for w in weights] for x in task.frozen_images()])
    return logits, loss + sum(r @ r for r in p["residual"]) / (2 * examples)


def lp_plus(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    texts = unit(task.templated(task.template))
    weights = [w + a * t for t, a, w in zip(texts, p["blend"], p["weight"], strict=True)]
    return _answer(task, [[task.clip.scale * (x @ w) for w in weights] for x in task.frozen_images()])


def gda(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    classes = list(zip(unit(task.templated(task.template)), p["weight"], p["bias"], strict=True))
    kappa = p["text_weight"][0] * task.clip.scale
    return _answer(task, [[kappa * (x @ t) + x @ w + b for t, w, b in classes] for x in task.frozen_images()])


def cache(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    """Tip-Adapter, Tip-Adapter-F and ProKeR, which differ in the values and in whether the keys are trained."""
    texts, kappa, beta = unit(task.templated(task.template)), p["text_weight"][0] * task.clip.scale, p["sharpness"][0]
    rows = []
    for x in task.frozen_images():
        alike = [torch.exp(-beta * (1 - x @ key)) for key in p["keys"]]
        rows.append(
            [
                kappa * (x @ t) + sum(a * v[c] for a, v in zip(alike, p["values"], strict=True))
                for c, t in enumerate(texts)
            ]
        )
    return _answer(task, rows)
