"""The frozen dual encoder that learners use, with the same interface for every architecture."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.backbones import clip, siglip
from rebapl.backbones.model import NamedModules
from rebapl.backbones.text import Piece, Text, TextTokenizer
from rebapl.backbones.tower import States, Tower
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError, unknown

Dtype = torch.dtype | str
"""A type of PyTorch, its name, or `auto`; see `computing_type`."""

_NAMED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def computing_type(dtype: Dtype, device: torch.device | str) -> torch.dtype:
    """The type that `dtype` names. With `auto`, bfloat16 on a GPU that computes in it, and float32 elsewhere.

    GPUs compute in bfloat16 from compute capability 8.0 on (Ampere, 2020).

    >>> computing_type("auto", "cpu"), computing_type("bfloat16", "cpu")
    (torch.float32, torch.bfloat16)
    """
    if isinstance(dtype, torch.dtype):
        if not dtype.is_floating_point:
            raise UserError(f"towers cannot compute in dtype {dtype}: choose one of {', '.join(('auto', *_NAMED))}")
        return dtype
    if dtype != "auto":
        if dtype not in _NAMED:
            raise unknown("dtype", str(dtype), ["auto", *_NAMED])
        return _NAMED[dtype]
    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return torch.float32
    with torch.cuda.device(device):
        # Emulation does not count: older GPUs emulate bfloat16, more slowly than they compute in float32.
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32


class Architecture(Protocol):
    """A module with everything that differs from one architecture to another, such as `clip`."""

    CROPS: bool
    """Whether images are cropped to the centre if the checkpoint does not state it."""

    def read_config(self, content: Mapping[str, Any], /) -> SimpleNamespace:
        """The settings in config.json."""

    def build(self, config: SimpleNamespace, /) -> NamedModules:
        """A model with `vision_model`, `text_model` and `logit_scale`, the names in `transformers`."""

    def towers(self, model: Any, /) -> tuple[Tower, Tower]:
        """The image tower and the text tower of a model."""

    def text_tokenizer(self, folder: Path, limit: int, /) -> TextTokenizer:
        """The tokenizer in a folder, with its padding rule, for a number of positions."""


ARCHITECTURES: dict[str, Architecture] = {"clip": clip, "siglip": siglip}
"""The supported architectures, by the `model_type` of their checkpoints. Each has a file of its own."""


class DualEncoder:
    """A frozen image tower and a frozen text tower with a joint feature space.

    `model` holds the tensors. It was made by `load_backbone`, or it is a model of `transformers`, whose parts have the
    same names. `ARCHITECTURES` has the module for its architecture. Every size is read from the checkpoint.
    `revision` is the commit if the model comes from the hub. This class is not an `nn.Module`, so that the parameters
    of the encoder do not become parameters of a learner that holds it.
    """

    def __init__(
        self, name: str, model: Any, tokenizer: TextTokenizer, preprocessing: Preprocessing, revision: str | None = None
    ):
        model.eval().requires_grad_(False)
        kind = getattr(model.config, "model_type", type(model).__name__)
        if kind not in ARCHITECTURES:
            raise unknown("kind of dual encoder", kind, ARCHITECTURES)
        self.name = name
        self.revision = revision
        self.model = model
        self.tokenizer = tokenizer
        self.preprocessing = preprocessing
        self.vision, self.text = ARCHITECTURES[kind].towers(model)
        self.joint_width: int = self.text.projection.out_features
        self.logit_scale: float = model.logit_scale.exp().item()
        self.logit_bias: float = model.logit_bias.item() if hasattr(model, "logit_bias") else 0.0

    def __deepcopy__(self, memo: dict[int, Any]) -> DualEncoder:
        """Return the encoder itself: it is frozen, so a copy of a learner needs no copy of it."""
        return self

    @property
    def device(self) -> torch.device:
        return self.model.logit_scale.device

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the frozen towers compute. Their features are float32."""
        return self.model.logit_scale.dtype

    def to(self, device: str | torch.device, dtype: Dtype | None = None) -> DualEncoder:
        """A copy on another device, which computes in the same type or in `dtype`; itself if nothing changes.

        Weights that were rounded to a smaller type stay rounded in a copy that computes in float32 again.
        """
        target = torch.empty(0, device=device).device  # with the device's number, to be compared with the model's
        computing = self.dtype if dtype is None else computing_type(dtype, target)
        if (target, computing) == (self.device, self.dtype):
            return self
        fingerprint = self.fingerprint  # computed before the weights are rounded
        model = copy.deepcopy(self.model).to(target, computing)
        other = DualEncoder(self.name, model, self.tokenizer, self.preprocessing, self.revision)
        other.__dict__["fingerprint"] = fingerprint
        other.logit_scale, other.logit_bias = self.logit_scale, self.logit_bias  # the model rounds its own
        return other

    def tokenize(self, sequences: Sequence[Sequence[Piece]]) -> Text:
        """Token sequences on this encoder's device; see `TextTokenizer.assemble`."""
        text = self.tokenizer.assemble(sequences)
        return Text(text.ids.to(self.device), text.read.to(self.device), text.slots.to(self.device))

    def embed_images(self, pixels: Tensor) -> States:
        """Preprocessed images (B, 3, H, W) as tokens with positions, before any layer. A class token comes first."""
        hidden = self.model.vision_model.embeddings(pixels.to(self.device))
        return States(hidden, torch.zeros(hidden.shape[0], dtype=torch.long, device=hidden.device))

    def token_embeddings(self, ids: Tensor) -> Tensor:
        """The embeddings of token ids, without positions."""
        return self.model.text_model.embeddings.token_embedding(ids)

    def embed_text(self, text: Text, fill: Tensor | None = None) -> States:
        """Token embeddings with positions. The vectors `fill`, (b, d) or (C, b, d), take the place of the slots."""
        embeddings = self.token_embeddings(text.ids)
        if fill is not None:
            slots = text.slots.unsqueeze(-1).expand(-1, -1, embeddings.shape[-1])
            embeddings = embeddings.scatter(1, slots, fill.to(embeddings.dtype).expand(slots.shape))
        positions = self.model.text_model.embeddings.position_embedding.weight[: text.ids.shape[1]]
        return States(embeddings + positions, text.read)

    def image_features(self, pixels: Tensor) -> Tensor:
        """Normalised features (B, e) of the frozen image tower. Features instead of pixels stay as they are."""
        if pixels.ndim == 2:
            return pixels
        return F.normalize(self.vision.features(self.embed_images(pixels)), dim=-1)

    def text_features(self, text: Text, fill: Tensor | None = None) -> Tensor:
        """Normalised features (C, e) of the frozen text tower; `fill` as in `embed_text`."""
        return F.normalize(self.text.features(self.embed_text(text, fill)), dim=-1)

    def logits(self, image: Tensor, text: Tensor) -> Tensor:
        """scale·cos + bias, (B, C), of normalised features (B, e) and (C, e). Only SigLIP has a bias other than 0."""
        logits = self.logit_scale * image @ text.mT
        return logits + self.logit_bias if self.logit_bias else logits  # on a GPU, one small operation fewer

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the weights as float32, the tokenizer, and the settings that are visible in neither.

        A posterior stores it to recognise its backbone. `load_backbone` computes it before the weights are cast, so
        that it does not depend on the type in which the towers compute.
        """
        config = self.model.config
        towers = (config.vision_config, config.text_config)
        settings = [(c.num_attention_heads, c.hidden_act, c.layer_norm_eps) for c in towers]
        digest = hashlib.sha256(repr((settings, self.preprocessing, self.tokenizer.fingerprint)).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()
