"""The repulsion from earlier samples: one scalar to add to the mean loss.

    L(θ) + Σ_s c_s·V(d²(θ, θ_s)),    V and c as in `force`, d² as in `distances`

The sum runs over the samples in the `memory`. A sample does not repel the cycle that made it.

A force that changes slowly need not be computed at every step. With `every` = k it acts at every k-th step of a cycle,
from the first on, as an impulse k times as strong (multiple time stepping: Tuckerman, Berne & Martyna, 1992). The
target is the same as long as the force is smooth over k steps.

Each chain has a `Repulsion` of its own, since a relative force is sized by that chain's gradients; chains side by side
share the memory (`beside`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from rebapl.errors import UserError
from rebapl.repulsion.distances import DISTANCES, Distance, as_points, check_dimensions
from rebapl.repulsion.force import FORCES, POTENTIALS, Absolute, Fading, Force, Inverse, Potential, Relative
from rebapl.repulsion.memory import Keep, Memory
from rebapl.repulsion.mmd import MMD
from rebapl.repulsion.parameters import Gradient, gradient_of, sum_of, total_norm
from rebapl.settings import OneOf, Settings

Stage = Literal["exploration", "both"]

DISTANCE = OneOf("distance", DISTANCES)
POTENTIAL = OneOf("potential", POTENTIALS)
FORCE = OneOf("force", FORCES)

# Below this share of its scale (or below the distance's own rounding) d² is not a number to rely on: the force there
# is not magnified.
COINCIDENT = 1e-6
# Weight of one more step in the running means of the loss and of its gradient's norm.
RECENT = 0.1
# Remembered samples whose ‖∇d‖ one step measures, each with a backward pass; the next step takes the next ones.
AT_ONCE = 4
# The part of a chain's state that outlasts a cycle.
LASTING = ("usual", "count", "moved", "level", "first")


class RepulsionSettings(Settings):
    """What repels (`distance`, `potential`, `force`) from which samples, and when.

    `memory`: from the samples of every earlier cycle, or of the previous one. `stage`: "exploration", so that the
    sampling stage targets the posterior undisturbed, or "both": then the coefficients of a relative force are held from
    the end of the exploration on, and the chain targets the density tilted by them. `every`: at every how many steps.
    """

    distance: Annotated[Distance, DISTANCE] = MMD()
    potential: Annotated[Potential, POTENTIAL] = Inverse()
    force: Annotated[Force, FORCE] = Fading()
    memory: Keep = "all"
    stage: Stage = "exploration"
    every: int = Field(default=1, ge=1)


class Term(NamedTuple):
    """The repulsion at one θ: its `value` Σ_s c_s·V_s, and the `state` of the chain after it.

    A step that measures norms has computed gradients, which need no second backward pass: that of the loss, and those
    of c_s·V_s for the measured samples. `rest` is the value of the samples that were not measured, if there are any.
    """

    value: Tensor
    state: dict[str, Tensor]
    of_loss: Gradient | None = None
    of_samples: Sequence[Gradient] = ()
    rest: Tensor | None = None

    def gradient(self, parameters: Sequence[Tensor]) -> Gradient:
        """The gradient of the value."""
        if self.of_loss is None:
            return gradient_of(self.value, parameters)
        return sum_of([*([] if self.rest is None else [gradient_of(self.rest, parameters)]), *self.of_samples])


class Repulsion:
    """Pushes the features of θ away from those of remembered samples: the force of one chain, with its state.

    `distance`, `potential` and `force` are objects (`MMD(bandwidth=1.0)`, `Inverse(epsilon=0.1)`, `Fading()`), kinds by
    name, or mappings with a `kind`; these and `memory`, `stage`, `every` are as in `RepulsionSettings`, of which an
    object may be given instead. `anchor` is the cloud on the whole pool of the model before anything was learned, which
    gives ε its scale.

    In a loop of your own, begin each cycle with `begin_cycle()`, add `repulsion(...)` to the loss where `acts(...)`,
    and `remember(...)` each sample. If the force has a tolerance, give the loss of every step to `note_loss(...)`.

    >>> pool = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    >>> repulsion = Repulsion("wasserstein", force={"kind": "absolute", "strength": 0.1}, anchor=pool)
    >>> theta = torch.zeros(8, 2, requires_grad=True)
    >>> repulsion.remember(pool + 1)
    >>> repulsion.begin_cycle()
    >>> if repulsion.acts(exploring=True):
    ...     repulsion(theta).backward()

    The `state` has, under these names, 0-d tensors and tensors with an entry for each remembered sample (S,):

    * `usual`, `count`: the running mean of ‖∇loss‖, and of how many norms;
    * `moved`: the length of an adaptive optimiser's last step over its lr;
    * `level`, `first`: the running mean of the loss, and what that was when the first cycle ended;
    * `slope` (S,): ‖∇d_s‖; `held` (S,): the coefficients c_s, which a sampling stage holds;
    * `distance`, `norm`: d² to the nearest sample, and the force's norm per step, for the diagnostics.
    """

    def __init__(
        self,
        distance: str | Mapping[str, Any] | Distance | RepulsionSettings = "mmd",
        *,
        anchor: Tensor | None = None,
        generator: torch.Generator | None = None,
        **others: Any,
    ) -> None:
        values: Any = {"distance": distance, **others}
        settings = distance if isinstance(distance, RepulsionSettings) and not others else RepulsionSettings(**values)
        self.distance, self.potential, self.force = settings.distance, settings.potential, settings.force
        self.stage, self.every = settings.stage, settings.every
        self.tolerance = self.force.tolerance if isinstance(self.force, Relative) else None
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.memory = Memory(self.distance, settings.memory, generator, self.potential.scale, anchor)
        self._begin_anew()

    def beside(self) -> Repulsion:
        """The repulsion of another chain: the same settings and the same memory, and a state of its own."""
        other = copy.copy(self)
        other._begin_anew()
        return other

    def _begin_anew(self) -> None:
        self.state: dict[str, Tensor] = {}
        self._evaluations = 0  # of this cycle
        self._turn = 0  # the sample whose slope is measured next

    def __len__(self) -> int:
        """How many samples repel now."""
        return len(self.memory)

    def active(self, exploring: bool) -> bool:
        """Whether it acts in this part of the cycle: something is remembered, and the stage is the right one."""
        return len(self) > 0 and (self.stage == "both" or exploring)

    def acts(self, exploring: bool, within: int | None = None) -> bool:
        """Whether to add the repulsion at this step: it is active, and an impulse is due.

        `within` counts the steps of the cycle from 0, as `CyclicalSchedule.within` does. It may be left out if the
        repulsion acts at every step.
        """
        if self.every > 1 and within is None:
            raise UserError(f"repulsion: with every = {self.every}, say at which step of the cycle: acts(…, within)")
        return self.active(exploring) and (within or 0) % self.every == 0

    def remember(self, pool_cloud: Tensor) -> None:
        """Keep one sample's features (m, d) for the whole pool. They repel from the next cycle on."""
        self.memory.remember(pool_cloud)

    def begin_cycle(self, recall: bool = True) -> None:
        """Begin a cycle: the next step measures, and the samples of the last cycle repel from now on.

        With `recall=False` the memory stays as it is: for a chain that shares it with one that has begun the cycle.
        """
        if recall:
            self.memory.begin_cycle()
        self._evaluations = self._turn = 0
        self.state = {name: value for name, value in self.state.items() if name in LASTING}
        if "level" in self.state:
            self.state.setdefault("first", self.state["level"])

    def __call__(
        self,
        cloud: Tensor,
        rows: Tensor | None = None,
        *,
        exploring: bool = True,
        loss: Tensor | None = None,
        parameters: Iterable[Tensor] | None = None,
    ) -> Tensor:
        """The term to add to the mean loss, for the features `cloud` (n, d) of the pool's points `rows` (all if None).

        `loss` (the mean loss, before this term is added) and `parameters` are needed by forces that are relative to
        the loss gradient.
        """
        if self.force.outside:
            raise UserError("a printed force moves θ beside the step, so it is no term of a loss: `Chain` applies it")
        if len(self) == 0:
            raise UserError(
                "repulsion: nothing is remembered yet; call it only where repulsion.acts(...), and begin each cycle "
                "with repulsion.begin_cycle()"
            )
        requires_dependence(cloud)
        kind, state = self.plan(cloud.device, exploring=exploring)
        term = self.term(kind, state, cloud, rows, loss, None if parameters is None else list(parameters))
        self.keep(term.state)
        return term.value

    def note_loss(self, loss: Tensor) -> None:
        """Tell a force with a tolerance the mean loss () of a step; it must hear of every step of every cycle."""
        self.keep(self.noted(self._read(loss.device, "level") if self.tolerance is not None else {}, loss))

    def plan(self, device: torch.device, exploring: bool = True, acts: bool = True) -> tuple[str, dict[str, Tensor]]:
        """Begin a step on a device: the kind of it, and the values that `term` or `noted` read.

        Steps of one kind, with one memory, do the same operations whatever the values: such a step can be captured.
        In a `plain` step nothing repels, an `absolute` one compares with nothing. `measure` measures norms, `follow`
        uses the last ones, and `hold` keeps the coefficients of the exploration's end.
        """
        self.memory.to(device)
        if not isinstance(self.force, Relative):
            return "absolute" if acts else "plain", {}
        if self.tolerance is not None and acts and "first" not in self.state:
            raise UserError(
                "repulsion: a force with a tolerance follows the loss; call repulsion.note_loss(loss) at every step, "
                "from the first cycle on"
            )
        yielding = () if self.tolerance is None else ("level", "first") if acts else ("level",)
        if not acts:
            return "plain", self._read(device, "usual", "count", *yielding)
        state = self._read(device, "usual", "count", "moved", "slope", "held", *yielding)
        if not exploring:
            return "hold", state
        now, every = self._evaluations, self.force.measure_every
        self._evaluations += 1
        unmeasured = now * AT_ONCE < len(self)
        if not (unmeasured or now % every == 0 or (now < every and now.bit_count() == 1)):
            return "follow", state
        many = min(len(self), AT_ONCE)
        state["which"] = (torch.arange(many, device=device) + self._turn) % len(self)
        self._turn = (self._turn + many) % len(self)
        return "measure", state

    def _read(self, device: torch.device, *names: str) -> dict[str, Tensor]:
        """Some of the state, with the values that it has before anything is known."""
        stored = self.memory.stored
        dtype = torch.float32 if stored is None else stored.cloud.dtype
        found = {}
        for name in names:
            shape = (len(self),) if name in ("slope", "held") else ()
            unknown = math.nan if name in ("usual", "level") else 0.0
            value = self.state[name] if name in self.state else torch.full(shape, unknown, device=device)
            found[name] = value.to(device, dtype)
        return found

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """End a step: its values become the chain's, as copies."""
        self.state |= {name: value.detach().clone() for name, value in state.items()}

    def noted(self, state: Mapping[str, Tensor], loss: Tensor, norm: Tensor | None = None) -> dict[str, Tensor]:
        """The running means after a step with this mean loss () and, where it is known, this ‖∇loss‖ ().

        A pure function. At a `follow` step the norm is that of loss and force together, and is left out.
        """
        means = {}
        if norm is not None and "usual" in state:
            means["count"] = state["count"] + 1
            weight = (1 / means["count"]).clamp_min(RECENT)
            means["usual"] = running_mean(state["usual"], norm.to(state["usual"]), weight)
        if "level" in state:
            means["level"] = running_mean(state["level"], loss.detach().to(state["level"]), RECENT)
        return means

    def term(
        self,
        kind: str,
        state: Mapping[str, Tensor],
        cloud: Tensor,
        rows: Tensor | None = None,
        loss: Tensor | None = None,
        parameters: Sequence[Tensor] | None = None,
        decoupled: bool = False,
    ) -> Term:
        """The term of a step that `plan` began: a pure function of its arguments and the memory.

        `decoupled` sizes a relative force by an adaptive optimiser's own steps instead of the loss gradient.
        """
        # how near each remembered sample is, and its potential
        x = as_points(cloud)
        remembered = self.memory.stored
        assert remembered is not None
        check_dimensions(x, remembered.cloud)
        stored = remembered if rows is None else remembered.rows(rows)
        squared = self.distance.between(x.to(stored.cloud.dtype), stored)
        scale = stored.shared["scale"]
        epsilon = self.potential.epsilon * scale
        potentials = self.potential.value(squared, epsilon)
        known = squared.detach()
        nearest = {"distance": known.amin()}
        force = self.force
        if isinstance(force, Absolute):
            return Term((self.every * force.strength * potentials).sum(), nearest)
        assert isinstance(force, Relative)
        # how steep each potential is, in d and (measured now and then) in θ
        pull, bound = self.potential.slope(known, epsilon), self.potential.bound(epsilon)
        apart = known > (COINCIDENT * scale).clamp_min(self.distance.rounding)
        usual, slope, means = state["usual"], state["slope"], {}
        of_loss, of_samples = None, []
        if kind == "measure":
            if loss is None or parameters is None:
                raise UserError(
                    f"repulsion: a force that is '{force.kind}' compares with the gradient of the loss; call "
                    "repulsion(cloud, loss=loss, parameters=list(model.parameters())), or take an absolute force"
                )
            which = state["which"]
            values = (loss, *potentials[which].unbind())
            of_loss, *of_samples = (gradient_of(value, parameters, keep=True) for value in values)
            means = self.noted({"usual": usual, "count": state["count"]}, loss, total_norm(of_loss))
            usual = means["usual"]
            norms = torch.stack([total_norm(each) for each in of_samples]).to(potentials)
            # near coincidence the slope is small by accident: let it fall by half at most
            measured = torch.maximum(norms / pull[which], 0.5 * slope[which])
            slope = slope.index_copy(0, which, torch.where(apart[which], measured, 0))
        # how strong the force of each sample is: its coefficient c_s
        share: Tensor | float = 1.0  # which a tolerance leaves of the force
        if self.tolerance is not None:
            share = (1 - (state["level"] - state["first"]) / self.tolerance).clamp(0, 1)

        def sized(usual: Tensor) -> Tensor:
            coefficients = force.coefficients(usual, slope, pull, bound)
            return share * torch.where(apart & (slope > 0) & coefficients.isfinite(), coefficients, 0)

        held = state["held"] if kind == "hold" else sized(usual)
        used = sized(state["moved"]) if decoupled else held
        after = {**means, **nearest, "slope": slope, "held": held, "norm": (used * pull * slope).sum()}
        # the term, and where norms were measured its gradient, too
        used = self.every * used
        value = (used * potentials).sum()
        if of_loss is None:
            return Term(value, after)
        others = used.index_fill(0, which, 0.0) if len(of_samples) < len(used) else None
        scaled = [
            tuple(None if g is None else weight * g for g in sample)
            for weight, sample in zip(used[which], of_samples, strict=True)
        ]
        return Term(value, after, of_loss, scaled, None if others is None else (others * potentials).sum())

    @staticmethod
    def choose(pool_size: int, n: int, generator: torch.Generator) -> Tensor:
        """A random n of the pool's points, all of them if there are no more; indices (n,)."""
        if n < 1 or pool_size < 1:
            raise UserError(f"repulsion: cannot choose {n} of {pool_size} reference points; both must be positive")
        return torch.randperm(pool_size, generator=generator, device=generator.device)[:n]

    def state_dict(self, memory: bool = True) -> dict[str, Any]:
        """Everything needed to go on bit for bit; without the `memory` for a chain that shares that of another."""
        own = {"state": dict(self.state), "evaluations": self._evaluations, "turn": self._turn}
        return {**own, "memory": self.memory.state_dict()} if memory else own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; the settings are this object's own."""
        if "memory" in state:
            self.memory.load_state_dict(state["memory"])
        self.state = dict(state["state"])
        self._evaluations, self._turn = state["evaluations"], state["turn"]


def requires_dependence(cloud: Tensor, parameters: Sequence[Tensor] | None = None) -> None:
    """Refuses a feature cloud that does not depend on θ, on which the force would be zero.

    With `parameters` it also checks that the dependence is on one of them, by a backward pass.
    """
    found: Sequence[Tensor | None] = [cloud]
    if cloud.requires_grad and parameters is not None:
        found = torch.autograd.grad(cloud.sum(), parameters, retain_graph=True, allow_unused=True)
    if not cloud.requires_grad or all(g is None for g in found):
        raise UserError(
            "repulsion: these features do not depend on the learned parameters, so nothing can be repelled "
            "in their space (image features of a text-only learner? a pass under torch.no_grad?); choose another"
        )


def running_mean(old: Tensor, new: Tensor, weight: Tensor | float) -> Tensor:
    """The mean with one more value; values that are not finite do not enter it, and the first is taken as it is."""
    old, new = (torch.where(x.abs() < math.inf, x, other) for x, other in ((old, new), (new, old)))
    return torch.lerp(old, new, weight)
