"""The repulsion from earlier samples: one scalar to add to the mean loss.

    L(θ) + strength·Σ_s V(d²(θ, θ_s)),    V as in `potential`, d² as in `distances`

The sum runs over the remembered samples: those of all cycles before this one, or of the previous one alone (the
paper's). A sample does not repel the cycle that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from rebapl.errors import UserError, unknown
from rebapl.repulsion.clouds import Stored, as_points
from rebapl.repulsion.distances import check_dimensions, check_options, get_distance, takes
from rebapl.repulsion.potential import get_potential, natural_scale

SIZES = ("normalised", "fading", "capped", "absolute")
MEMORIES = ("previous", "all")
STAGES = ("exploration", "both")

# Below this share of its natural scale (or below the distance's own rounding) d² is not a number to rely on: the
# force there is not magnified.
COINCIDENT = 1e-6
# Weight of a new measurement of the loss gradient in the running mean.
RECENT = 0.2


class Turn(NamedTuple):
    """What one step of the repulsion does: a `kind`, and the tensors () it needs of earlier steps.

    Steps of one kind, with one memory, do the same operations whatever the values: such a step can be captured.
    """

    kind: str
    carried: tuple[Tensor, ...]


class Repulsion:
    """Pushes the features of θ away from those of remembered samples.

    Which distance: `metric` (a name in DISTANCES) with its `options` (mmd: bandwidth; sinkhorn:
    regularisation; sliced: projections). `potential`: inverse or log, with ε = `epsilon`·s, where s is d²
    between two halves of a stored sample's points, or `scale` if given (scale=1 makes ε absolute).

    How strong, by `size`:
    - absolute: strength·ΣV. In stage="both" the chain targets the density tilted by exp(−N·strength·ΣV/T).
    - capped: the same, but its gradient has at most `cap` times the usual norm of the loss gradient.
    - normalised: its gradient has `fraction` times the usual norm of the loss gradient; `strength` is not used.
      It never lets go: how far the samples are apart already does not matter.
    - fading: `fraction` times that norm where |dV/dd| is greatest, and less in proportion elsewhere: with the
      inverse potential, half of it at d² ≈ 1.9·ε and a tenth at d² ≈ 8.5·ε. Of several remembered samples the
      forces and their greatest values are added up: near one of three, it is a third.

    The last three measure both norms every `measure_every` steps (two more backward passes through the same
    graph), and more often as a cycle begins: at its steps 0, 1, 2, 4, 8, …. The usual norm of the loss gradient
    is a running mean of what was measured, since one mini-batch that is already fitted has none. In between,
    ‖∇ΣV‖ / Σ|dV/dd| = ‖∇d‖ is held fixed, and |dV/dd|, known in closed form, is followed. They are no gradients
    of a potential: in stage="both" no density is targeted.

    `memory`: all (the samples of every earlier cycle) or previous (of the last one). `stage`: exploration or
    both. `kick`: how far the chain loop moves θ off the saddle at a warm restart, relative to θ; see `kick`.
    `generator` draws the halves for s and the directions of sliced.

    >>> repulsion = Repulsion(metric="wasserstein", size="absolute", strength=0.1)
    >>> theta = torch.zeros(8, 2, requires_grad=True)
    >>> repulsion.remember(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    >>> repulsion.new_cycle()
    >>> repulsion(theta).backward()
    """

    def __init__(
        self,
        metric: str = "mmd",
        *,
        potential: str = "inverse",
        size: str = "fading",
        fraction: float = 1.0,
        strength: float = 1.0,
        cap: float = 1.0,
        epsilon: float = 0.3,
        scale: float | None = None,
        memory: str = "all",
        stage: str = "exploration",
        measure_every: int = 10,
        kick: float = 0.01,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        for kind, given, accepted in (
            ("size of the repulsion", size, SIZES),
            ("memory", memory, MEMORIES),
            ("stage", stage, STAGES),
        ):
            if given not in accepted:
                raise unknown(kind, given, accepted)
        for name, value in {"fraction": fraction, "strength": strength, "cap": cap, "kick": kick}.items():
            if not 0 <= value < float("inf"):
                raise UserError(f"repulsion: {name} must be a number of at least 0; got {value}")
        for name, value in {"epsilon": epsilon, "scale": 1.0 if scale is None else scale}.items():
            if not 0 < value < float("inf"):
                raise UserError(f"repulsion: {name} must be a positive number; got {value}")
        if measure_every < 1:
            raise UserError(f"repulsion: measure_every must be at least 1 step; got {measure_every}")
        check_options(metric, options)
        self.metric, self.potential, self.size = metric, potential, size
        self.fraction, self.strength, self.cap = fraction, strength, cap
        self.epsilon, self.scale = epsilon, scale
        self.memory, self.stage = memory, stage
        self.measure_every, self.kick = measure_every, kick
        self._distance, self._potential = get_distance(metric), get_potential(potential)
        self._generator = torch.Generator().manual_seed(0) if generator is None else generator
        self._options = options | ({"generator": self._generator} if "generator" in takes(metric) else {})
        self._memory: Stored | None = None
        self._pending: list[Stored] = []
        self._cycle = -1
        self._steps = 0
        self._measured = 0
        self._carried: tuple[Tensor, Tensor] | None = None
        self.distance: Tensor | None = None
        self.norms: tuple[Tensor, Tensor] | None = None

    @property
    def on_host(self) -> bool:
        """Whether a step waits for the device, by the nature of the distance."""
        return self._distance.on_host

    def __len__(self) -> int:
        """How many samples repel now."""
        return 0 if self._memory is None else len(self._memory.cloud)

    def active(self, schedule: Any) -> bool:
        """Whether to add the repulsion at this step: something is remembered, and the stage is the right one.

        `schedule` has `exploring`, and may have `cycle`: when that number changes, a new cycle begins by
        itself.
        """
        cycle = getattr(schedule, "cycle", self._cycle)
        if cycle != self._cycle:
            self._cycle = cycle
            self.new_cycle()
        return len(self) > 0 and (self.stage == "both" or bool(schedule.exploring))

    def remember(self, pool_cloud: Tensor) -> None:
        """Keeps one sample's features (m, d) for the whole pool. They repel from the next cycle on."""
        cloud = as_points(pool_cloud.detach()).clone()
        stored = self._distance.prepare(cloud, **self._options)
        if self.scale is None:
            scale = natural_scale(self._distance, stored, self._generator)
        else:
            scale = cloud.new_tensor([self.scale])
        self._pending.append(replace(stored, shared={**stored.shared, "scale": scale}))

    def new_cycle(self) -> None:
        """What was remembered since the last call repels from now on, alone or beside what did before.

        If nothing was, the memory stays. In any case the next step measures.
        """
        if self._pending:
            older = [self._memory] if self.memory == "all" and self._memory is not None else []
            self._memory, self._pending = Stored.join([*older, *self._pending]), []
        self._steps = 0
        if self._carried is not None:
            self._carried = (self._carried[0], torch.zeros_like(self._carried[1]))

    def __call__(
        self,
        cloud: Tensor,
        rows: Tensor | None = None,
        *,
        loss: Tensor | None = None,
        parameters: Iterable[Tensor] | None = None,
    ) -> Tensor:
        """The term to add to the mean loss, for the features `cloud` (n, d) of the pool's points `rows` (all
        if None).

        `loss` (the mean loss, before this term is added) and `parameters` are needed unless size="absolute".
        """
        requires_dependence(cloud)
        turn = self.turn(cloud.device)
        term, kept = self.term(turn, cloud, rows, loss, parameters)
        self.keep(kept)
        return term

    def turn(self, device: torch.device) -> Turn:
        """Begins a step for clouds on a device: counts it, and says what `term` is to do."""
        if self._memory is None:
            raise UserError(
                "repulsion: nothing is remembered yet; call it only when repulsion.active(schedule), and "
                "begin each cycle with repulsion.new_cycle()"
            )
        if self._memory.cloud.device != device:
            self._memory = self._memory.map(lambda tensor: tensor.to(device))
        if self.size == "absolute":
            return Turn("absolute", ())
        like = self._memory.cloud
        if self._carried is None:
            self._carried = (like.new_full((), float("nan")), like.new_zeros(()))
        loss_norm, slope = (x.to(like) for x in self._carried)
        beginning = self._steps < self.measure_every and self._steps.bit_count() == 1
        measuring = beginning or self._steps % self.measure_every == 0
        self._steps += 1
        if not measuring:
            return Turn("follow", (loss_norm, slope))
        self._measured += 1
        return Turn("measure", (loss_norm, slope, like.new_full((), max(1 / self._measured, RECENT))))

    def keep(self, kept: tuple[Tensor, ...]) -> None:
        """Ends a step: takes what `term` gave besides the term."""
        self.distance = kept[0]
        if self.size != "absolute":
            self._carried, self.norms = (kept[1], kept[2]), (kept[1], kept[3])

    def term(
        self,
        turn: Turn,
        cloud: Tensor,
        rows: Tensor | None,
        loss: Tensor | None,
        parameters: Iterable[Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The term of a step that `turn` began, and what `keep` is to take: a pure function of its arguments and
        the memory.
        """
        assert self._memory is not None
        x = as_points(cloud)
        check_dimensions(x, self._memory.cloud)
        stored = self._memory if rows is None else self._memory.rows(rows)
        squared = self._distance.between(x.to(stored.cloud.dtype), stored)
        epsilon = self.epsilon * stored.shared["scale"]
        potential = self._potential.value(squared, epsilon).sum()
        distance = squared.detach().amin()
        if self.size == "absolute":
            return self.strength * potential, (distance,)
        if loss is None or parameters is None:
            raise UserError(
                f"repulsion: size='{self.size}' compares with the gradient of the loss; call "
                "repulsion(cloud, loss=loss, parameters=list(model.parameters())), or use size='absolute'"
            )
        force = self._potential.force(squared.detach(), epsilon).sum()
        share = force / self._potential.bound(epsilon).sum() if self.size == "fading" else torch.ones_like(force)
        rounding = (COINCIDENT * stored.shared["scale"]).clamp_min(self._distance.rounding)
        apart = (squared.detach() > rounding).any()
        # ‖∇ΣV‖, and the usual ‖∇loss‖: measured now, or followed from the last measurement
        if turn.kind == "measure":
            usual, slope, weight = turn.carried
            tensors = [p for p in parameters if p.requires_grad]
            usual = running_mean(usual, gradient_norm(loss, tensors).to(potential), weight)
            norm = gradient_norm(potential, tensors).to(potential)
            # where forces cancel, or near coincidence, the slope is small by accident: let it fall by half
            # at most
            slope = torch.where(apart, torch.maximum(norm / force, 0.5 * slope), 0)
        else:
            usual, slope = turn.carried
            norm = slope * force
        factor = (self.cap if self.size == "capped" else self.fraction * share) * usual / norm
        if self.size == "capped":
            factor = factor.clamp(max=self.strength)
        factor = torch.where(apart & (slope > 0) & factor.isfinite(), factor, 0)
        return factor * potential, (distance, usual, slope, factor * norm)

    @staticmethod
    def choose(pool_size: int, n: int, generator: torch.Generator) -> Tensor:
        """A random n of the pool's points, all of them if there are no more; indices (n,)."""
        if n < 1 or pool_size < 1:
            raise UserError(f"repulsion: cannot choose {n} of {pool_size} reference points; both must be positive")
        return torch.randperm(pool_size, generator=generator, device=generator.device)[:n]

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on bit for bit: tensors under flat names, and plain values."""
        state: dict[str, Any] = {"metric": self.metric, "cycle": self._cycle}
        state |= {"steps": self._steps, "measured": self._measured}
        state["generator"] = self._generator.get_state()
        parts = {"memory": [] if self._memory is None else [self._memory], "pending": self._pending}
        for kind, stored in parts.items():
            if stored:
                state |= {f"{kind}.{name}": x for name, x in Stored.join(stored).tensors().items()}
        if self._carried is not None:
            state["loss_norm"], state["slope"] = self._carried
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`; the settings are this object's own."""
        if state["metric"] != self.metric:
            raise UserError(f"repulsion: the saved memory is for metric '{state['metric']}', not '{self.metric}'")

        def stored(kind: str) -> list[Stored]:
            tensors = {n[len(kind) + 1 :]: x for n, x in state.items() if n.startswith(f"{kind}.")}
            return [Stored.from_tensors(tensors)] if tensors else []

        self._memory = next(iter(stored("memory")), None)
        self._pending = stored("pending")
        self._cycle, self._steps, self._measured = state["cycle"], state["steps"], state["measured"]
        self._generator.set_state(state["generator"].cpu())
        self._carried = (state["loss_norm"], state["slope"]) if "loss_norm" in state else None


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


def running_mean(old: Tensor, new: Tensor, weight: Tensor) -> Tensor:
    """The mean with one more measurement; what is not finite does not enter it, as before the first."""
    old, new = torch.where(old.isfinite(), old, new), torch.where(new.isfinite(), new, old)
    return torch.lerp(old, new, weight)


def gradient_norm(value: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """‖∇value‖ over all parameters together, keeping the graph; shape ()."""
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return get_total_norm([g for g in found if g is not None])
