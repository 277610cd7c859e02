"""What the force does to θ in the loop: beside AdamW, as printed, and held while sampling.

The learner's loss is linear in θ, so the mini-batches' gradients, and with them the optimiser's own steps, are the same
with and without a force. The difference between two such runs is what the force did, and nothing else.
"""

from __future__ import annotations

import pytest
import torch

from rebapl.repulsion import Fading, Inverse, Repulsion, sinkhorn
from rebapl.repulsion.force import Absolute, Capped, Force, Normalised, Printed
from rebapl.repulsion.repulsion import Term
from rebapl.sampling import Chain, Inference
from rebapl.sampling.settings import Repelling

from .toy import ToyLearner, ToyOutput, data
from .toy import batches as toy_batches

STEPS, EPSILON = 80, 2.0
ADAMW = {"kind": "adamw", "lr": 0.05}
SGD = {"kind": "sgd", "lr": 0.05}


class Linear(torch.nn.Module):
    """loss = mean of x·θ, features = θ's second coordinate."""

    repels_in = "theta"

    def __init__(self):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.zeros(3))

    def use_noise(self, generator):
        """It draws nothing."""

    def reset(self, generator):
        """It starts where it is."""

    def forward(self, images):
        return ToyOutput(images @ self.theta, {}, {"theta": self.theta[1:2][None]})

    def loss(self, output, labels):
        return output.logits.mean() + 0 * labels.sum()


def batches(step):
    """Gradients of mean (0, −1, 0), so that θ's second coordinate goes up, and noise of size .7 in each."""
    noise = torch.randn(2, 3, generator=torch.Generator().manual_seed(step))
    return noise - torch.tensor([0.0, 1.0, 0.0]), torch.zeros(2, dtype=torch.long)


def chain(sampler, force: Force | None, stage="exploration", every=1, learner=None, **more) -> Chain:
    """Two cycles of 80 steps; with a force in the second."""
    repulsion = None
    if force is not None:
        acts = not isinstance(force, Normalised) or stage == "both"  # else ε does nothing, and is refused
        epsilon = {"epsilon": EPSILON} if acts else {}
        potential = Inverse(scale=1.0, **epsilon)
        given = {"potential": potential, "force": force, "stage": stage, "every": every}
        repulsion = Repelling(distance="paired", images=None, **given)
    inference = Inference(
        sampler=sampler, epochs=1, batch=2, cycles=2, restart="warm", curve="constant", repulsion=repulsion, **more
    )
    return Chain(learner or Linear(), inference, batches, num_data=50, steps_per_epoch=STEPS)


def walked(run: Chain) -> torch.Tensor:
    """θ (81, 3) at the beginning of the second cycle and after each of its steps, in float64."""
    seen = []
    while not run.done:
        if run.schedule.steps >= STEPS:
            seen.append(run.learner.theta.detach().double().clone())
        run.step()
    return torch.stack([*seen, run.learner.theta.detach().double()])


def start_beside_the_sample(run: Chain) -> None:
    """Runs the first cycle, and starts the second cycle off the saddle, as a kick would."""
    while run.schedule.steps < STEPS:
        run.step()
    with torch.no_grad():
        run._ends[0]["theta"] += 0.5
        run.learner.theta += 0.5


def share(squared: torch.Tensor) -> torch.Tensor:
    """|dV/dd| over its greatest value, for V = 1/(d²+ε): √u/(1+u)²·16/(3√3) with u = d²/ε, written without the
    package."""
    u = squared / EPSILON
    return u.sqrt() / (1 + u) ** 2 * 16 / (3 * 3**0.5)


BURN_IN = {"kind": "sghmc", "lr": 0.05, "burn_in": 1.0}


@pytest.mark.parametrize(
    "sampler", [ADAMW, BURN_IN, {**BURN_IN, "mass_matrix": "diagonal"}], ids=["adamw", "burn-in", "mass matrix"]
)
@pytest.mark.parametrize("fraction", [1.0, 0.03])
def test_beside_adamw_each_step_is_the_fraction_times_the_share_of_the_optimisers_own(sampler, fraction):
    """‖Δθ_force‖ = fraction·share·‖step‖: the step is the last one, the share that of where θ is."""
    plain, repelled = (walked(chain(sampler, force)) for force in (None, Fading(fraction=fraction)))
    exploring = STEPS if sampler is ADAMW else int(0.4 * STEPS)
    steps = (plain[1:] - plain[:-1])[:exploring]
    force = (repelled[1:] - repelled[:-1])[:exploring] - steps
    squared = (repelled[1:exploring, 1] - repelled[0, 1]).square()
    wanted = fraction * share(squared) * steps[:-1].norm(dim=1)
    torch.testing.assert_close(force[1:].norm(dim=1), wanted, rtol=1e-3, atol=1e-6)
    assert (force[1:, 1] > 0).all()  # away from the sample, which is below
    if fraction == 1.0:
        assert share(squared)[-1] < 0.5 < share(squared).max()  # it did fade


@pytest.mark.parametrize("lr", [0.05, 0.001])
@pytest.mark.parametrize("kind", ["sgd", "adamw", "sghmc"])
def test_the_printed_force_moves_theta_beside_the_step_whatever_the_step_size(kind, lr):
    """θ ← θ + the sampler's step − strength·∇ΣV(θ), in both stages; the momentum is that of a run without a force."""
    strength, sampler = 0.01, {"kind": kind, "lr": lr}
    runs = [
        chain(sampler, force, stage="both" if kind == "sghmc" else "exploration")
        for force in (None, Printed(strength=strength))
    ]
    for run in runs:
        start_beside_the_sample(run)
    sample = runs[1].samples[0].parameters["theta"].double()
    buffers, name = [], "exp_avg" if kind == "adamw" else "momentum_buffer"
    walks = []
    for run in runs:
        start = run.learner.theta.detach().double().clone()
        while run.schedule.steps < 2 * STEPS - 1:
            run.step()
            walks.append(run.learner.theta.detach().double().clone())
        buffers.append(run.schedule.current.state[run.learner.theta][name].clone())
        walks.insert(len(walks) - (STEPS - 1), start)
    plain, printed = torch.stack(walks).chunk(2)
    away = printed[:-1, 1] - sample[1]
    wanted = strength * 2 * away / (away.square() + EPSILON) ** 2  # −∇V
    moved = (printed[1:] - printed[:-1]) - (plain[1:] - plain[:-1])
    torch.testing.assert_close(moved[:, 1], wanted, rtol=1e-3, atol=5e-6)
    assert moved[:, [0, 2]].abs().max() < 5e-6
    assert wanted[:10].min() > 1e-3
    assert buffers[0].abs().max() > 0.1
    torch.testing.assert_close(*buffers, rtol=1e-4, atol=1e-5)


def test_an_absolute_force_inside_the_loss_is_carried_on_by_momentum():
    """Unlike a printed force, a force inside L builds up momentum: with .9, it moves θ ten times as far in the end."""
    strength, lr = 0.01, 1e-4
    runs = [chain({"kind": "sgd", "lr": lr}, force) for force in (None, Absolute(strength=strength))]
    for run in runs:
        start_beside_the_sample(run)
    sample = runs[1].samples[0].parameters["theta"].double()
    plain, repelled = (walked(run) for run in runs)
    away = (repelled[:-1, 1] - sample[1])[-1]
    once = lr * strength * 2 * away / (away.square() + EPSILON) ** 2
    assert ((repelled - plain)[-1, 1] - (repelled - plain)[-2, 1]).item() == pytest.approx(10 * once.item(), rel=0.05)


@pytest.mark.parametrize(
    "force",
    [Fading(measure_every=4), Normalised(measure_every=4), Capped(strength=50.0, cap=0.5, measure_every=4)],
    ids=lambda force: force.kind,
)
def test_in_both_stages_the_coefficients_of_a_relative_force_are_held_while_sampling(force):
    """From the last exploring step on they are constants, so the chain's drift is −∇(L + Σ c_s·V_s): the density that
    it targets is the posterior tilted by exp(−N·Σ c_s·V_s/T), and nothing else."""
    sampler = {"kind": "sghmc", "lr": 0.01, "temperature": 0.1, "exploration": 0.3, "samples_per_cycle": 3}
    run = chain(sampler, force, stage="both")
    held, exploring, gradients = [], [], []
    while not run.done:
        inside = run.schedule.steps > STEPS
        theta = run.learner.theta.detach().clone()
        now = run.schedule.exploring
        images, _ = batches(run.schedule.steps)
        run.step()
        if not inside:
            continue
        held.append(run.repulsion.state["held"].clone())
        exploring.append(now)
        gradients.append((theta, run.learner.theta.grad.clone() - images.mean(0)))
    held, exploring = torch.stack(held), torch.tensor(exploring)
    first = int((~exploring).nonzero()[0])
    assert held.shape == (STEPS - 1, 3)  # three samples repel
    assert (held[first - 1] > 0).all()
    assert torch.equal(held[first:], held[first - 1].expand(STEPS - 1 - first, 3))
    assert not torch.equal(held[0], held[first - 1])  # and while exploring they do move
    clouds = torch.stack([sample.parameters["theta"][1] for sample in run.samples[:3]])
    for theta, gradient in gradients[first:]:
        away = theta[1] - clouds
        wanted = -(held[-1] * 2 * away / (away.square() + EPSILON) ** 2).sum()
        torch.testing.assert_close(gradient, torch.tensor([0.0, wanted, 0.0]), rtol=1e-3, atol=1e-5)


class Uneven(Linear):
    """As above, with a parameter for the loss alone, one for the features alone, and one on which neither depends."""

    def __init__(self):
        super().__init__()
        self.bias, self.shift, self.unused = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))

    def forward(self, images):
        output = super().forward(images)
        return ToyOutput(output.logits + self.bias, {}, {"theta": output.cloud("theta") + self.shift})


@pytest.mark.parametrize("sampler", [SGD, ADAMW], ids=lambda sampler: sampler["kind"])
def test_the_gradients_that_a_measuring_step_reuses_are_those_it_would_compute(sampler, monkeypatch):
    """This also holds if the loss or the force has no gradient in a parameter, and beside AdamW."""
    term, ends = Repulsion.term, []
    for reuse in (True, False):

        def given(*arguments, reuse=reuse):
            found = term(*arguments)
            return found if reuse else Term(found.value, found.state)

        monkeypatch.setattr(Repulsion, "term", given)
        run = chain(sampler, Fading(measure_every=1), learner=Uneven())
        start_beside_the_sample(run)
        list(run.run())
        assert run.repulsion.state["norm"] > 0
        assert run.learner.unused.grad is None
        ends.append(run.samples[-1].parameters)
    torch.testing.assert_close(*ends)
    assert [bool(ends[0][name]) for name in ("bias", "shift", "unused")] == [True, True, False]


def test_a_mass_matrix_rescales_a_force_that_goes_through_the_step_as_it_rescales_the_loss():
    """After a burn-in that is shorter than the exploration, θ ← θ − lr·(momentum·v + P·(∇loss + ∇term))."""
    sampler = {"kind": "sghmc", "lr": 0.01, "momentum": 0.9, "burn_in": 0.5, "mass_matrix": "diagonal"}
    run = chain(sampler, Fading(fraction=0.5))
    start_beside_the_sample(run)
    while run.schedule.current is not run.schedule.optimizer:
        run.step()
    theta, state = run.learner.theta, run.schedule.optimizer.state[run.learner.theta]
    mass = state["inverse_mass"].clone()
    assert (mass / mass[0] - 1).abs().max() > 0.1
    run.step()
    before, buffer, lr = theta.detach().clone(), state["momentum_buffer"].clone(), run.schedule.lr
    images, _ = batches(run.schedule.steps)
    run.step()
    force = theta.grad - images.mean(0)
    assert force[1] < -1e-3
    assert force[[0, 2]].abs().max() < 1e-6
    wanted = before - lr * (0.9 * buffer + mass * (images.mean(0) + force))
    torch.testing.assert_close(theta.detach(), wanted, rtol=1e-5, atol=1e-6)


def two_cycles_of_three_chains(epochs, force):
    inference = Inference(
        sampler={"kind": "sghmc", "lr": 0.05, "temperature": 0.01},
        epochs=epochs,
        batch=8,
        cycles=2,
        chains=3,
        restart={"kind": "warm", "kick": 0.1},
        repulsion=Repelling(distance="paired", images=16, pool=16, force=force),
    )
    return Chain(ToyLearner(), inference, toy_batches, num_data=40, steps_per_epoch=5, reference=data()[0])


@pytest.fixture
def three_chains():
    """The force is measured at the first steps of each cycle."""
    return two_cycles_of_three_chains(3, Fading(measure_every=4))


def norm_of(value, parameters):
    """‖∇value‖ over all parameters, by autograd."""
    gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return torch.cat([g.flatten() for g in gradients if g is not None]).norm()


def test_each_chain_measures_its_own_slopes(monkeypatch):
    """Whenever a chain measures, ‖∇d_s‖ is that at its own θ, at the start of a cycle and later.

    Chains once inherited the slopes of the first. The one exception, by design: a slope falls by half at most from one
    measurement to the next. So where the force is measured, that of each sample is at most `fraction` of the usual
    gradient, and less where it fades. In between the slope is the last measured one, and θ has moved by some steps.
    """
    run = two_cycles_of_three_chains(10, Fading(fraction=0.8, measure_every=4))
    term, ratios, forces = Repulsion.term, {}, {"measure": [], "follow": []}

    def checked(self, kind, state, cloud, rows, loss, parameters, decoupled):
        found = term(self, kind, state, cloud, rows, loss, parameters, decoupled)
        stored = self.memory.stored.rows(rows)
        squared = self.distance.between(cloud, stored)
        true = torch.stack([norm_of(d, parameters) for d in squared.sqrt()])
        new, half = found.state["slope"], 0.5 * state["slope"]
        if kind == "measure":
            torch.testing.assert_close(new, torch.maximum(true, half), rtol=1e-3, atol=0)
            ratios.setdefault(id(self), []).append((new / true)[true > half])
        else:
            assert torch.equal(new, state["slope"])
        epsilon = self.potential.epsilon * stored.shared["scale"]
        potentials = found.state["held"] * self.potential.value(squared, epsilon)  # c_s·V_s
        nominal = 0.8 * found.state.get("usual", state["usual"])
        nearest = int(squared.argmin())
        forces[kind].append((norm_of(potentials[nearest], parameters) / nominal).item())
        return found

    monkeypatch.setattr(Repulsion, "term", checked)
    list(run.run())
    assert list(ratios) == [id(each) for each in run.repulsions]
    for each in ratios.values():
        assert [len(some) for some in each] == [3] * 7  # at evaluations 0, 1, 2, 4, 8, 12 and 16 of 20
        torch.testing.assert_close(torch.cat(each), torch.ones(21), rtol=1e-3, atol=0)
    assert [len(each) for each in forces.values()] == [3 * 7, 3 * 13]
    assert max(forces["measure"]) < 1.001
    assert max(forces["follow"]) < 1.1
    assert max(forces["measure"]) > 0.9  # near a sample it is the whole fraction


def test_the_usual_norm_is_a_mean_over_each_chains_own_steps(three_chains, monkeypatch):
    """The mean is over the steps whose loss gradient is known separately: those without a force and measuring ones."""
    noted, seen = Repulsion.noted, {id(each): [] for each in three_chains.repulsions}

    def watched(self, state, loss, norm=None):
        if norm is not None:
            seen[id(self)].append(norm.item())
        return noted(self, state, loss, norm)

    monkeypatch.setattr(Repulsion, "noted", watched)
    list(three_chains.run())
    for each in three_chains.repulsions:
        norms = seen[id(each)]
        assert len(norms) == 15 + 9 + 4  # the first cycle, the second's sampling, and evaluations 0, 1, 2 and 4 of 6
        mean = norms[0]
        for count, norm in enumerate(norms[1:], start=2):
            mean += (norm - mean) * max(1 / count, 0.1)
        assert each.state["usual"].item() == pytest.approx(mean, rel=1e-4)
    assert len({each.state["usual"].item() for each in three_chains.repulsions}) == 3


def test_a_chain_warns_if_theta_and_a_sample_do_not_settle(monkeypatch, recwarn):
    """It does so where numbers are checked anyway. With all updates there is nothing to warn of; with five, each chain
    warns once."""
    for updates in (50, 5):
        inference = Inference(
            sampler=SGD,
            epochs=3,
            batch=8,
            cycles=2,
            chains=2,
            restart={"kind": "warm", "kick": 0.1},
            repulsion=Repelling(distance="sinkhorn", images=8, pool=16, force=Fading(measure_every=4)),
        )
        given = {"num_data": 40, "steps_per_epoch": 5, "reference": data()[0], "check_every": 5}
        run = Chain(ToyLearner(), inference, toy_batches, **given)
        while run.schedule.cycle < 2:
            run.step()
        assert not recwarn.list
        monkeypatch.setattr(sinkhorn, "ITERATIONS", updates)
        list(run.run())
    assert [str(each.message).partition(" updates")[0] for each in recwarn.list] == ["Sinkhorn: after 5"] * 2


def test_each_chain_yields_by_its_own_loss(three_chains):
    """With a `tolerance`, a chain begins with the whole share of the force that its own loss allows.

    The losses of the chains are made to differ: chains once inherited the reference loss of the first one.
    """
    force = Fading(measure_every=4, tolerance=0.5)
    inference = three_chains.inference
    run = Chain(
        ToyLearner(),
        inference.changed(repulsion=inference.repulsion.changed(force=force)),
        toy_batches,
        num_data=40,
        steps_per_epoch=5,
        reference=data()[0],
    )
    loss, factors = run.learner.loss, (1.0, 5.0, 25.0)
    run.learner.loss = lambda output, labels: loss(output, labels) * factors[run.chain]
    levels = {}
    while not run.done:
        chain_now, starts = run.chain, run.cycle == 1 and run.schedule.within == 0
        run.step()
        if starts:
            levels[chain_now] = run.repulsions[chain_now].state["first"].item()
    assert levels[1] == pytest.approx(5 * levels[0], rel=0.5)
    assert levels[2] == pytest.approx(25 * levels[0], rel=0.5)
