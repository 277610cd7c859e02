"""Laplace's approximation: samples from the Gaussian at a mode, in place of the mode.

    p(θ | data) ∝ exp(−N·L(θ)) N(θ; 0, δ⁻¹ I)  ≈  N(θ*, (H + δ I)⁻¹),
    H = Σ_n J_nᵀ (diag p_n − p_n p_nᵀ) J_n,

with the mode θ* that an optimiser found, the probabilities p_n of image n and the Jacobian J_n (C, P) of its logits.
H is the generalised Gauss-Newton matrix, which for cross-entropy is the Fisher information, and the Hessian itself
where logits are linear in θ (Daxberger et al., Laplace Redux, 2021). It is the curvature of the likelihood of the
labels: what a method adds to its loss beside cross-entropy is no part of it, but for a prior that the learner states.

`structure` says how much of H is kept:

* `full`: all of it, P² numbers;
* `kronecker`: Σ_n ≈ (mean over n of g Λ_n g) ⊗ (Σ_n a_n a_nᵀ), for learners that are `LinearInParameters`;
* `diagonal`: its diagonal. If there are more than `PASSES` pairs of image and class, the expectation over the classes
  is taken from one label drawn for each image.

`auto` is full up to `FULL` parameters, then Kronecker where the learner is linear, and else diagonal. `prior` says
which δ counts: that of the recipe (N·weight decay, and what the learner's loss states), or by the `evidence` the one
with the greatest marginal likelihood at this mode and curvature; see `rebapl.curvature`.

A learner without steps whose posterior is known (`Conjugate`) draws from that itself, and none of this is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rebapl.curvature import Curvature, softmax_curvature
from rebapl.errors import UserError
from rebapl.learnable import Learnable, LinearInParameters, StatesPrior
from rebapl.sampling.objective import evaluating
from rebapl.sampling.settings import Laplace

FULL = 1500
PASSES = 4096


def curvature_of(
    learner: Learnable[Any],
    parameters: Mapping[str, Tensor],
    batches: Iterator[Tensor],
    structure: str,
    stream: torch.Generator,
) -> tuple[Curvature, int]:
    """H of a learner at its parameters, and over how many images: those of all the batches."""
    tensors = list(parameters.values())
    count, linear = sum(p.numel() for p in tensors), isinstance(learner, LinearInParameters)
    if structure == "auto":
        structure = "full" if count <= FULL else "kronecker" if linear else "diagonal"
    images = torch.cat(list(batches))
    with evaluating(learner):
        if structure == "kronecker":
            if not isinstance(learner, LinearInParameters):
                raise UserError("laplace.structure is 'kronecker', and this learner's logits are not linear in them")
            inputs, gains = learner.linear_inputs(images)
            gains = gains.double()[:, None]
            of_classes = gains * softmax_curvature(learner(images).logits.double().softmax(-1)) * gains.mT
            return Curvature.kronecker(of_classes, inputs.double().mT @ inputs.double()), len(images)
        whole = torch.zeros((count, count) if structure == "full" else (count,), dtype=torch.float64)
        for rows in _roots(learner, tensors, images, stream, structure == "full"):
            whole += rows.mT @ rows if structure == "full" else rows.square().sum(0)
    return (Curvature.full(whole) if structure == "full" else Curvature.diagonal(whole)), len(images)


def _roots(
    learner: Learnable[Any], tensors: list[Tensor], images: Tensor, stream: torch.Generator, exact: bool
) -> Iterator[Tensor]:
    """For each image the rows √p_c ∇ log p_c (C, P), whose products sum to H; or ∇ log p_y (1, P) of a label drawn."""
    for image in images.split(1):
        with torch.enable_grad():
            logs = learner(image).logits[0].log_softmax(-1).unbind()
        chances = torch.stack(logs).detach().exp()
        if not exact and len(images) * len(logs) > PASSES:
            picked = [(int(torch.multinomial(chances.cpu(), 1, generator=stream)), 1.0)]
        else:
            picked = [(c, chance**0.5) for c, chance in enumerate(chances.tolist())]
        rows = []
        for c, root in picked:
            gradient = torch.autograd.grad(logs[c], tensors, retain_graph=True, materialize_grads=True)
            rows.append(root * torch.cat([each.flatten() for each in gradient]).double().cpu())
        yield torch.stack(rows)


def draws(
    learner: Learnable[Any],
    parameters: Mapping[str, Tensor],
    batches: Iterator[Tensor],
    settings: Laplace,
    *,
    num_data: int,
    decay: float,
    stream: torch.Generator,
) -> list[dict[str, Tensor]]:
    """Samples of the parameters, which are at a mode: name → float32 tensor on the CPU.

    `batches` are an epoch of images, `decay` the weight decay with which the mode was found, and `stream` a generator
    on the CPU.
    """
    curvature, seen = curvature_of(learner, parameters, batches, settings.structure, stream)
    if not curvature.eigenvalues.any():
        raise UserError("laplace: the answers do not depend on the parameters at the end of this training")
    if seen != num_data:  # an incomplete last batch was dropped
        curvature = Curvature(curvature.eigenvalues * (num_data / seen), curvature.rotate)
    mode = torch.cat([p.detach().flatten() for p in parameters.values()]).double().cpu()
    precision = num_data * decay + (learner.prior_precision if isinstance(learner, StatesPrior) else 0.0)
    if settings.prior == "evidence":
        precision = curvature.best_precision(mode.square().sum().item())
    if precision <= 0:
        raise UserError("laplace.prior is 'recipe', and the recipe has no weight decay: take 'evidence'")
    found = mode + curvature.draw(settings.samples, precision, stream)
    sizes = [p.numel() for p in parameters.values()]
    return [
        {
            name: part.float().view_as(p).clone()
            for (name, p), part in zip(parameters.items(), row.split(sizes), strict=True)
        }
        for row in found
    ]
