"""The settings of a run of the chain, as plain frozen data. `presets` makes them; anybody may."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

import torch

from rebapl.errors import UserError, unknown
from rebapl.repulsion import Repulsion

SAMPLERS = ("sghmc", "sgld", "adamw", "svgd")

KINDS: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": (str, "a name"),
    "bool": (bool, "true or false"),
    "None": (type(None), "null"),
}


def check_kinds(settings: Any) -> None:
    """Refuses a value of another kind than its field's, such as text for a number from a command line."""
    for each in fields(settings):
        value, words = getattr(settings, each.name), str(each.type).split(" | ")
        if not all(word in KINDS for word in words):
            continue
        known = isinstance(value, tuple(KINDS[word][0] for word in words))
        if not known or (isinstance(value, bool) and "bool" not in words):  # Python counts True as a number
            accepted = " or ".join(KINDS[word][1] for word in words)
            raise UserError(f"{each.name} is {value!r}; it must be {accepted}")


@dataclass(frozen=True)
class Repelling:
    """The repulsion in the loop: in which feature space, on how many reference images, and `Repulsion`'s own.

    `space` None is the learner's default; "weights" compares parameters. Each step takes `reference` random
    images of a pool of `pool` (None: four times as many); both shrink to what there is. Of the points they give,
    `rows` random ones are compared (None: all). `augmented`: the pool is one fixed augmented view of each image.
    """

    space: str | None = None
    reference: int = 32
    pool: int | None = None
    rows: int | None = None
    augmented: bool = False
    metric: str = "mmd"
    potential: str = "inverse"
    size: str = "fading"
    fraction: float = 1.0
    strength: float = 1.0
    cap: float = 1.0
    epsilon: float = 0.3
    scale: float | None = None
    memory: str = "all"
    stage: str = "exploration"
    measure_every: int = 10
    kick: float = 0.01
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_kinds(self)
        for name, value in (("reference", self.reference), ("pool", self.pool_size), ("rows", self.rows)):
            if value is not None and value < 1:
                raise UserError(f"repulsion: {name} is {value}; it is a number of images or points, at least 1")

    @property
    def pool_size(self) -> int:
        return 4 * self.reference if self.pool is None else self.pool

    def build(self, generator: torch.Generator) -> Repulsion:
        return Repulsion(
            self.metric,
            potential=self.potential,
            size=self.size,
            fraction=self.fraction,
            strength=self.strength,
            cap=self.cap,
            epsilon=self.epsilon,
            scale=self.scale,
            memory=self.memory,
            stage=self.stage,
            measure_every=self.measure_every,
            kick=self.kick,
            generator=generator,
            **self.options,
        )


@dataclass(frozen=True)
class Adaptive:
    """When to stop adding cycles, see `adaptive.worth_another_cycle`. Gains are in nats per held-out example."""

    min_likelihood_gain: float = 1e-3
    min_diversity_gain: float = 1e-3
    patience: int = 1

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.patience < 1:
            raise UserError(f"adaptive: patience is {self.patience}; it is a number of cycles, at least 1")


@dataclass(frozen=True)
class Inference:
    """How a posterior is sampled. Lengths are in epochs; names as in the table of docs/sampling.md.

    `sampler`: sghmc or sgld (at temperature 0 they are SGD with and without momentum), adamw (optimisation
    only), svgd (`chains` particles side by side; not run by `Chain` but by `SVGD`).
    `chains`: how many run side by side, each keeping `samples_per_cycle` samples per cycle.
    `restart`: warm goes on from the last θ, cold from a fresh initialisation.
    `burn_in`: this share of each cycle is AdamW's, at `burn_in_lr` (None: lr).
    `averaging`: (mean, std) of the Gaussian weights, in epochs, with which the parameters at the ends of a
    cycle's epochs are averaged into its one sample.
    `average`: what a prediction averages over samples by default, probabilities or logits.
    """

    lr: float
    epochs: int
    batch: int
    sampler: str = "sghmc"
    momentum: float = 0.9
    weight_decay: float = 0.0
    prior_std: float | None = None
    center: str | None = None
    temperature: float = 1.0
    gradient_noise: float | str | None = None
    integrator: str = "kdod"
    cycles: int = 1
    chains: int = 1
    samples_per_cycle: int = 1
    exploration: float = 0.4
    floor: float = 0.05
    granularity: str = "step"
    warmup_epochs: int = 0
    warmup_lr: float = 1e-5
    restart: str = "warm"
    keep_momentum: bool = False
    burn_in: float = 0.0
    burn_in_lr: float | None = None
    averaging: tuple[float, float] | None = None
    average: str = "probabilities"
    repulsion: Repelling | None = None
    adaptive: Adaptive | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.sampler not in SAMPLERS:
            raise unknown("sampler", self.sampler, SAMPLERS)
        if self.restart not in ("warm", "cold"):
            raise unknown("restart", self.restart, ["warm", "cold"])
        if self.average not in ("probabilities", "logits"):
            raise unknown("average", self.average, ["probabilities", "logits"])
        for name in ("epochs", "batch", "cycles", "chains", "samples_per_cycle"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("lr", "burn_in_lr", "warmup_lr"):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}; it must be a finite number that is not negative")
        if self.sampler == "adamw" and self.temperature > 0:
            raise UserError("sampler 'adamw' optimises: it needs temperature 0. To sample, take sghmc or sgld")
        if self.sampler in ("sghmc", "sgld") and self.temperature > 0 and self.exploration == 1:
            raise UserError(
                f"temperature is {self.temperature}, but exploration = 1 leaves no sampling stage where it acts: lower "
                f"exploration, or set temperature to 0"
            )
        if self.sampler == "adamw" and (self.prior_std is not None or self.center is not None):
            raise UserError("sampler 'adamw' knows no prior_std and no center: state its decay with weight_decay")
        if self.averaging is not None and self.samples_per_cycle != 1:
            raise UserError("averaging gives one sample per cycle: set samples_per_cycle to 1, or averaging to None")
        if self.averaging is not None and self.averaging[1] <= 0:
            raise UserError(f"averaging is {self.averaging}: (mean, std) in epochs, with a positive std")
        if self.keep_momentum and (self.chains > 1 or self.restart == "cold"):
            raise UserError("keep_momentum needs one chain and warm restarts")
