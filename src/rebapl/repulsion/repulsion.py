"""The repulsion from earlier samples: one scalar to add to the mean loss.

    L(θ) + Σ_s c_s·V(d²(θ, θ_s)),    V and c as in `force`, d² as in `distances`

The sum runs over the samples in the `memory`. A sample does not repel the cycle from which it was taken.

A force that changes slowly need not be computed at every step. With `every` = k it acts at every k-th step of a cycle,
starting with the first, as an impulse that is k times as strong (multiple time stepping: Tuckerman, Berne & Martyna,
1992). The target is the same as long as the force changes little within k steps.

Each chain has a `Repulsion` of its own, because the size of a relative force depends on the gradients of the chain.
Chains that run side by side share the memory (`beside`).
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
from rebapl.repulsion.distances import DISTANCES, Distance, as_points, check_clouds
from rebapl.repulsion.force import FORCES, POTENTIALS, Absolute, Fading, Force, Inverse, Potential, Relative
from rebapl.repulsion.memory import Keep, Memory
from rebapl.repulsion.mmd import MMD
from rebapl.repulsion.parameters import Gradient, gradient_of, sum_of, total_norm
from rebapl.settings import OneOf, Settings

Stage = Literal["exploration", "both"]

DISTANCE = OneOf("distance", DISTANCES)
POTENTIAL = OneOf("potential", POTENTIALS)
FORCE = OneOf("force", FORCES)

# If d² is below this share of its scale, or below the rounding of the distance, it is unreliable, and the sample exerts
# no relative force.
COINCIDENT = 1e-6
# The weight of the latest step in the running means of the loss and of its gradient's norm.
RECENT = 0.1
# The number of remembered samples whose ‖∇d‖ one step measures, each with a backward pass. The samples take turns.
AT_ONCE = 4
# The entries of a chain's state that are kept from one cycle to the next.
LASTING = ("usual", "count", "moved", "level", "first")


class RepulsionSettings(Settings):
    """The force (`distance`, `potential`, `force`), the samples from which it repels, and the steps at which it acts.

    `memory`: it repels from the samples of all earlier cycles, or of the previous one. `stage`: with "exploration", the
    sampling stage targets the undisturbed posterior; with "both", the coefficients of a relative force stay constant
    from the end of the exploration on, and the chain targets the density tilted by them. `every`: the number of steps
    from one impulse of the force to the next.
    """

    distance: Annotated[Distance, DISTANCE] = MMD()
    potential: Annotated[Potential, POTENTIAL] = Inverse()
    force: Annotated[Force, FORCE] = Fading()
    memory: Keep = "all"
    stage: Stage = "exploration"
    every: int = Field(default=1, ge=1)


class Term(NamedTuple):
    """The repulsion at one θ: its `value` Σ_s c_s·V_s, and the new `state` of the chain.

    A step that measures norms has already computed some gradients, which need no second backward pass: `of_loss`, that
    of the loss, and `of_samples`, those of c_s·V_s for the measured samples. `rest` is the value of the samples that
    were not measured, if there are any.
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

    `distance`, `potential` and `force` are objects (`MMD(bandwidth=1.0)`, `Inverse(epsilon=0.1)`, `Fading()`), names of
    their kinds, or mappings with a `kind`. These and `memory`, `stage` and `every` are as in `RepulsionSettings`; a
    `RepulsionSettings` object may be given in their place. `anchor` is the cloud on the whole pool of the model before
    learning, which sets the scale of ε.

    In a loop of your own, begin each cycle with `begin_cycle()`, add `repulsion(...)` to the loss at the steps where
    `acts(...)` is true, and `remember(...)` each sample. If the force has a tolerance, call `note_loss(...)` with the
    loss of every step.

    >>> pool = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    >>> repulsion = Repulsion("wasserstein", force={"kind": "absolute", "strength": 0.1}, anchor=pool)
    >>> theta = torch.zeros(8, 2, requires_grad=True)
    >>> repulsion.remember(pool + 1)
    >>> repulsion.begin_cycle()
    >>> if repulsion.acts(exploring=True):
    ...     repulsion(theta).backward()

    The `state` has tensors under these names, 0-d ones and ones with an entry for each remembered sample (S,):

    * `usual`, `count`: the running mean of ‖∇loss‖, and the number of norms in it. A step in which one backward pass
      computes the gradient of loss and force together does not know this norm, and leaves the mean as it is;
    * `moved`: the length of an adaptive optimiser's last step, divided by its lr;
    * `level`, `first`: the running mean of the loss, and its value at the end of the first cycle;
    * `slope` (S,): ‖∇d_s‖; `held` (S,): the coefficients c_s, which stay constant in a sampling stage;
    * `distance`, `norm`: d² to the nearest sample, and the sum of the norms of all samples' forces: for diagnostics;
    * `unsettled`: the `Distance.unsettled` of the last step that measured norms, for a distance with iterations.
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
        self._evaluations = 0  # of the force, in this cycle
        self._turn = 0  # the index of the sample whose slope is measured next
        self._warned = False

    def __len__(self) -> int:
        """The number of samples that repel now."""
        return len(self.memory)

    def active(self, exploring: bool) -> bool:
        """Whether it acts in this part of the cycle: samples are remembered, and the `stage` includes this part."""
        return len(self) > 0 and (self.stage == "both" or exploring)

    def acts(self, exploring: bool, within: int | None = None) -> bool:
        """Whether to add the repulsion at this step: it is active, and this is one of the steps at which it acts.

        `within` is the number of the step in its cycle, from 0, as in `CyclicalSchedule.within`. It may be left out if
        the repulsion acts at every step.
        """
        if self.every > 1 and within is None:
            raise UserError(f"repulsion: with every = {self.every}, say at which step of the cycle: acts(…, within)")
        return self.active(exploring) and (within or 0) % self.every == 0

    def remember(self, pool_cloud: Tensor) -> None:
        """Keep a sample's features (m, d) on the whole pool. They repel from the next cycle on."""
        self.memory.remember(pool_cloud)

    def begin_cycle(self, recall: bool = True) -> None:
        """Begin a cycle: the next step measures norms, and the samples of the last cycle repel from now on.

        `recall=False` leaves the memory as it is: for a chain that shares it with one that has already begun the cycle.
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
        """The term to add to the mean loss. `cloud` (n, d) are the features of the pool's points `rows` (None: of all).

        Forces that are relative to the loss gradient need `parameters` and `loss`, the mean loss before this term is
        added.
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
        """Give a force with a tolerance the mean loss () of a step. It needs the loss of every step of every cycle."""
        self.keep(self.noted(self._read(loss.device, "level") if self.tolerance is not None else {}, loss))

    def plan(self, device: torch.device, exploring: bool = True, acts: bool = True) -> tuple[str, dict[str, Tensor]]:
        """Begin a step on a device. Returns the kind of the step, and the state that `term` or `noted` need.

        Steps of one kind with one memory do the same operations whatever the values, so a step can be captured. In a
        `plain` step nothing repels. An `absolute` step needs no norms. A `measure` step measures norms, a `follow` step
        uses those measured last, and a `hold` step uses the coefficients from the end of the exploration.
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
        count = min(len(self), AT_ONCE)
        state["which"] = (torch.arange(count, device=device) + self._turn) % len(self)
        self._turn = (self._turn + count) % len(self)
        return "measure", state

    def _read(self, device: torch.device, *names: str) -> dict[str, Tensor]:
        """The entries of the state with these names. An entry that is not known yet has its starting value."""
        stored = self.memory.stored
        dtype = torch.float32 if stored is None else stored.cloud.dtype
        entries = {}
        for name in names:
            shape = (len(self),) if name in ("slope", "held") else ()
            unknown = math.nan if name in ("usual", "level") else 0.0
            value = self.state[name] if name in self.state else torch.full(shape, unknown, device=device)
            entries[name] = value.to(device, dtype)
        return entries

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """End a step: copy these values into the chain's state."""
        self.state |= {name: value.detach().clone() for name, value in state.items()}

    def noted(self, state: Mapping[str, Tensor], loss: Tensor, norm: Tensor | None = None) -> dict[str, Tensor]:
        """The running means after a step with this mean loss () and this ‖∇loss‖ (), if that is known.

        A pure function. A `follow` step knows only the joint norm of loss and force, so it leaves `norm` out.
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
        """The term of a step that `plan` has begun: a pure function of its arguments and the memory.

        With `decoupled`, a relative force is scaled by an adaptive optimiser's steps instead of the loss gradient.
        """
        # The distance to each remembered sample, and its potential.
        x = as_points(cloud)
        remembered = self.memory.stored
        assert remembered is not None
        stored = remembered if rows is None else remembered.rows(rows)
        check_clouds(self.distance, x, stored.cloud)
        squared = self.distance.between(x.to(stored.cloud.dtype), stored)
        scale = stored.shared["scale"]
        epsilon = self.potential.epsilon * scale
        potentials = self.potential.value(squared, epsilon)
        detached = squared.detach()
        nearest = {"distance": detached.amin()}
        force = self.force
        if isinstance(force, Absolute):
            return Term((self.every * force.strength * potentials).sum(), nearest)
        assert isinstance(force, Relative)
        # The slope of each potential in d, and of each d in θ, which only some steps measure.
        pull, bound = self.potential.slope(detached, epsilon), self.potential.bound(epsilon)
        apart = detached > (COINCIDENT * scale).clamp_min(self.distance.rounding)
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
            norms = torch.stack([total_norm(gradient) for gradient in of_samples]).to(potentials)
            # Where clouds nearly coincide, the slope may be small by chance, so it falls by half at most.
            measured = torch.maximum(norms / pull[which], 0.5 * slope[which])
            slope = slope.index_copy(0, which, torch.where(apart[which], measured, 0))
        # The strength of each sample's force: its coefficient c_s.
        share: Tensor | float = 1.0  # of the force, as reduced by a tolerance
        if self.tolerance is not None:
            share = (1 - (state["level"] - state["first"]) / self.tolerance).clamp(0, 1)

        def sized(usual: Tensor) -> Tensor:
            coefficients = force.coefficients(usual, slope, pull, bound)
            return share * torch.where(apart & (slope > 0) & coefficients.isfinite(), coefficients, 0)

        held = state["held"] if kind == "hold" else sized(usual)
        used = sized(state["moved"]) if decoupled else held
        after = {**means, **nearest, "slope": slope, "held": held, "norm": (used * pull * slope).sum()}
        if kind == "measure":
            unsettled = self.distance.unsettled(x.detach().to(stored.cloud.dtype), stored)
            after |= {} if unsettled is None else {"unsettled": unsettled}
        # The term, and also its gradient if norms were measured.
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

    def warn_if_unsettled(self) -> None:
        """Warn, once, if distances were inaccurate at the last step that measured norms. This waits for the device."""
        if "unsettled" in self.state and not self._warned:
            self._warned = self.distance.warn_of(self.state["unsettled"].item())

    @staticmethod
    def choose(pool_size: int, n: int, generator: torch.Generator) -> Tensor:
        """The indices (n,) of n random points of the pool, or of all points if the pool has fewer."""
        if n < 1 or pool_size < 1:
            raise UserError(f"repulsion: cannot choose {n} of {pool_size} reference points; both must be positive")
        return torch.randperm(pool_size, generator=generator, device=generator.device)[:n]

    def state_dict(self, memory: bool = True) -> dict[str, Any]:
        """Everything needed to continue bit for bit. A chain that shares another's memory leaves the `memory` out."""
        own = {"state": dict(self.state), "evaluations": self._evaluations, "turn": self._turn}
        return {**own, "memory": self.memory.state_dict()} if memory else own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. The settings are not part of it: they stay as they are."""
        if "memory" in state:
            self.memory.load_state_dict(state["memory"])
        self.state = dict(state["state"])
        self._evaluations, self._turn = state["evaluations"], state["turn"]


def requires_dependence(cloud: Tensor, parameters: Sequence[Tensor] | None = None) -> None:
    """Raise an error if a feature cloud does not depend on θ, because the force would then be zero.

    With `parameters`, a backward pass also checks that the cloud depends on at least one of them.
    """
    depends = cloud.requires_grad
    if depends and parameters is not None:
        gradients = torch.autograd.grad(cloud.sum(), parameters, retain_graph=True, allow_unused=True)
        depends = any(gradient is not None for gradient in gradients)
    if not depends:
        raise UserError(
            "repulsion: these features do not depend on the learned parameters, so nothing can be repelled "
            "in their space (image features of a text-only learner? a pass under torch.no_grad?); choose another"
        )


def running_mean(old: Tensor, new: Tensor, weight: Tensor | float) -> Tensor:
    """The running mean with one more value. A value that is not finite is ignored; the first finite one is the mean."""
    old, new = (torch.where(x.abs() < math.inf, x, other) for x, other in ((old, new), (new, old)))
    return torch.lerp(old, new, weight)
