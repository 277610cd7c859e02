"""The work of rebapl done the obvious way, as a baseline for its times.

Texts have the full length of the text tower (77 tokens for CLIP). The last layer computes all positions, although few
are read. The reference images of the repulsion have a pass of their own. Everything runs operation by operation, and
nothing is captured or compiled. For an answer, one copy of the learner after the other encodes images and texts again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.backbones import DualEncoder, Layer, Text, TextTokenizer
from rebapl.backbones.text import Piece
from rebapl.backbones.tower import states_at
from rebapl.learners import Learner
from rebapl.posterior import Posterior
from rebapl.repulsion import Repulsion
from rebapl.sampling import SGHMC

CHUNK = 256
"""Images in one pass of an answer."""


class FullLength(TextTokenizer):
    """Pads every sequence to the limit, as the tokenizer of CLIP does. Tokens after the end change no feature."""

    def assemble(self, sequences: list[list[Piece]]) -> Text:  # type: ignore[override]
        text = super().assemble(sequences)
        return replace(text, ids=F.pad(text.ids, (0, self.limit - text.ids.shape[1]), value=self.end))


def full_length(encoder: DualEncoder) -> DualEncoder:
    """The same frozen model, with texts of full length and layers that compute every position."""
    own = encoder.tokenizer
    tokenizer = FullLength(own.encode, own.start, own.end, own.limit, own.pad)
    plain = DualEncoder(encoder.name, encoder.model, tokenizer, encoder.preprocessing, encoder.revision)
    for tower in (plain.vision, plain.text):
        tower.layers = [every_position(layer) for layer in tower.layers]
    return plain


def every_position(layer: Layer) -> Layer:
    """The same layer, but it computes all states even if the caller reads only some of them."""

    def run(hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        return states_at(layer(hidden), positions)

    return run


def full_length_twin(learner: Learner[Any]) -> Learner[Any]:
    """A learner of the same method with copies of the parameters, for texts of full length."""
    twin = type(learner)(full_length(learner.encoder), learner.config).bind(learner.class_names, learner.template)
    twin.load_state_dict(learner.state_dict())
    return twin.train(learner.training)


class PlainTraining:
    """Steps of exploration as a person writes them by hand, with the step rule and the repulsion of the package.

    `batch` gives the images (B, 3, H, W) and labels (B,) of a step by its number. The repulsion, if there is one, is
    from `samples` remembered clouds of random features, on `images` of the images in `pool` (P, 3, H, W).
    """

    def __init__(
        self,
        learner: Learner[Any],
        batch: Callable[[int], tuple[Tensor, Tensor]],
        repulsion: Mapping[str, Any] | None,
        pool: Tensor,
        images: int,
        samples: int,
    ) -> None:
        self.learner, self.batch, self.pool, self.images = full_length_twin(learner).train(), batch, pool, images
        self.parameters = [p for p in self.learner.parameters() if p.requires_grad]
        self.sampler = SGHMC(self.parameters, lr=1e-4, num_data=len(pool), temperature=0.0)
        self.done = 0
        self.repulsion: Repulsion | None = None
        if repulsion is not None:
            with torch.no_grad():
                cloud = self.cloud(pool)
            self.repulsion = Repulsion(**repulsion, anchor=cloud)
            stream = torch.Generator().manual_seed(0)
            for _ in range(samples):
                self.repulsion.remember(cloud + torch.randn(cloud.shape, generator=stream).to(cloud) / 10)
            self.repulsion.begin_cycle()

    def cloud(self, images: Tensor) -> Tensor:
        """The features of some images, and of the classes where the method repels in those, too."""
        assert self.learner.repels_in is not None
        return self.learner(images).cloud(self.learner.repels_in)

    def step(self) -> Tensor:
        """One iteration; the objective (), the repulsion's term included."""
        images, labels = self.batch(self.done)
        objective = self.learner.loss(self.learner(images), labels)
        if self.repulsion is not None:
            cloud, rows = self._compared()
            objective = objective + self.repulsion(cloud, rows, loss=objective, parameters=self.parameters)
        self.sampler.zero_grad()
        objective.backward()
        self.sampler.step()
        self.done += 1
        return objective.detach()

    def _compared(self) -> tuple[Tensor, Tensor | None]:
        """The cloud of this step, and its rows in the clouds that are remembered (None: all of them)."""
        if not self.learner.repels_per_image:
            return self.cloud(self.pool[:1]), None
        chosen = torch.randperm(len(self.pool), device=self.pool.device)[: self.images]
        cloud = self.cloud(self.pool[chosen])
        per_class = torch.arange(len(self.pool), len(self.pool) + len(cloud) - len(chosen), device=chosen.device)
        return cloud, torch.cat([chosen, per_class])


class PlainPosterior:
    """Answers as a `posterior` of equally weighted samples does, by one learner for each sample."""

    def __init__(self, posterior: Posterior) -> None:
        self.learners = []
        for index in range(len(posterior)):
            learner = full_length_twin(posterior.learner).eval()
            with torch.no_grad():
                for name, p in learner.named_parameters():
                    p.copy_(posterior.samples[name][index])
            self.learners.append(learner)

    @torch.no_grad()
    def probabilities(self, views: Tensor) -> Tensor:
        """The mean over samples (N, C) for views, uint8 (N, 3, H, W)."""
        encoder = self.learners[0].encoder
        portions = []
        for portion in views.split(CHUNK):
            images = encoder.preprocessing.normalize(portion.to(encoder.device))
            portions.append(torch.stack([each(images).logits.softmax(-1) for each in self.learners]).mean(0).cpu())
        return torch.cat(portions)
