"""Second implementations of MMRL and MMRL++; see `plain`."""

import torch
import torch.nn.functional as F
from plain import Change, Parameters, Task, unit
from torch import Tensor


def _tokens_between(tokens: list[Tensor], layers: int, mix: float) -> Change:
    """Tokens behind the first token of the last len(tokens) layers: inserted at the first of these, mixed in later."""
    first, count = layers - len(tokens), len(tokens[0])

    def change(layer: int, x: Tensor) -> Tensor:
        if layer < first:
            return x
        if layer == first:
            return torch.cat([x[:1], tokens[0], x[1:]])
        flowing = x[1 : 1 + count]
        return torch.cat([x[:1], mix * tokens[layer - first] + (1 - mix) * flowing, x[1 + count :]])

    return change


def _answer(
    task: Task, vision: list[Tensor], text: list[Tensor], projection: Tensor, mix: float
) -> tuple[Tensor, Tensor]:
    clip, count = task.clip, len(vision[0])
    change = _tokens_between(text, clip.config.text_config.num_hidden_layers, mix)
    words = []
    for name in task.names:
        embeddings, end = clip.tokens(task.template.replace("{}", name))
        words.append(unit(clip.text(embeddings, end + count, change)))
    w, frozen_w = torch.stack(words), unit(task.templated(task.template))
    change = _tokens_between(vision, clip.config.vision_config.num_hidden_layers, mix)
    states = [clip.image_states(image, change) for image in task.images]
    x = unit(torch.stack([clip.linear("visual_projection", state[0]) for state in states]))
    r = unit(torch.stack([state[1 : 1 + count].mean(0) @ projection for state in states]))
    by_class, by_tokens = 100 * x @ w.T, 100 * r @ w.T
    a, weight = task.settings.get("class_share", 0.7), task.settings.get("consistency", 0.5)
    loss = a * F.cross_entropy(by_class, task.labels) + (1 - a) * F.cross_entropy(by_tokens, task.labels)
    loss = loss + weight * (1 - F.cosine_similarity(x, task.frozen_images()).mean())
    loss = loss + weight * (1 - F.cosine_similarity(w, frozen_w).mean())
    return a * by_class + (1 - a) * by_tokens, loss


def mmrl(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    def tokens(kind: str) -> list[Tensor]:
        count = sum(name.startswith(f"{kind}.") and name.endswith("bias") for name in p)
        return [p["tokens"] @ p[f"{kind}.{i}.weight"].T + p[f"{kind}.{i}.bias"] for i in range(count)]

    return _answer(task, tokens("to_vision"), tokens("to_text"), p["representation_projection"], mix=1.0)


def mmrl_plus(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    def tokens(kind: str) -> list[Tensor]:
        count = sum(name.startswith(f"{kind}.biases.") for name in p)
        weights = [
            p[f"{kind}.weight"] + p[f"{kind}.residuals.{i}.left"] @ p[f"{kind}.residuals.{i}.right"]
            for i in range(count)
        ]
        return [p["tokens"] @ weight.T + p[f"{kind}.biases.{i}"] for i, weight in enumerate(weights)]

    projection = task.clip.weights["visual_projection.weight"].T + p["projection.left"] @ p["projection.right"]
    return _answer(task, tokens("to_vision"), tokens("to_text"), projection, task.settings.get("mix", 0.9))
