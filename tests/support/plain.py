"""A second implementation of every method: plain, slow and obvious.

Own transformer in a few lines; one sequence at a time, always all 77 tokens, an explicit causal mask, no cache, no
batch, nothing of the package but the weights it loaded. A method is a function of a `Task` and its parameters by name
that returns logits (B, C) and the mean loss.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.backbones import DualEncoder

Change = Callable[[int, Tensor], Tensor]
"""Changes a sequence (L, d) before the layer of a number, 0 … K−1."""

Parameters = Mapping[str, Tensor]


def unchanged(_: int, x: Tensor) -> Tensor:
    return x


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


class PlainCLIP:
    def __init__(self, encoder: DualEncoder) -> None:
        self.weights = {name: x.detach().clone() for name, x in encoder.model.state_dict().items()}
        self.config = encoder.model.config
        self.encode = encoder.tokenizer.encode
        self.scale = self.weights["logit_scale"].exp()

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-5)

    def block(self, name: str, x: Tensor, mask: Tensor, heads: int) -> Tensor:
        y = self.norm(f"{name}.layer_norm1", x)
        queries, keys, values = (
            self.linear(f"{name}.self_attn.{kind}_proj", y).unflatten(-1, (heads, -1)).transpose(0, 1) for kind in "qkv"
        )
        weights = (queries @ keys.mT / queries.shape[-1] ** 0.5 + mask).softmax(-1)
        x = x + self.linear(f"{name}.self_attn.out_proj", (weights @ values).transpose(0, 1).flatten(1))
        y = self.linear(f"{name}.mlp.fc1", self.norm(f"{name}.layer_norm2", x))
        return x + self.linear(f"{name}.mlp.fc2", y * torch.sigmoid(1.702 * y))

    def tokens(self, text: str) -> tuple[Tensor, int]:
        """Embeddings (77, d) without positions, padded with end-of-text, and the position of the first end-of-text."""
        ids = self.encode(text)
        padded = ids + ids[-1:] * (77 - len(ids))
        return self.weights["text_model.embeddings.token_embedding.weight"][torch.tensor(padded)], len(ids) - 1

    def text(self, embeddings: Tensor, end: int, change: Change = unchanged) -> Tensor:
        """The feature (e,), not normalised, of embeddings without positions; changes move the end token to `end`."""
        x = embeddings + self.weights["text_model.embeddings.position_embedding.weight"]
        for layer in range(self.config.text_config.num_hidden_layers):
            x = change(layer, x)
            mask = torch.full((len(x), len(x)), float("-inf")).triu(1)
            x = self.block(f"text_model.encoder.layers.{layer}", x, mask, self.config.text_config.num_attention_heads)
        return self.linear("text_projection", self.norm("text_model.final_layer_norm", x[end]))

    def image_states(self, image: Tensor, change: Change = unchanged) -> Tensor:
        """All last states (L, d) of one image (3, H, W), after the last norm."""
        stem = "vision_model.embeddings"
        kernels = self.weights[f"{stem}.patch_embedding.weight"]
        patches = F.conv2d(image[None], kernels, stride=kernels.shape[-1])[0].flatten(1).T
        x = torch.cat([self.weights[f"{stem}.class_embedding"][None], patches])
        x = x + self.weights[f"{stem}.position_embedding.weight"]
        for layer in range(self.config.vision_config.num_hidden_layers):
            x = change(layer, x)
            if layer == 0:
                x = self.norm("vision_model.pre_layrnorm", x)
            heads = self.config.vision_config.num_attention_heads
            x = self.block(f"vision_model.encoder.layers.{layer}", x, torch.zeros(()), heads)
        return self.norm("vision_model.post_layernorm", x)

    def image(self, image: Tensor, change: Change = unchanged) -> Tensor:
        """The feature (e,), not normalised, of one image."""
        return self.linear("visual_projection", self.image_states(image, change)[0])


@dataclass(frozen=True)
class Task:
    clip: PlainCLIP
    names: list[str]
    template: str
    images: Tensor
    labels: Tensor
    settings: Mapping[str, Any] = field(default_factory=dict)

    def templated(self, template: str) -> Tensor:
        """Raw text features (C, e) of the names in a template."""
        return torch.stack([self.clip.text(*self.clip.tokens(template.replace("{}", name))) for name in self.names])

    def frozen_images(self) -> Tensor:
        """Normalised features (B, e) of the frozen model."""
        return unit(torch.stack([self.clip.image(image) for image in self.images]))

    def answer(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of normalised features (B, e), (C, e), and their cross-entropy."""
        logits = self.clip.scale * image @ text.T
        return logits, F.cross_entropy(logits, self.labels)


def _filled(task: Task, sentence: str, start: int, vectors: Tensor, change: Change = unchanged) -> Tensor:
    """The normalised feature of a sentence whose tokens from `start` on are overwritten by vectors (b, d)."""
    embeddings, end = task.clip.tokens(sentence)
    embeddings = torch.cat([embeddings[:start], vectors, embeddings[start + len(vectors) :]])
    return unit(task.clip.text(embeddings, end, change))


def zero_shot(task: Task, _: Parameters) -> tuple[Tensor, Tensor]:
    given = task.settings.get("templates")
    templates = [task.template] if given is None else [given, task.template]
    text = unit(torch.stack([unit(task.templated(template)) for template in templates]).mean(0))
    return task.answer(task.frozen_images(), text)


def around(task: Task, name: str, context: Tensor, position: str = "end") -> Tensor:
    """The normalised feature of a class name with context vectors (b, d) around it."""
    b, words = len(context), len(task.clip.encode(name)) - 2
    front = {"end": b, "middle": b // 2, "front": 0}[position]
    embeddings, end = task.clip.tokens("x " * front + name + " x" * (b - front) + ".")
    name_and_rest = embeddings[1 + front : 1 + front + words], context[front:], embeddings[1 + b + words :]
    return unit(task.clip.text(torch.cat([embeddings[:1], context[:front], *name_and_rest]), end))


def coop(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    context, position = p["context"], task.settings.get("position", "end")
    contexts = context if context.dim() == 3 else [context] * len(task.names)
    text = [around(task, name, vectors, position) for name, vectors in zip(task.names, contexts, strict=True)]
    return task.answer(task.frozen_images(), torch.stack(text))


def cocoop(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    logits = []
    for image in task.frozen_images():
        hidden = torch.relu(p["squeeze.weight"] @ image + p["squeeze.bias"])
        context = p["context"] + (p["expand.weight"] @ hidden + p["expand.bias"])
        text = [_filled(task, "x " * len(context) + f"{name}.", 1, context) for name in task.names]
        logits.append(torch.stack([task.clip.scale * image @ feature for feature in text]))
    return torch.stack(logits), F.cross_entropy(torch.stack(logits), task.labels)


def layers_of(p: Parameters, kind: str) -> list[Tensor]:
    found = {int(name.split(".")[1]): x for name, x in p.items() if name.startswith(f"{kind}.")}
    return [found[layer] for layer in range(1, len(found) + 1)]


def deep_text(task: Task, prompts: list[Tensor], fixed: str) -> Tensor:
    """`fixed`: the words between the prompts and the class name."""
    b = len(prompts[0])

    def change(layer: int, x: Tensor) -> Tensor:
        return torch.cat([x[:1], prompts[layer], x[1 + b :]]) if 0 < layer < len(prompts) else x

    return torch.stack([_filled(task, "x " * b + f"{fixed} {name}.", 1, prompts[0], change) for name in task.names])


def deep_images(task: Task, prompts: list[Tensor]) -> Tensor:
    def change(layer: int, x: Tensor) -> Tensor:
        if layer == 0:
            return torch.cat([x, prompts[0]])
        return torch.cat([x[: -len(prompts[0])], prompts[layer]]) if layer < len(prompts) else x

    return unit(torch.stack([task.clip.image(image, change) for image in task.images]))


def fixed_words(b: int, init: str | None = "a photo of a") -> str:
    words = init.split() if init else []
    return " ".join(words[b:]) if b <= len(words) else ""


def vpt(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    template = task.settings.get("text", "a photo of a {}.") or task.template
    return task.answer(deep_images(task, layers_of(p, "vision")), unit(task.templated(template)))


def ivlp(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    prompts = layers_of(p, "text")
    text = deep_text(task, prompts, fixed_words(len(prompts[0])))
    return task.answer(deep_images(task, layers_of(p, "vision")), text)


def maple(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    prompts = layers_of(p, "text")
    coupled = [prompt @ p[f"couple.{i}.weight"].T + p[f"couple.{i}.bias"] for i, prompt in enumerate(prompts, start=1)]
    init = task.settings.get("init", "a photo of a")
    text = deep_text(task, prompts, fixed_words(len(prompts[0]), init))
    return task.answer(deep_images(task, coupled), text)


def promptsrc(task: Task, p: Parameters) -> tuple[Tensor, Tensor]:
    prompts = layers_of(p, "text")
    text = deep_text(task, prompts, fixed_words(len(prompts[0])))
    image = deep_images(task, layers_of(p, "vision"))
    logits, loss = task.answer(image, text)
    teacher_text = unit(torch.stack([task.templated(template) for template in PROMPTSRC_TEMPLATES]).mean(0))
    teacher_image = task.frozen_images()
    teacher, student = (task.clip.scale * teacher_image @ teacher_text.T).softmax(-1), logits.softmax(-1)
    loss = loss + 25 * (text - teacher_text).abs().mean() + 10 * (image - teacher_image).abs().mean()
    return logits, loss + (teacher * (teacher.log() - student.log())).sum() / logits.numel()


PROMPTSRC_TEMPLATES = (
    """
a photo of a {}.|a bad photo of a {}.|a photo of many {}.|a sculpture of a {}.|a photo of the hard to see {}.
a low resolution photo of the {}.|a rendering of a {}.|graffiti of a {}.|a bad photo of the {}.
a cropped photo of the {}.|a tattoo of a {}.|the embroidered {}.|a photo of a hard to see {}.|a bright photo of a {}.
a photo of a clean {}.|a photo of a dirty {}.|a dark photo of the {}.|a drawing of a {}.|a photo of my {}.
the plastic {}.|a photo of the cool {}.|a close-up photo of a {}.|a black and white photo of the {}.
a painting of the {}.|a painting of a {}.|a pixelated photo of the {}.|a sculpture of the {}.|a bright photo of the {}.
a cropped photo of a {}.|a plastic {}.|a photo of the dirty {}.|a jpeg corrupted photo of a {}.
a blurry photo of the {}.|a photo of the {}.|a good photo of the {}.|a rendering of the {}.|a {} in a video game.
a photo of one {}.|a doodle of a {}.|a close-up photo of the {}.|the origami {}.|the {} in a video game.
a sketch of a {}.|a doodle of the {}.|a origami {}.|a low resolution photo of a {}.|the toy {}.|a rendition of the {}.
a photo of the clean {}.|a photo of a large {}.|a rendition of a {}.|a photo of a nice {}.|a photo of a weird {}.
a blurry photo of a {}.|a cartoon {}.|art of a {}.|a sketch of the {}.|a embroidered {}.|a pixelated photo of a {}.
itap of the {}.
""".strip()
    .replace("\n", "|")
    .split("|")
)
"""As the authors list them."""
