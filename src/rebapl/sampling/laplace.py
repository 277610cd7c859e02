"""Laplace's approximation: samples from the Gaussian at a mode, instead of the mode itself.

    p(θ | data) ∝ exp(−N·L(θ)) N(θ; 0, δ⁻¹ I)  ≈  N(θ*, (H + δ I)⁻¹),
    H = Σ_n J_nᵀ (diag p_n − p_n p_nᵀ) J_n,

with the mode θ* that an optimiser found, the probabilities p_n of image n and the Jacobian J_n (C, P) of its logits. H
is the generalised Gauss-Newton matrix. For cross-entropy it is the Fisher information, and it is the Hessian itself if
the logits are linear in θ (Daxberger et al., Laplace Redux, 2021). It is the curvature of the likelihood of the labels.
Other terms that a method adds to its loss do not enter it, except for a prior that the learner states.

`structure` says which part of H is computed:

* `full`: all of it, P² numbers;
* `kronecker`: Σ_n ≈ (mean over n of g Λ_n g) ⊗ (Σ_n a_n a_nᵀ), for learners that are `LinearInParameters`;
* `diagonal`: its diagonal. If there are more than `PASSES` pairs of image and class, the expectation over the classes
  is estimated from one random label for each image.

`auto` is full up to `FULL` parameters; beyond, it is Kronecker if the learner is linear, and else diagonal. `prior`
chooses δ: `recipe` takes N·weight decay plus the precision that the learner's loss states, and `evidence` takes the δ
with the greatest marginal likelihood at this mode and curvature; see `rebapl.curvature`.

None of this is needed for a learner whose posterior is known (`Conjugate`): it draws from its posterior itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    batches: Iterable[Tensor],
    images: int,
    structure: str,
    stream: torch.Generator,
) -> Curvature:
    """H of a learner at its parameters, summed over all batches, which have this number of `images` together.

    Only one batch is in memory at a time.
    """
    tensors = list(parameters.values())
    count, linear = sum(p.numel() for p in tensors), isinstance(learner, LinearInParameters)
    if structure == "auto":
        structure = "full" if count <= FULL else "kronecker" if linear else "diagonal"
    with evaluating(learner):
        if structure == "kronecker":
            if not isinstance(learner, LinearInParameters):
                raise UserError(
                    "laplace.structure is 'kronecker', and this learner's logits are not linear in its parameters: "
                    "take 'auto', 'full' or 'diagonal'"
                )
            parts = [(*learner.linear_inputs(batch), learner(batch).logits) for batch in batches]
            inputs = torch.cat([of_batch for of_batch, _, _ in parts]).double()
            gains = parts[0][1].double()[:, None]
            probabilities = torch.cat([logits for _, _, logits in parts]).double().softmax(-1)
            of_classes = gains * softmax_curvature(probabilities) * gains.mT
            return Curvature.kronecker(of_classes, inputs.mT @ inputs)
        full = structure == "full"
        total = torch.zeros((count, count) if full else (count,), dtype=torch.float64)
        for image in (image for batch in batches for image in batch.split(1)):
            rows = _roots(learner, tensors, image, stream, most=None if full else PASSES // images)
            total += rows.mT @ rows if full else rows.square().sum(0)
    return Curvature.full(total) if full else Curvature.diagonal(total)


def _roots(
    learner: Learnable[Any], tensors: list[Tensor], image: Tensor, stream: torch.Generator, most: int | None
) -> Tensor:
    """The rows √p_c ∇ log p_c (C, P) of an image (1, …), whose outer products sum to its share of H.

    If there are more than `most` classes, ∇ log p_y (1, P) of one random label y.
    """
    with torch.enable_grad():
        logs = learner(image).logits[0].log_softmax(-1).unbind()
    probabilities = torch.stack(logs).detach().exp()
    if most is not None and len(logs) > most:
        classes = [(int(torch.multinomial(probabilities.cpu(), 1, generator=stream)), 1.0)]
    else:
        classes = [(c, probability**0.5) for c, probability in enumerate(probabilities.tolist())]
    rows = []
    for c, factor in classes:
        gradient = torch.autograd.grad(logs[c], tensors, retain_graph=True, materialize_grads=True)
        rows.append(factor * torch.cat([part.flatten() for part in gradient]).double().cpu())
    return torch.stack(rows)


def draws(
    learner: Learnable[Any],
    parameters: Mapping[str, Tensor],
    batches: Iterable[Tensor],
    settings: Laplace,
    *,
    images: int,
    num_data: int,
    decay: float,
    stream: torch.Generator,
) -> list[dict[str, Tensor]]:
    """Samples from the Gaussian at the current parameters, which are a mode: name → float32 tensor on the CPU.

    `batches` are those of one epoch, with this number of `images` together; there are `num_data` training images.
    `decay` is the weight decay with which the mode was found, and `stream` is a generator of the CPU.
    """
    curvature = curvature_of(learner, parameters, batches, images, settings.structure, stream)
    if not curvature.eigenvalues.any():
        raise UserError("laplace: the answers do not depend on the parameters at the end of this training")
    if images != num_data:  # an epoch leaves out an incomplete last batch
        curvature = Curvature(curvature.eigenvalues * (num_data / images), curvature.rotate)
    mode = torch.cat([p.detach().flatten() for p in parameters.values()]).double().cpu()
    precision = num_data * decay + (learner.prior_precision if isinstance(learner, StatesPrior) else 0.0)
    if settings.prior == "evidence":
        precision = curvature.best_precision(mode.square().sum().item())
    if precision <= 0:
        raise UserError("laplace.prior is 'recipe', and the recipe has no weight decay: take 'evidence'")
    thetas = mode + curvature.draw(settings.samples, precision, stream)
    sizes = [p.numel() for p in parameters.values()]
    return [
        {
            name: part.float().view_as(p).clone()
            for (name, p), part in zip(parameters.items(), theta.split(sizes), strict=True)
        }
        for theta in thetas
    ]
