"""The settings of how a posterior is sampled: one class per algorithm, with the settings of that algorithm only.

`presets` fills them in from a method's recipe, and they can also be built directly. Lengths are in epochs. The table in
docs/sampling.md gives the paper's letter for each name.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rebapl.repulsion import Inverse, RepulsionSettings
from rebapl.settings import OneOf, Settings, refuse


class SGDSettings(Settings):
    """Optimisation by stochastic gradient descent with momentum, by which most methods were published."""

    kind: ClassVar[str] = "sgd"
    lr: float = Field(ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)


class AdamWSettings(Settings):
    """Optimisation by AdamW."""

    kind: ClassVar[str] = "adamw"
    lr: float = Field(ge=0)
    weight_decay: float = Field(default=0.0, ge=0)


class Prior(Settings):
    """The prior N(θ₀, std²). Its width is given either by `weight_decay` (std = 1/sqrt(N·wd)) or by `prior_std`."""

    weight_decay: float = Field(default=0.0, ge=0)
    prior_std: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_prior(self) -> Prior:
        if self.prior_std is not None and self.weight_decay > 0:
            refuse("prior_std", "and weight_decay both state the prior: give one of them, and the other 0 or null")
        return self


class LangevinSettings(Prior):
    """The settings that SGLD and SGHMC share. T = `temperature` scales variances: 1 is Bayes.

    `exploration` is the share of each cycle without injected noise. In the rest of the cycle, `samples_per_cycle`
    samples are stored, evenly spaced, the last at the end of the cycle. `burn_in` is the share of the exploration, from
    its start on, in which AdamW makes the steps instead of the sampler. `gradient_noise` is γ̂: None, a constant, or
    "estimate". `center` is the θ₀ of the prior: None is zero, and "init" is where the run began. `mass_matrix`
    "diagonal" samples in coordinates in which gradients have one scale, measured in the exploration of each cycle; None
    is unit mass.
    """

    lr: float = Field(ge=0)
    temperature: float = Field(default=1.0, gt=0)
    gradient_noise: Literal["estimate"] | Annotated[float, Field(gt=0)] | None = None
    exploration: float = Field(default=0.4, ge=0, lt=1)
    burn_in: float = Field(default=0.0, ge=0, le=1)
    samples_per_cycle: int = Field(default=1, ge=1)
    center: Literal["init"] | None = None
    mass_matrix: Literal["diagonal"] | None = None

    @model_validator(mode="after")
    def _every_setting_acts(self) -> LangevinSettings:
        if self.center is not None and self.prior_std is None and self.weight_decay == 0:
            refuse("center", "does nothing without a prior: give prior_std or weight_decay as well")
        if self.burn_in > 0 and self.exploration == 0:
            refuse("burn_in", "does nothing without exploration, of which it is a part: set it to 0")
        if self.mass_matrix is not None and self.exploration == 0:
            refuse("mass_matrix", "is measured in the exploration, which is 0 here: raise that, or set it to null")
        return self


SCHEDULED = ("exploration", "burn_in", "samples_per_cycle")
"""The settings of a sampler that belong to its schedule and not to its step rule."""


class SGLDSettings(LangevinSettings):
    """Stochastic gradient Langevin dynamics."""

    kind: ClassVar[str] = "sgld"


class SGHMCSettings(LangevinSettings):
    """Stochastic gradient Hamiltonian Monte Carlo; the class `SGHMC` describes each `integrator`."""

    kind: ClassVar[str] = "sghmc"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    integrator: Literal["kdod", "symplectic", "printed", "authors"] = "kdod"

    @model_validator(mode="after")
    def _authors_have_no_estimate(self) -> SGHMCSettings:
        for name in ("gradient_noise", "mass_matrix"):
            if self.integrator == "authors" and getattr(self, name) is not None:
                refuse(name, "does not go with the integrator 'authors', which does not use it: set it to null")
        return self


class SVGDSettings(Prior):
    """Stein variational gradient descent: `particles` that move together, each of which becomes a sample at the end.

    The kernel compares weights. All particles but the first start with a `kick`, relative to θ.
    """

    kind: ClassVar[str] = "svgd"
    lr: float = Field(ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    temperature: float = Field(default=1.0, gt=0)
    particles: int = Field(default=3, ge=1)
    kick: float = Field(default=0.1, ge=0)


SamplerSettings = SGDSettings | AdamWSettings | SGLDSettings | SGHMCSettings | SVGDSettings
SAMPLERS: dict[str, type[Settings]] = {
    each.kind: each for each in (SGHMCSettings, SGLDSettings, SGDSettings, AdamWSettings, SVGDSettings)
}
SAMPLER = OneOf("sampler", SAMPLERS)


class Cosine(Settings):
    """lr·max(floor, ½(1 + cos πρ)), where ρ goes from 0 to 1 in each cycle and changes at every step or every epoch."""

    kind: ClassVar[str] = "cosine"
    floor: float = Field(default=0.05, ge=0, lt=1)
    every: Literal["step", "epoch"] = "step"


class Constant(Settings):
    """The learning rate does not change."""

    kind: ClassVar[str] = "constant"


CURVES: dict[str, type[Settings]] = {each.kind: each for each in (Cosine, Constant)}


class Warmup(Settings):
    """Each cycle that starts from a fresh initialisation has the constant learning rate `lr` for its first `epochs`."""

    epochs: int = Field(ge=1)
    lr: float = Field(default=1e-5, ge=0)


class Warm(Settings):
    """A cycle goes on from the last θ, moved by a random `kick` relative to θ.

    Momentum starts at zero unless `keep_momentum` is set.
    """

    kind: ClassVar[str] = "warm"
    kick: float = Field(default=0.0, ge=0)
    keep_momentum: bool = False


class Cold(Settings):
    """A cycle starts from a fresh initialisation."""

    kind: ClassVar[str] = "cold"


RESTARTS: dict[str, type[Settings]] = {each.kind: each for each in (Warm, Cold)}


class Averaging(Settings):
    """A cycle's sample is the average of the parameters at the ends of its epochs.

    The weights of the epochs are Gaussian, with this mean and standard deviation, in epochs from 1.
    """

    mean: float
    std: float = Field(gt=0)


class Laplace(Settings):
    """Instead of the θ at the end of a cycle, store `samples` draws from the Gaussian there; see `sampling.laplace`."""

    samples: int = Field(default=30, ge=1)
    structure: Literal["auto", "full", "kronecker", "diagonal"] = "auto"
    prior: Literal["evidence", "recipe"] = "evidence"


class Swag(Settings):
    """A cycle's samples are drawn from a Gaussian that is fitted to the path of the optimiser; see `GaussianPath`.

    After the share `start` of a cycle, `snapshots` of the parameters are taken, evenly spaced, or one at every step if
    there are fewer steps. At the end of the cycle, `samples` are drawn.
    """

    start: float = Field(default=0.7, ge=0, lt=1)
    snapshots: int = Field(default=20, ge=2)
    samples: int = Field(default=3, ge=1)


class Repelling(RepulsionSettings):
    """The settings of the repulsion in a loop: those of `RepulsionSettings`, the feature space, and the images.

    `space` None is the learner's default; "weights" compares parameters. Each step takes `images` random images of a
    pool of `pool` images (None: four times `images`). Both numbers are reduced if there are fewer images. A space with
    one point per class uses no images: set both to null. Of the points, `rows` random ones are compared (None:
    all).
    """

    space: str | None = None
    images: int | None = Field(default=32, ge=1)
    pool: int | None = Field(default=None, ge=1)
    rows: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> Repelling:
        if self.space == "weights" and self.images is not None:
            refuse("images", "does nothing in the space 'weights', which has no images: set it to null")
        if self.images is None and self.pool is not None:
            refuse("pool", "does nothing without `images`: set it to null")
        if self.images is not None and self.pool is not None and self.pool < self.images:
            refuse("pool", f"is {self.pool}: each step compares {self.images} of its images, so it has at least those")
        if self.distance.space not in (None, self.space):
            refuse(
                "space",
                f"is {self.space or 'not given'}: the distance '{self.distance.kind}' compares points of the space "
                f"'{self.distance.space}', so set it to that",
            )
        if self.space == "weights" and self.rows is not None:
            refuse("rows", "does nothing in the space 'weights', which is one point: set it to null")
        shape = (self.potential.kind, self.potential.epsilon)
        if self.force.kind == "normalised" and self.stage == "exploration" and shape != ("inverse", Inverse().epsilon):
            refuse(
                "potential",
                "does nothing with a normalised force, which has one size at every distance: leave out "
                "its kind and `epsilon`, or take a fading force",
            )
        return self


class Adaptive(Settings):
    """The rule by which a run stops adding cycles; see `sampling.adaptive`. Gains are in nats per held-out image."""

    min_likelihood_gain: float = Field(default=1e-3, ge=0)
    min_diversity_gain: float = Field(default=1e-3, ge=0)
    patience: int = Field(default=1, ge=1)


class Inference(Settings):
    """All settings of how a posterior is sampled from batches of `batch` images.

    Each of the `chains` has `cycles` of `epochs` each. If `first_epochs` is given, the first cycle of each chain has
    that number of epochs instead, so that a long first cycle can find a mode, and short later cycles can explore around
    it and away from it. `restart` says how each cycle after the first begins. `averaging`, `laplace` and `swag` are for
    optimisers. `pool_view` says whether the repulsion compares features on the training images as they are, or on one
    fixed augmented view of each image. `average` says what predictions average over the samples by default. `views` is
    the number of views of each image over which predictions average (test-time augmentation).
    """

    sampler: Annotated[SamplerSettings, SAMPLER]
    epochs: int = Field(ge=1)
    batch: int = Field(ge=1)
    cycles: int = Field(default=1, ge=1)
    chains: int = Field(default=1, ge=1)
    first_epochs: int | None = Field(default=None, ge=1)
    restart: Annotated[Warm | Cold | None, OneOf("restart", RESTARTS, optional=True)] = None
    curve: Annotated[Cosine | Constant, OneOf("curve", CURVES)] = Cosine()
    warmup: Warmup | None = None
    averaging: Averaging | None = None
    laplace: Laplace | None = None
    swag: Swag | None = None
    repulsion: Repelling | None = None
    pool_view: Literal["plain", "augmented"] = "plain"
    adaptive: Adaptive | None = None
    average: Literal["probabilities", "logits"] = "probabilities"
    views: int = Field(default=1, ge=1)

    @property
    def optimises(self) -> bool:
        """Whether the sampler is an optimiser, which injects no noise."""
        return isinstance(self.sampler, SGDSettings | AdamWSettings)

    @property
    def pool_size(self) -> int:
        """The greatest number of images on which samples are compared: `pool`, or 4·`images`, or 0 without images."""
        settings = self.repulsion
        if settings is None or settings.images is None:
            return 0
        return settings.pool or 4 * settings.images

    @property
    def samples_per_cycle(self) -> int:
        """The number of samples that each chain stores per cycle, before `laplace` replaces each by its draws."""
        if self.swag is not None:
            return self.swag.samples
        return self.sampler.samples_per_cycle if isinstance(self.sampler, LangevinSettings) else 1

    @property
    def independent_cycles(self) -> int:
        """The number of cycles, over all chains, that can be sampled separately; 1 if cycles depend on one another.

        Cycles are independent if each starts from a fresh initialisation, no earlier sample repels it, and no cycle
        decides whether another one follows.
        """
        alone = isinstance(self.restart, Cold) and self.repulsion is None and self.adaptive is None
        return self.cycles * self.chains if alone else 1

    @property
    def all_epochs(self) -> int:
        """The number of epochs of all cycles of all chains together."""
        return self.chains * ((self.first_epochs or self.epochs) + (self.cycles - 1) * self.epochs)

    @property
    def epochs_in_words(self) -> str:
        """The epochs of all cycles: `3 × 5` for 3 cycles of 5, `5 × (2 + 1)` for 5 chains with cycles of 2 and of 1."""
        first = self.epochs if self.first_epochs is None else self.first_epochs
        if first == self.epochs:
            rounds = self.cycles * self.chains
            return str(self.epochs) if rounds == 1 else f"{rounds} × {self.epochs}"
        others = f"{self.cycles - 1} × {self.epochs}" if self.cycles > 2 else str(self.epochs)
        return f"{first} + {others}" if self.chains == 1 else f"{self.chains} × ({first} + {others})"

    @property
    def samples(self) -> int:
        """The number of samples of the posterior, if no adaptive rule ends the run sooner."""
        if isinstance(self.sampler, SVGDSettings):
            return self.sampler.particles
        return self.cycles * self.chains * (self.samples_per_cycle if self.laplace is None else self.laplace.samples)

    @model_validator(mode="after")
    def _cycles_agree(self) -> Inference:
        kind = self.sampler.kind
        of_svgd = {"cycles": 1, "chains": 1, "repulsion": None, "adaptive": None, "averaging": None, "swag": None}
        for name, value in of_svgd.items():
            if kind == "svgd" and getattr(self, name) != value:
                refuse(name, f"does not go with svgd, whose particles move together once: leave it {value or 'null'}")
        for name in ("first_epochs", "restart", "repulsion", "adaptive"):
            if self.cycles == 1 and getattr(self, name) is not None:
                refuse(name, f"does nothing in one cycle: ask for more `cycles`, or set {name} to null")
        if self.cycles > 1 and self.restart is None:
            refuse("restart", f"is missing: say how each of the {self.cycles} cycles begins, warm or cold")
        if self.adaptive is not None and self.cycles < (least := self.adaptive.patience + 2):
            refuse("adaptive", f"does nothing in {self.cycles} cycles: with this patience ask for at least {least}")
        if isinstance(self.restart, Warm) and self.restart.keep_momentum:
            if self.chains > 1:
                refuse("restart.keep_momentum", "needs one chain: momentum is not kept from one chain to another")
            if kind == "sgld" or getattr(self.sampler, "momentum", None) == 0:
                refuse("restart.keep_momentum", f"does nothing: there is no momentum in this sampler ({kind})")
        return self

    @model_validator(mode="after")
    def _lengths_agree(self) -> Inference:
        longest = self.first_epochs or self.epochs
        for name in ("averaging", "laplace", "swag"):
            if getattr(self, name) is not None and not self.optimises:
                refuse(name, f"is for sgd and adamw, and the sampler is {self.sampler.kind}: set it to null")
        for name in ("repulsion", "adaptive", "swag"):
            if self.laplace is not None and getattr(self, name) is not None:
                refuse("laplace", f"does not go with {name}: set one of them to null")
        if self.averaging is not None and self.swag is not None:
            refuse("swag", "does not go with averaging, which makes one sample of a cycle: set one of them to null")
        if self.first_epochs is not None and isinstance(self.restart, Cold):
            refuse("first_epochs", "is for warm restarts: cold ones all begin alike, so set it to null")
        if self.first_epochs is not None and self.averaging is not None:
            refuse("first_epochs", "does not go with averaging over the epochs of a cycle: set it to null")
        if self.warmup is not None and self.warmup.epochs >= longest:
            refuse("warmup.epochs", f"is {self.warmup.epochs}: the first cycle has {longest} epochs, so give fewer")
        return self

    @model_validator(mode="after")
    def _repulsion_acts(self) -> Inference:
        repulsion = self.repulsion
        if self.pool_view == "augmented" and (repulsion is None or repulsion.images is None):
            refuse("pool_view", "is 'augmented', and no repulsion compares images here: leave it 'plain'")
        if repulsion is None:
            return self
        if repulsion.stage == "both" and self.optimises:
            refuse("repulsion.stage", "is 'both', and an optimiser has one stage: leave it 'exploration'")
        if not isinstance(self.sampler, LangevinSettings):
            return self
        if repulsion.every > 1 and self.sampler.gradient_noise == "estimate":
            refuse(
                "repulsion.every",
                f"is {repulsion.every}: the sampler, which estimates gradient noise, would take "
                "such impulses for noise: leave it 1, or set `gradient_noise` to null or a number",
            )
        if self.sampler.exploration == 0 and (repulsion.stage == "exploration" or repulsion.force.relative):
            refuse(
                "repulsion",
                "does nothing without exploration, in which it acts or is measured: raise the sampler's "
                "`exploration`, or let an absolute or printed force act in the stage 'both'",
            )
        return self
