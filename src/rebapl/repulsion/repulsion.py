"""The repulsion from earlier samples: one scalar to add to the mean loss.

    L(θ) + Σ_s c_s·V(d²(θ, θ_s)),    V as in `potential`, c as in `force`, d² as in `distances`

The sum runs over the samples in the `memory`. A sample does not repel the cycle that made it.

A force that changes slowly need not be computed at every step. With `every` = k it acts at every k-th step of a cycle,
from the first on, as an impulse k times as strong (multiple time stepping: Tuckerman, Berne & Martyna, 1992). The
target is the same as long as the force is smooth over k steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rebapl.errors import UserError, unknown
from rebapl.repulsion.clouds import Stored, as_points
from rebapl.repulsion.distances import DISTANCES, Distance, check_dimensions
from rebapl.repulsion.force import FORCES, Force, Relative
from rebapl.repulsion.measured import Gradient, Measured, gradient_of, norm_of
from rebapl.repulsion.memory import Keep, Memory
from rebapl.repulsion.potential import POTENTIALS, Potential
from rebapl.settings import OneOf

Stage = Literal["exploration", "both"]

DISTANCE = OneOf("distance", DISTANCES)
POTENTIAL = OneOf("potential", POTENTIALS)
FORCE = OneOf("force", FORCES)

# Below this share of its scale (or below the distance's own rounding) d² is not a number to rely on: the force there
# is not magnified.
COINCIDENT = 1e-6
# Weight of a new measurement of the loss gradient in the running mean.
RECENT = 0.2
# The same for the loss of one more step, which a force with a tolerance follows.
RECENT_LOSS = 0.1
# Remembered samples whose ‖∇d‖ one step measures, each with a backward pass; the next step takes the next ones.
AT_ONCE = 4
# What is carried from one cycle to the next; `level` is the running mean of the loss, `first` what that was when the
# first cycle ended.
LASTING = ("usual", "step", "level", "first")


class Carried(NamedTuple):
    """What a step needs of earlier ones: the usual norm of the loss gradient (), the usual length of an adaptive
    optimiser's step over its lr (), ‖∇d_s‖ (S,), the coefficients that are held while sampling (S,), the share of the
    force that a tolerance leaves (); and for a step that measures, the weight of the new measurement () and which
    samples are measured (m,)."""

    usual: Tensor
    step: Tensor
    slope: Tensor
    held: Tensor
    share: Tensor
    weight: Tensor
    which: Tensor


class Plan(NamedTuple):
    """What one step of the repulsion does.

    Steps of one `kind`, with one memory, do the same operations whatever the values: such a step can be captured.
    `measure` measures norms, `follow` uses the last ones, `hold` keeps the coefficients of the exploration's end.
    """

    kind: str
    carried: Carried


class Found(NamedTuple):
    """What a step leaves: d² to the nearest sample (), and the new values of what is carried; the force's norm ().

    The norm is per step: an impulse that stands for k steps has k times that.
    """

    distance: Tensor
    usual: Tensor
    slope: Tensor
    held: Tensor
    norm: Tensor


class Repulsion:
    """Pushes the features of θ away from those of remembered samples.

    `distance`, `potential` and `force` are objects (`MMD(bandwidth=1.0)`, `Inverse(epsilon=0.1)`, `Fading()`), kinds by
    name, or mappings with a `kind`. `memory` is "all" (the samples of every earlier cycle) or "previous". `stage`:
    "exploration", so that the sampling stage targets the posterior undisturbed, or "both": then the coefficients of a
    relative force are held from the end of the exploration on, and the chain targets the density tilted by them.
    `every`: at which steps it acts, see above. `anchor` is the cloud on the whole pool of the model before anything was
    learned, which gives ε its scale.

    In a loop of your own, begin each cycle with `begin_cycle()`, add `repulsion(...)` to the loss where `acts(...)`,
    and `remember(...)` each sample. If the force has a tolerance, give the loss of every step to `note_loss(...)`.

    >>> pool = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    >>> repulsion = Repulsion("wasserstein", force={"kind": "absolute", "strength": 0.1}, anchor=pool)
    >>> theta = torch.zeros(8, 2, requires_grad=True)
    >>> repulsion.remember(pool + 1)
    >>> repulsion.begin_cycle()
    >>> if repulsion.acts(exploring=True):
    ...     repulsion(theta).backward()
    """

    def __init__(
        self,
        distance: str | Mapping[str, Any] | Distance = "mmd",
        *,
        potential: str | Mapping[str, Any] | Potential = "inverse",
        force: str | Mapping[str, Any] | Force = "fading",
        memory: Keep = "all",
        stage: Stage = "exploration",
        every: int = 1,
        anchor: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        for name, given, accepted in (
            ("memory", memory, ("all", "previous")),
            ("stage", stage, ("exploration", "both")),
        ):
            if given not in accepted:
                raise unknown(name, str(given), accepted)
        if every < 1:
            raise UserError(f"repulsion: every = {every}, but it can act at every step (1) or more rarely")
        self.distance: Distance = DISTANCE.read(distance)
        self.potential: Potential = POTENTIAL.read(potential)
        self.force: Force = FORCE.read(force)
        self.stage = stage
        self.every = every
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.memory = Memory(self.distance, memory, self.generator, self.potential.scale, anchor)
        self.last: Found | None = None
        self._steps = 0
        self._measured = 0
        self._carried: dict[str, Tensor] = {}

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

    def begin_cycle(self) -> None:
        """Begin a cycle: what was remembered in the last one repels from now on, and the next step measures."""
        self.memory.begin_cycle()
        self._steps = 0
        self._carried = {name: value for name, value in self._carried.items() if name in LASTING}
        if "level" in self._carried:
            self._carried.setdefault("first", self._carried["level"])

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
        requires_dependence(cloud)
        plan = self.plan(cloud.device, exploring)
        term, found, _ = self.term(plan, cloud, rows, loss, None if parameters is None else list(parameters))
        self.keep(found)
        return term

    def plan(self, device: torch.device, exploring: bool) -> Plan:
        """Begin a step for clouds on a device: count it, and say what `term` is to do."""
        if len(self) == 0:
            raise UserError(
                "repulsion: nothing is remembered yet; call it only where repulsion.acts(...), and begin each cycle "
                "with repulsion.begin_cycle()"
            )
        self.memory.to(device)
        carried = self._values(device)
        if not self.force.relative:
            return Plan("absolute", carried)
        if not exploring:
            return Plan("hold", carried)
        every: int = self.force.measure_every  # type: ignore[attr-defined]
        unmeasured = self._steps * AT_ONCE < len(self)
        beginning = unmeasured or (self._steps < every and self._steps.bit_count() == 1)
        measuring = beginning or self._steps % every == 0
        self._steps += 1
        if not measuring:
            return Plan("follow", carried)
        self._measured += 1
        many = min(len(self), AT_ONCE)
        start = int(self._carried["next"])
        self._carried["next"] = torch.tensor((start + many) % len(self))
        which = (torch.arange(many, device=device) + start) % len(self)
        weight = carried.usual.new_full((), max(1 / self._measured, RECENT))
        return Plan("measure", carried._replace(weight=weight, which=which))

    def _values(self, device: torch.device) -> Carried:
        like = self._stored.cloud.new_zeros(len(self))
        defaults = {"usual": like.new_full((), float("nan")), "step": like.new_zeros(()), "slope": like, "held": like}
        for name, value in {**defaults, "next": torch.tensor(0)}.items():
            self._carried.setdefault(name, value)
        current = {name: self._carried[name].to(like) for name in defaults}
        none = torch.zeros(0, dtype=torch.long, device=device)
        return Carried(**current, share=self._share(like), weight=like.new_zeros(()), which=none)

    def _share(self, like: Tensor) -> Tensor:
        """What the tolerance leaves of the force (): all of it without one."""
        if self._tolerance is None:
            return like.new_ones(())
        if "first" not in self._carried:
            raise UserError(
                "repulsion: a force with a tolerance follows the loss; call repulsion.note_loss(loss) at every step, "
                "from the first cycle on"
            )
        risen = (self._carried["level"] - self._carried["first"]).to(like)
        return (1 - risen / self._tolerance).clamp(0, 1)

    @property
    def _tolerance(self) -> float | None:
        return self.force.tolerance if isinstance(self.force, Relative) else None

    @property
    def _stored(self) -> Stored:
        assert self.memory.stored is not None
        return self.memory.stored

    def keep(self, found: Found) -> None:
        """End a step: take what `term` found."""
        self.last = found
        if self.force.relative:
            self._carried |= {"usual": found.usual, "slope": found.slope, "held": found.held}

    def note_loss(self, loss: Tensor) -> None:
        """The mean loss of a step (), of every step and every cycle: what a force with a tolerance follows."""
        if self._tolerance is not None:
            loss = loss.detach()
            level = self._carried.get("level", loss).to(loss)
            self._carried["level"] = running_mean(level, loss, RECENT_LOSS)

    def note_step(self, length: Tensor) -> None:
        """How far an adaptive optimiser moved θ in this step, over its lr: what a decoupled force is measured by."""
        self._carried["step"] = length

    def term(
        self,
        plan: Plan,
        cloud: Tensor,
        rows: Tensor | None,
        loss: Tensor | None,
        parameters: Sequence[Tensor] | None,
        decoupled: bool = False,
    ) -> tuple[Tensor, Found, Measured | None]:
        """The term of a step that `plan` began, what `keep` is to take, and the gradients of a step that measures: a
        pure function of its arguments and the memory. `decoupled` sizes a relative force by an adaptive optimiser's own
        steps instead of the loss gradient.
        """
        kind, carried = plan
        x = as_points(cloud)
        check_dimensions(x, self._stored.cloud)
        stored = self._stored if rows is None else self._stored.rows(rows)
        squared = self.distance.between(x.to(stored.cloud.dtype), stored)
        scale = stored.shared["scale"]
        epsilon = self.potential.epsilon * scale
        potentials = self.potential.value(squared, epsilon)
        known = squared.detach()
        pull, bound = self.potential.slope(known, epsilon), self.potential.bound(epsilon)
        apart = known > (COINCIDENT * scale).clamp_min(self.distance.rounding)
        usual, slope = carried.usual, carried.slope
        of_loss: Gradient | None = None
        of_samples: list[Gradient] = []
        if kind == "measure":
            usual, slope, of_loss, of_samples = self._measure(carried, potentials, pull, apart, loss, parameters)
        if not self.force.relative:
            used = held = self.force.coefficients(usual, slope, pull, bound)
        else:
            held = carried.share * self._usable(self.force.coefficients(usual, slope, pull, bound), apart, slope)
            held = carried.held if kind == "hold" else held
            used = held
            if decoupled:
                of_step = self.force.coefficients(carried.step, slope, pull, bound)
                used = carried.share * self._usable(of_step, apart, slope)
        found = Found(known.amin(), usual, slope, held, norm=(used * pull * slope).sum())
        used = self.every * used
        measured = None
        if of_loss is not None:
            others = used.index_fill(0, carried.which, 0.0) if len(of_samples) < len(used) else None
            rest = None if others is None else (others * potentials).sum()
            measured = Measured(of_loss, of_samples, used[carried.which], rest)
        return (used * potentials).sum(), found, measured

    def _measure(
        self,
        carried: Carried,
        potentials: Tensor,
        pull: Tensor,
        apart: Tensor,
        loss: Tensor | None,
        parameters: Sequence[Tensor] | None,
    ) -> tuple[Tensor, Tensor, Gradient, list[Gradient]]:
        """The usual ‖∇loss‖ () with one more measurement, ‖∇d_s‖ (S,) of some of the samples measured anew, and the
        gradients of the loss and of these samples' potentials."""
        if loss is None or parameters is None:
            raise UserError(
                f"repulsion: a force that is '{self.force.kind}' compares with the gradient of the loss; call "
                "repulsion(cloud, loss=loss, parameters=list(model.parameters())), or take an absolute force"
            )
        which = carried.which
        values = (loss, *potentials[which].unbind())
        of_loss, *of_samples = (gradient_of(value, parameters, keep=True) for value in values)
        usual = running_mean(carried.usual, norm_of(of_loss).to(potentials), carried.weight)
        norms = torch.stack([norm_of(each) for each in of_samples]).to(potentials)
        # near coincidence the slope is small by accident: let it fall by half at most
        measured = torch.maximum(norms / pull[which], 0.5 * carried.slope[which])
        slope = carried.slope.index_copy(0, which, torch.where(apart[which], measured, 0))
        return usual, slope, of_loss, of_samples

    @staticmethod
    def _usable(coefficients: Tensor, apart: Tensor, slope: Tensor) -> Tensor:
        return torch.where(apart & (slope > 0) & coefficients.isfinite(), coefficients, 0)

    @staticmethod
    def choose(pool_size: int, n: int, generator: torch.Generator) -> Tensor:
        """A random n of the pool's points, all of them if there are no more; indices (n,)."""
        if n < 1 or pool_size < 1:
            raise UserError(f"repulsion: cannot choose {n} of {pool_size} reference points; both must be positive")
        return torch.randperm(pool_size, generator=generator, device=generator.device)[:n]

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on bit for bit, under names."""
        return {
            "distance": self.distance.kind,
            "memory": self.memory.state_dict(),
            "carried": dict(self._carried),
            "steps": self._steps,
            "measured": self._measured,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; the settings are this object's own."""
        if state["distance"] != self.distance.kind:
            raise UserError(
                f"repulsion: the saved memory is for the distance '{state['distance']}', not '{self.distance.kind}'"
            )
        self.memory.load_state_dict(state["memory"])
        self._carried = dict(state["carried"])
        self._steps, self._measured = state["steps"], state["measured"]
        self.generator.set_state(state["generator"].cpu())


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
    """The mean with one more measurement; what is not finite does not enter it, as before the first."""
    old, new = torch.where(old.isfinite(), old, new), torch.where(new.isfinite(), new, old)
    return torch.lerp(old, new, weight)
