"""Second implementations of ProDA, variational Bayesian prompts, VaMP and APP in training mode; see `plain`.

Their noise has seed 4, as in the suite.
"""

import torch
import torch.nn.functional as F
from plain import Parameters, Task, around, deep_images, deep_text, fixed_words, layers_of, unit
from torch import Tensor


def _noise() -> torch.Generator:
    return torch.Generator().manual_seed(4)


def proda(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    count = len(p["context"])
    quarter = count // 4
    positions = ["front"] * quarter + ["middle"] * quarter + ["end"] * (count - 2 * quarter)
    some = task.settings.get("at_once", 4)
    chosen = torch.randperm(count, generator=_noise())[:some].tolist() if some < count else range(count)
    text = torch.stack(
        [torch.stack([around(task, name, p["context"][i], positions[i]) for i in chosen]) for name in task.names]
    )
    images = task.frozen_images()
    logits = task.clip.scale * images @ text.mean(1).T
    bounds = []
    for x, y, row in zip(images, task.labels.tolist(), logits, strict=True):
        deviations = text - text.mean(1, keepdim=True)
        covariance = torch.zeros(len(task.names), len(task.names))
        for p_index in range(text.shape[1]):
            projected = deviations[:, p_index] * x
            covariance = covariance + projected @ projected.T / (text.shape[1] + 1)
        extra = covariance[y, y] + covariance.diagonal() - 2 * covariance[y]
        bounds.append(row + 0.5 * task.clip.scale**2 * extra)
    loss = F.cross_entropy(torch.stack(bounds), task.labels)
    if count > 1:
        bare = []
        for context in p["context"]:
            embeddings, end = task.clip.tokens("x " * len(context) + ".")
            filled = torch.cat([embeddings[:1], context, embeddings[1 + len(context) :]])
            bare.append(unit(task.clip.text(filled, end)))
        pairs = [abs(a @ b) for i, a in enumerate(bare) for j, b in enumerate(bare) if i != j]
        loss = loss + task.settings.get("orthogonality", 0.1) * torch.stack(pairs).mean()
    return logits, loss


def _layers(p: Parameters, name: str, x: Tensor) -> Tensor:
    for layer in (0, 2, 4):
        x = p[f"{name}.{layer}.weight"] @ x + p[f"{name}.{layer}.bias"]
        x = F.elu(x) if layer < 4 else x
    return x


def bpl(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    position = task.settings.get("position", "end")
    conditional = task.settings.get("conditional", False)
    context = p["context"]
    contexts = context if context.dim() == 3 else [context] * len(task.names)
    width = context.shape[-1]
    epsilon = torch.randn(task.settings["samples"], width, generator=_noise())
    rows, divergences = [], []
    for x in task.frozen_images():
        mean = _layers(p, "mean_network", x) if conditional else p["mean"]
        log_variance = _layers(p, "log_variance_network", x) if conditional else p["log_variance"]
        deviation = log_variance.exp().sqrt()
        probabilities = []
        for noise in epsilon:
            shift = mean + deviation * noise
            text = [around(task, name, v + shift, position) for name, v in zip(task.names, contexts, strict=True)]
            probabilities.append((task.clip.scale * torch.stack(text) @ x).softmax(-1))
        rows.append(torch.stack(probabilities).mean(0).log())
        q = torch.distributions.Normal(mean, deviation)
        prior = torch.distributions.Normal(torch.zeros(width), torch.ones(width))
        divergences.append(torch.distributions.kl_divergence(q, prior).mean())
    log_probabilities = torch.stack(rows)
    likelihood = -log_probabilities[torch.arange(len(rows)), task.labels].mean()
    return log_probabilities, likelihood + task.settings.get("divergence", 0.001) * torch.stack(divergences).mean()


def vamp(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    """With one draw for each image, as in training."""

    def moments(kind: str, layer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.elu(p[f"{kind}.{layer}.0.weight"] @ x + p[f"{kind}.{layer}.0.bias"])
        made = p[f"{kind}.{layer}.2.weight"] @ hidden + p[f"{kind}.{layer}.2.bias"]
        mean, log_variance = made.chunk(2)
        return mean.view(tokens, -1), log_variance.view(tokens, -1).exp().sqrt()

    prompts = layers_of(p, "vision")
    depth, tokens = len(prompts), len(prompts[0])
    width = p["posterior.1.2.bias"].numel() // (2 * tokens)
    epsilon = torch.randn(1, depth, tokens, width, generator=_noise())[0]
    prototypes = unit(task.templated(task.template))
    words = fixed_words(tokens, task.settings.get("init", "a photo of a"))
    rows, divergences = [], []
    for x, image, y in zip(task.frozen_images(), deep_images(task, prompts), task.labels.tolist(), strict=True):
        drawn = []
        for layer in range(1, depth + 1):
            q, prior = (
                torch.distributions.Normal(*moments(kind, layer, given))
                for kind, given in (("posterior", x), ("prior", prototypes[y]))
            )
            drawn.append(q.mean + q.stddev * epsilon[layer - 1])
            divergences.append(torch.distributions.kl_divergence(q, prior).mean())
        rows.append((task.clip.scale * deep_text(task, drawn, words) @ image).log_softmax(-1))
    logits = torch.stack(rows)
    divergence = torch.stack(divergences).sum() / len(rows)
    return logits, F.cross_entropy(logits, task.labels) + task.settings.get("divergence", 0.001) * divergence


def app(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    position = task.settings.get("position", "end")
    context = p["context"]
    contexts = context if context.dim() == 3 else context.expand(len(task.names), -1, -1)
    text = [around(task, name, v, position) for name, v in zip(task.names, contexts, strict=True)]
    images = task.frozen_images()
    logits, loss = task.answer(images, torch.stack(text))
    hidden = torch.relu(images @ p["squeeze.weight"].T + p["squeeze.bias"])
    prior = (hidden @ p["expand.weight"].T + p["expand.bias"]).mean(0)
    of_prior = [around(task, name, torch.stack([prior] * contexts.shape[1]), position) for name in task.names]
    _, prior_loss = task.answer(images, torch.stack(of_prior))
    apart = (context.mean(-2) - prior.detach()).square().sum()
    return logits, loss + task.settings.get("prior_weight", 1 / 16) * apart + prior_loss
