"""Choose how strongly a temperature is held near 1: the experiment behind `rebapl.posterior.temperature.PRIOR`.

For posteriors on the embedded tasks, τ is fitted on n held-out images of the base classes and scored on the remaining
ones, with 50 random draws of the n images. The chosen κ has the lowest NLL on average over posteriors, draws and n. All
these images are validation images; no test image is used.

    python tools/temperature_prior.py
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from rebapl import fit, load_backbone, load_task
from rebapl.evaluation.scores import scores
from rebapl.evaluation.tasks import part_labels, predict_part
from rebapl.posterior.temperature import fit_temperature, tempered
from rebapl.randomness import generator

TASKS = ("digits", "letters", "shapes")
POSTERIORS = (("maple", "mle"), ("maple", "ensemble"), ("vpt", "mle"))
SHOTS = (4, 16)
IMAGES = (4, 8, 16, 32, 64)
PRIORS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
DRAWS = 50


def held_out_answers() -> list[tuple[str, Tensor, Tensor]]:
    """The name of each posterior, its probabilities for all validation images of the base classes, and their labels."""
    encoder, answers = load_backbone("mini"), []
    for data, shots, (method, inference) in product(TASKS, SHOTS, POSTERIORS):
        task = load_task(data, shots=shots)
        names = list(task.train.class_names)
        items = [
            each._replace(label=names.index(each.class_name)) for each in task.dataset.val if each.class_name in names
        ]
        part = replace(task.val, items=items)
        prediction = predict_part(fit(task, encoder, method, inference), part)
        answers.append((f"{data} {shots} {method} {inference}", prediction.probabilities, part_labels(part)))
    return answers


def mean_scores(probabilities: Tensor, labels: Tensor, images: int, prior: float | None) -> Tensor:
    """NLL and ECE (2,) on the remaining images after τ was fitted on `images`: means over draws. None leaves τ at 1."""
    rows = []
    for draw in range(DRAWS):
        order = torch.randperm(len(labels), generator=generator(draw, "temperature prior"))
        some, rest = order[:images], order[images:]
        tau = 1.0 if prior is None else fit_temperature(probabilities[some], labels[some], prior)
        left = scores(tempered(probabilities[rest], tau), labels[rest])
        rows.append(torch.tensor([left["nll"], left["ece"]]))
    return torch.stack(rows).mean(0)


def main() -> None:
    answers = held_out_answers()
    for name, probabilities, labels in answers:
        print(f"{name}: best τ on all images {fit_temperature(probabilities, labels):.2f}", flush=True)
    print("κ, and NLL / ECE by the number of images that τ was fitted on:", *IMAGES)
    means = {}
    for prior in (None, *PRIORS):
        table = torch.stack([torch.stack([mean_scores(p, y, n, prior) for n in IMAGES]) for _, p, y in answers]).mean(0)
        means[prior] = table[:, 0].mean().item()
        cells = "  ".join(f"{nll:.4f} / {ece:.1f}" for nll, ece in table.tolist())
        print(f"{'τ = 1' if prior is None else prior}: {cells}  mean {means[prior]:.4f}", flush=True)
    print("lowest:", min(PRIORS, key=lambda prior: means[prior]))


if __name__ == "__main__":
    main()
