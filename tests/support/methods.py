"""The facts about each method that the shared suite needs. A registered method without an entry fails the suite."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import plain
import plain_distributions
import plain_heads
import plain_mmrl
import torch
from torch import Tensor

from rebapl.learners import Learner, Output

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """`plain`: the second implementation.

    `counts`: settings and the number of learnable parameters they give on ViT-B/16. `options`: further settings for
    which logits and gradients are compared. `settings`: those of all other tests.
    """

    plain: Callable[[plain.Task, plain.Parameters], tuple[Tensor, Tensor]]
    counts: tuple[tuple[Settings, int], ...]
    settings: Settings
    options: tuple[Settings, ...] = ()
    starts_as_zero_shot: tuple[Settings, str] | None = None
    """The settings with which it does, with the template "a photo of a {}.", and in which cloud (text, logits)."""
    random_start: bool = True
    """Whether `reset` draws random numbers with the published settings."""
    training_clouds: frozenset[str] = frozenset()
    """Clouds that exist only in training mode."""
    noisy_training: bool = False
    """Whether logits differ between training and evaluation mode: by noise, or by a part that is not used yet (APP)."""
    bfloat16_tolerance: float = 0.03
    """The largest difference of probabilities from those in float32. It grows with the logit scale: 10, MMRL 100."""


CASES: dict[str, Case] = {
    "zero-shot": Case(
        plain.zero_shot,
        counts=(({}, 0),),
        settings={},
        options=({"templates": "a bad photo of the {}."},),
        starts_as_zero_shot=({}, "logits"),
        random_start=False,
    ),
    "coop": Case(
        plain.coop,
        counts=(({}, 2_048), ({"init": None, "tokens": 16}, 8_192)),
        settings={},
        options=(
            {"init": None, "tokens": 5, "position": "middle"},
            {"position": "front"},
            {"class_specific": True},
        ),
        starts_as_zero_shot=({}, "logits"),
        random_start=False,
    ),
    "cocoop": Case(plain.cocoop, counts=(({}, 35_360),), settings={}, options=({"init": None, "tokens": 2},)),
    "vpt": Case(
        plain.vpt,
        counts=(({}, 73_728), ({"depth": 1}, 6_144)),
        settings={},
        options=({"depth": 1}, {"depth": 3, "tokens": 2, "text": None}),
        starts_as_zero_shot=({}, "text"),
    ),
    "ivlp": Case(
        plain.ivlp,
        counts=(({}, 30_720), ({"tokens": 4, "depth": 9}, 46_080)),
        settings={},
        options=({"tokens": 4, "depth": 3}, {"tokens": 5, "depth": 1}),
        starts_as_zero_shot=({"depth": 1}, "text"),
    ),
    "maple": Case(
        plain.maple,
        counts=(({}, 3_555_072), ({"depth": 3}, 1_185_024)),
        settings={},
        options=({"depth": 1}, {"tokens": 3, "depth": 2}, {"init": None}),
        starts_as_zero_shot=({"depth": 1}, "text"),
    ),
    "promptsrc": Case(
        plain.promptsrc,
        counts=(({}, 46_080),),
        settings={},
        options=({"depth": 1}, {"tokens": 2}),
        starts_as_zero_shot=({"depth": 1}, "text"),
        training_clouds=frozenset({"frozen_image"}),
    ),
    "mmrl": Case(
        plain_mmrl.mmrl,
        counts=(({}, 4_992_256), ({"width": 2048}, 18_762_496)),
        settings={"width": 24},
        options=({"width": 24, "layers": 3, "tokens": 2, "class_share": 0.4, "consistency": 3.0},),
        training_clouds=frozenset({"frozen_image"}),
        bfloat16_tolerance=0.1,  # its logit scale is 100
    ),
    "mmrl++": Case(
        plain_mmrl.mmrl_plus,
        counts=(({}, 813_312),),
        settings={"width": 24, "mix": 0.6},
        options=({"width": 24, "layers": 3, "rank": 2, "projection_rank": 3}, {"width": 24, "layers": 1}),
        training_clouds=frozenset({"frozen_image"}),
        bfloat16_tolerance=0.1,
    ),
    "proda": Case(
        plain_distributions.proda,
        counts=(({}, 262_144),),
        settings={"prompts": 6, "tokens": 5, "at_once": 3},
        options=(
            {"prompts": 4, "tokens": 4},
            {"prompts": 1, "tokens": 3},
            {"prompts": 2, "tokens": 3, "orthogonality": 2.0},
        ),
        noisy_training=True,
    ),
    "bpl": Case(
        plain_distributions.bpl,
        counts=(({}, 3_072), ({"conditional": True}, 659_456)),
        settings={"samples": 3},
        options=(
            {"samples": 2, "conditional": True},
            {"samples": 2, "class_specific": True, "divergence": 2.0},
            {"samples": 1, "init": None, "tokens": 3, "position": "middle"},
        ),
        noisy_training=True,
    ),
    "vamp": Case(
        plain_distributions.vamp,
        counts=(({}, 9 * (2 * 84_000 + 2 * 768)), ({"depth": 3}, 3 * (2 * 84_000 + 2 * 768))),
        settings={"samples": 3},
        options=({"depth": 1, "tokens": 3, "divergence": 2.0}, {"depth": 2, "init": None}),
        noisy_training=True,
    ),
    "app": Case(
        plain_distributions.app,
        counts=(({}, 8_192 + 33_312),),
        settings={"tokens": 5},
        options=({"tokens": 4, "position": "middle", "prior_weight": 2.0}, {"tokens": 3, "class_specific": True}),
        noisy_training=True,
    ),
    "linear": Case(
        plain_heads.linear,
        counts=(({}, 2 * 512 + 2 + 1),),
        settings={},
        options=({"start": "zero"}, {"prior": 0.05, "class_constraint": True}, {"texts_as_examples": True}),
        starts_as_zero_shot=({}, "logits"),
        random_start=False,
    ),
    "gda": Case(
        plain_heads.gda,
        counts=(({}, 2 * 512 + 2 + 1),),
        settings={},
        starts_as_zero_shot=({}, "logits"),
        random_start=False,
    ),
    "tip-adapter": Case(
        plain_heads.cache,
        counts=(({}, 2),),  # and for each image a key and a value
        settings={},
        starts_as_zero_shot=({}, "logits"),
        random_start=False,
    ),
    "tip-adapter-f": Case(
        plain_heads.cache,
        counts=(({}, 2),),
        settings={},
        starts_as_zero_shot=({}, "logits"),
        random_start=False,
    ),
    "proker": Case(
        plain_heads.cache,
        counts=(({}, 2),),
        settings={},
        starts_as_zero_shot=({}, "logits"),
        random_start=False,
    ),
    "lp++": Case(
        plain_heads.lp_plus,
        counts=(({}, 2 * 512 + 2),),
        settings={},
        starts_as_zero_shot=({}, "logits"),
        random_start=False,
    ),
}


def output_of(learner: Learner, images: Tensor) -> Output:
    """The output in training mode, each time with the same noise."""
    learner.use_noise(torch.Generator().manual_seed(4))
    return learner(images)
