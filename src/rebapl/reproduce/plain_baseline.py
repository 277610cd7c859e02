"""The same work done the obvious way, so that times have something to stand beside.

Texts have the full length of the text tower (77 tokens for CLIP). The last layer computes all positions, though few are
read. The reference images of the repulsion have a pass of their own. Everything runs operation by operation: nothing is
captured or compiled. An answer asks one copy of the learner after the other, and each encodes images and texts again.
The numbers are the same within rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.backbones import DualEncoder, Layer, Text, TextTokenizer
from rebapl.backbones.block import states_at
from rebapl.backbones.text import Piece
from rebapl.learners import Learner
from rebapl.posterior import Posterior
from rebapl.repulsion import Repulsion
from rebapl.sampling import Chain
from rebapl.sampling.optimizers import build_schedule

CHUNK = 256
"""Images in one pass of an answer."""


class FullLength(TextTokenizer):
    """Fills every sequence up to the limit, as the tokenizer of CLIP does. What follows the end changes no feature."""

    def assemble(self, sequences: list[list[Piece]]) -> Text:  # type: ignore[override]
        text = super().assemble(sequences)
        return replace(text, ids=F.pad(text.ids, (0, self.limit - text.ids.shape[1]), value=self.end))


def full_length(encoder: DualEncoder) -> DualEncoder:
    """The same frozen model for texts of full length, whose layers compute every position."""
    known = encoder.tokenizer
    tokenizer = FullLength(known.encode, known.start, known.end, known.limit, known.pad)
    plain = DualEncoder(encoder.name, encoder.model, tokenizer, encoder.preprocessing, encoder.revision)
    for tower in (plain.vision, plain.text):
        tower.layers = [every_position(layer) for layer in tower.layers]
    return plain


def every_position(layer: Layer) -> Layer:
    """The same layer, which computes all states also where only some are asked for."""

    def run(hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        return states_at(layer(hidden), positions)

    return run


def full_length_twin(learner: Learner[Any]) -> Learner[Any]:
    """A learner of the same method with copies of the parameters, for texts of full length."""
    twin = type(learner)(full_length(learner.encoder), learner.config).bind(learner.class_names, learner.template)
    twin.load_state_dict(learner.state_dict())
    return twin.train(learner.training)


class PlainTraining:
    """Does the steps that a `chain` is about to do, on the same images, with copies of its parameters and memory.

    It explores: of a chain's iteration it has the gradient, the repulsion and the optimizer's step.
    """

    def __init__(self, chain: Chain, learner: Learner[Any]) -> None:
        """`learner` is the chain's."""
        self.learner, self.batches, self.done = full_length_twin(learner), chain.batches, chain.steps_done
        self.parameters = [p for p in self.learner.parameters() if p.requires_grad]
        # exploring draws no noise, so the sampler's stream may be any
        stream = torch.Generator(chain.device)
        self.schedule = build_schedule(chain.inference, self.parameters, chain.num_data, chain.steps_per_epoch, stream)
        self.repulsion: Repulsion | None = None
        settings = chain.inference.repulsion
        self.reference = chain.reference
        if settings is not None and chain.repulsion is not None:
            self.generator = torch.Generator(chain.device)
            self.repulsion = Repulsion.of(settings, generator=self.generator)
            self.repulsion.load_state_dict(chain.repulsion.state_dict())
            self.repulsion.begin_cycle()

    def step(self) -> Tensor:
        """One iteration; the objective (), the repulsion's term included."""
        images, labels = self.batches(self.done)
        output = self.learner(images)
        objective = self.learner.loss(output, labels)
        if self.repulsion is not None and self.reference is not None:
            space, points = self.reference.space, None
            if self.reference.per_image:
                (points,) = self.reference.choose(self.generator)
                output = self.learner(self.reference.images[points])
            objective = objective + self.repulsion(
                output.cloud(space), points, loss=objective, parameters=self.parameters
            )
        self.schedule.current.zero_grad()
        objective.backward()
        self.schedule.current.step()
        self.schedule.step()
        self.done += 1
        return objective.detach()


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
        found = []
        for portion in views.split(CHUNK):
            images = encoder.preprocessing.normalize(portion.to(encoder.device))
            found.append(torch.stack([each(images).logits.softmax(-1) for each in self.learners]).mean(0).cpu())
        return torch.cat(found)
