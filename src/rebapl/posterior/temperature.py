"""One temperature that softens or sharpens probabilities, fitted on held-out images (Guo et al., 2017).

    p_τ(c) ∝ p(c)^(1/τ),    β = 1/τ = argmin of  −Σ_n log p_τ(y_n|x_n) + κ·(β − log β − 1)

p are the probabilities of all samples together. The first term is convex in β. The second is a prior towards τ = 1: up
to a constant, it is minus the logarithm of the Gamma density of β with shape 1 + κ and rate κ, whose mode is 1. It is
convex, too, so there is one minimum. Near τ = 1 it weighs as much as κ images whose log p(c) varies by one nat (in
standard deviation) among the classes: a few images cannot move τ far, and many images still decide. κ = 0 is plain
temperature scaling.

How `PRIOR` was chosen: `python tools/temperature_prior.py` fits τ on n = 4, 8, 16, 32 and 64 images, drawn 50 times,
for posteriors on the tasks that come with the package, and takes the κ in {0, 1, 2, 4 … 256} with the lowest NLL on the
remaining images, on average over posteriors, draws and n.

**Class names that the temperature was not fitted for.** Prompts that were learned for some classes may push the texts
of other classes apart, and answers among these become too sure. Distance-aware calibration (Wang et al.,
Open-Vocabulary Calibration for Fine-tuned CLIP, 2024) divides their logits by more:

    τ' = τ / γ,    γ = min(1, exp(−(D − D_0)))

D_i is the mean distance from the text features of class i to the k nearest text features of the classes that τ was
fitted with. D is the mean of the D_i, and D_0 is the same with the frozen text features. *Published*: the form of γ by
class, exp(−D_i) / exp(−D_0i), Euclidean distances of normalised features, and γ_i = 1 for a class that τ was fitted
with. *Ours*: k = 10 (or as many as there are), the mean of log γ over samples by their weights, one γ for all class
names, which is the geometric mean over the classes (the authors take the γ of each image's likeliest class), and the
bound γ ≤ 1. So an answer has one temperature, all images are softened equally, and answers among new classes are never
sharpened: on the tasks that come with the package, texts of new classes often move nearer, and without this bound their
answers were too sure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import pydantic
import scipy
import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.learners import Learner
from rebapl.posterior.per_sample import encode_classes, unstacked
from rebapl.posterior.selective import check_labels
from rebapl.wording import number_of

RANGE = (0.05, 20.0)
"""The smallest and the largest β = 1/τ."""

PRIOR = 8.0
"""κ: how strongly the temperature of a posterior is held near 1. Scores that compare posteriors at τ have κ = 0."""

NEAREST = 10
"""k: the number of class names that a new class name is compared with."""


@dataclass(frozen=True)
class Temperature:
    """τ, which was fitted on `images` held-out images of the classes `class_names`, for this averaging.

    `images` is 0 if it was set by hand. For other class names, see `distance_factor`.
    """

    __pydantic_config__ = pydantic.ConfigDict(allow_inf_nan=False, extra="forbid")
    value: Annotated[float, pydantic.Field(gt=0)]
    average: str
    class_names: tuple[str, ...]
    images: int

    def __str__(self) -> str:
        origin = f"fitted on {number_of(self.images, 'image')}" if self.images else "given by hand"
        return f"temperature of the probabilities: {self.value:.2f}, {origin}"


def tempered(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/τ), normalised, of probabilities (…, C).

    >>> tempered(torch.tensor([[0.8, 0.2]]), 2.0)
    tensor([[0.6667, 0.3333]])
    """
    return (_logs(probabilities) / temperature).softmax(-1).to(probabilities.dtype)


def fit_temperature(probabilities: Tensor, labels: Tensor, prior: float = 0.0) -> float:
    """τ for held-out probabilities (N, C) and labels (N,). `prior` is κ.

    >>> sure = torch.tensor([[0.9, 0.1]]).expand(4, 2)
    >>> round(fit_temperature(sure, torch.tensor([0, 0, 0, 1])), 2)  # right three times in four: log 9 / log 3
    2.0
    >>> round(fit_temperature(sure, torch.tensor([0, 0, 0, 1]), prior=4), 2)
    1.23
    """
    check_labels(labels, len(probabilities))
    if not 0 <= prior < math.inf:
        raise UserError(f"prior = {prior}: how strongly the temperature is held near 1 is a number, at least 0")
    logs, prior_per_image = _logs(probabilities), prior / len(labels)

    def loss(beta: float) -> float:
        fit = torch.nn.functional.cross_entropy(beta * logs, labels).item()
        return fit + prior_per_image * (beta - math.log(beta))

    return 1 / float(scipy.optimize.minimize_scalar(loss, bounds=RANGE, method="bounded", options={"xatol": 1e-4}).x)


def text_factor(learner: Learner, samples: Mapping[str, Tensor], weights: Tensor, fitted: Sequence[str]) -> float:
    """γ of the class names that a learner is bound to, for stacked samples with weights (S,).

    It is 1 if the temperature was `fitted` with all of these class names, and if texts depend on the image.
    """
    known = torch.tensor([name in fitted for name in learner.class_names])
    if bool(known.all()):
        return 1.0
    on_device = {name: stack.to(learner.encoder.device) for name, stack in samples.items()}
    by_sample, clouds, frozen = unstacked(on_device, len(weights)), [], []
    for bound in (learner.bind(fitted), learner.twin()):
        with torch.no_grad():
            texts = [classes.get("text") for classes in encode_classes(bound, by_sample)]
        frozen_texts = bound.frozen_cloud("text", None)
        if frozen_texts is None or any(text is None or text.ndim != 2 for text in texts):
            return 1.0
        clouds.append(torch.stack([_directions(text) for text in texts if text is not None]))
        frozen.append(_directions(frozen_texts))
    log_factors = distance_factor(clouds[0], clouds[1], known, (frozen[0], frozen[1]))
    return min(1.0, (weights @ log_factors).exp().item())


def _directions(texts: Tensor) -> Tensor:
    """Text features (C, e) scaled to length 1; the weight vectors of a head have other lengths."""
    return torch.nn.functional.normalize(texts.float().cpu(), dim=-1)


def distance_factor(fitted: Tensor, bound: Tensor, known: Tensor, frozen: tuple[Tensor, Tensor]) -> Tensor:
    """log γ (S,) of each sample, from text features (S, F, e) of the fitted classes and (S, C, e) of the bound ones.

    `known` (C,) marks the bound classes that are among the fitted ones. `frozen` has the features (F, e) and (C, e) of
    the same classes by the frozen backbone.

    >>> near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> distance_factor(near[None], far[None], torch.tensor([False]), (near, near)).exp()  # e^(−√2)
    tensor([0.2431])
    """

    def nearest(of: Tensor, to: Tensor) -> Tensor:
        # From differences of points: from their products, which is quicker, equal points would be some way apart.
        distances = torch.cdist(of, to, compute_mode="donot_use_mm_for_euclid_dist")
        return distances.sort(dim=-1).values[..., :NEAREST].mean(-1).masked_fill(known, 0.0).mean(-1)

    return nearest(frozen[1], frozen[0]) - nearest(bound, fitted)


def _logs(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(torch.finfo(torch.float32).tiny).log()
