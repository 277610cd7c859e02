"""The one loop: cycles, restarts, repulsion, averaging, adaptive cycles, resuming, stopping."""

from __future__ import annotations

import pytest
import torch

from rebapl.compiled import compiling, is_compiling
from rebapl.errors import UserError
from rebapl.repulsion import Fading
from rebapl.repulsion.force import Absolute, Normalised
from rebapl.sampling import SGHMC, Adaptive, Chain, Inference, NonFiniteError
from rebapl.sampling.settings import Repelling

from .toy import ToyLearner, batches, data

SAMPLER = {"kind": "sghmc", "lr": 0.05, "temperature": 0.01}
SGD = {"kind": "sgd", "lr": 0.05}
BASE = Inference(sampler=SAMPLER, epochs=2, batch=8, cycles=3, restart="warm")
REPEL = Repelling(images=6, pool=16, force=Fading(measure_every=3))


def settings(sampler=None, **changes) -> Inference:
    """The base settings with changes; `sampler` changes settings of the base's sampler."""
    if isinstance(sampler, dict) and "kind" not in sampler:
        sampler = {**SAMPLER, **sampler}
    if changes.get("cycles") == 1:
        changes = {"restart": None, **changes}
    return BASE.changed(**({} if sampler is None else {"sampler": sampler}), **changes)


def chain(inference=BASE, learner=None, **more) -> Chain:
    options = {"num_data": 40, "steps_per_epoch": 5, "reference": data()[0], **more}
    return Chain(learner or ToyLearner(), inference, batches, **options)


def values(samples):
    return torch.stack([torch.cat([x.flatten() for x in sample.parameters.values()]) for sample in samples])


def test_samples_come_from_each_cycle_and_hold_only_what_is_learned():
    samples = list(chain(settings({"samples_per_cycle": 2})).run())
    assert [(s.cycle, s.step) for s in samples] == [(0, 7), (0, 10), (1, 17), (1, 20), (2, 27), (2, 30)]
    assert set(samples[0].parameters) == {"image", "text"}
    assert all(x.dtype == torch.float32 and not x.requires_grad for x in samples[0].parameters.values())
    assert len(values(samples).unique(dim=0)) == 6


@pytest.mark.parametrize(
    ("outside", "given", "compiled"),
    [
        (False, None, False),  # a short run on a CPU does not compile by itself
        (False, True, True),
        (True, None, True),
        (True, False, False),
    ],
)
def test_a_chain_that_was_not_told_whether_to_compile_keeps_an_outer_decision(outside, given, compiled):
    seen = []

    class Asking(ToyLearner):
        def loss(self, output, labels):
            seen.append(is_compiling())
            return super().loss(output, labels)

    run = chain(learner=Asking(), compile=given)
    with compiling(outside):
        run.step()
    assert seen == [compiled]


def test_reference_images_ride_in_the_same_pass_only_while_the_repulsion_acts():
    learner = ToyLearner()
    run = chain(settings(repulsion=REPEL, cycles=2), learner)
    assert learner.seen == [1, 16]  # one look at the feature space, and the pool before anything is learned
    for _ in run.run():
        pass
    first, pool, rest = learner.seen[2:12], learner.seen[12], learner.seen[13:]
    assert first == [8] * 10
    assert pool == 16
    assert rest == [8 + 6] * 4 + [8] * 6  # what the last cycle found repels nothing, so nobody looks at it


def test_repulsion_moves_the_next_cycle_further_from_the_last():
    """Paired over 10 seeds: the distance between consecutive samples' features grows by over 3 standard errors."""
    gains = []
    for seed in range(10):
        distance = []
        for repulsion in (
            None,
            Repelling(images=16, pool=40, force=Normalised(fraction=3.0, measure_every=1), distance="paired"),
        ):
            run = chain(settings(SGD, repulsion=repulsion, cycles=2), ToyLearner(seed))
            features = []
            for _ in run.run():
                with torch.no_grad():
                    features.append(run.learner(data()[0]).cloud("image"))
            distance.append((features[0] - features[1]).square().mean().item())
        gains.append(distance[1] - distance[0])
    gains = torch.tensor(gains)
    assert gains.mean() > 3 * gains.std() / 10**0.5


@pytest.mark.parametrize("restart", [{"kind": "warm", "kick": 0.01}, "cold"], ids=["warm", "cold"])
@pytest.mark.parametrize("chains", [1, 2])
def test_the_force_acts_in_every_exploring_step_from_the_second_cycle_on(restart, chains):
    run = chain(settings(repulsion=Repelling(images=6, pool=16), restart=restart, chains=chains), record_every=1)
    list(run.run())
    forces = [row["force_norm"] for row in run.diagnostics.rows() if "force_norm" in row]
    assert len(forces) == 2 * chains * 4
    assert min(forces) > 0


def test_a_space_that_cannot_move_and_a_missing_pool_are_refused_at_once():
    with pytest.raises(UserError, match="do not depend"):
        chain(settings(repulsion=Repelling(space="raw")))
    with pytest.raises(UserError, match="needs reference images"):
        chain(settings(repulsion=REPEL), reference=None)
    assert chain(settings(repulsion=Repelling(space="text", images=None)), reference=None).repulsion is not None
    with pytest.raises(UserError, match="a point per class and compares no images: set `images` to null"):
        chain(settings(repulsion=Repelling(space="text", images=6)))
    with pytest.raises(UserError, match=r"the 1 stored points .* take the distance 'paired'"):
        chain(settings(repulsion=Repelling(space="weights", images=None, distance="mmd")))
    with pytest.raises(UserError, match="no images"):
        chain(settings(adaptive=Adaptive()), held_out=(torch.empty(0, 5), None))


def test_a_batch_of_another_size_and_the_wrong_loop_are_refused():
    with pytest.raises(UserError, match=r"batches of 9 images, and step 0 was given 8: .* or change `batch`"):
        chain(settings(batch=9)).step()
    stein = Inference(sampler={"kind": "svgd", "lr": 0.05}, epochs=2, batch=8)
    with pytest.raises(UserError, match="run it with SVGD, not with Chain"):
        chain(stein)


def test_the_learners_own_space_is_the_default_and_one_must_be_named():
    assert chain(settings(repulsion=REPEL)).reference.space == "image"
    learner = ToyLearner()
    learner.repels_in = None
    with pytest.raises(UserError, match="names no feature space to repel in: set the repulsion's `space`"):
        chain(settings(repulsion=REPEL), learner)
    assert chain(settings(repulsion=REPEL.changed(space="logits")), learner).reference.space == "logits"


def test_the_anchor_of_epsilon_is_what_is_given_or_the_model_as_it_is():
    pool = data()[0][:16]
    own = chain(settings(repulsion=REPEL))
    torch.testing.assert_close(own.repulsion.memory.anchor, ToyLearner()(pool).cloud("image").detach())
    given = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    other = chain(settings(repulsion=REPEL), anchor=given)
    assert torch.equal(other.repulsion.memory.anchor, given[:16])
    assert not torch.equal(values(list(own.run())), values(list(other.run())))


def test_samples_are_looked_at_in_evaluation_mode_and_each_part_keeps_its_own():
    class Modes(ToyLearner):
        def __init__(self):
            super().__init__()
            self.part = torch.nn.Dropout().eval()
            self.modes = []

        def forward(self, images):
            self.modes.append(self.training)
            return super().forward(images)

    learner = Modes()
    list(chain(settings(repulsion=REPEL, cycles=2), learner).run())
    assert learner.modes == [True, False] + [True] * 10 + [False] + [True] * 10  # the anchor, the first sample
    assert learner.training
    assert not learner.part.training


def test_averaging_weighs_the_epochs_of_the_cycle():
    ends = []
    plain = chain(settings(SGD, cycles=1, epochs=4))
    for step in range(20):
        plain.step()
        if step % 5 == 4:
            ends.append(plain.learner.image.detach().clone())
    (sample,) = chain(settings(SGD, cycles=1, epochs=4, averaging={"mean": 3.0, "std": 1.0})).run()
    weights = torch.exp(-0.5 * (torch.arange(1.0, 5.0) - 3) ** 2)
    wanted = sum(w * end for w, end in zip(weights / weights.sum(), ends, strict=True))
    torch.testing.assert_close(sample.parameters["image"], wanted)


RESUMABLE = {
    "sghmc": {},
    "sgld": {"sampler": {**SAMPLER, "kind": "sgld"}},
    "repulsion": {"repulsion": REPEL},
    "a force that yields": {
        "restart": {"kind": "warm", "kick": 3.0},  # so that the loss rises
        "repulsion": REPEL.changed(force=Fading(measure_every=3, tolerance=1.0)),
        "cycles": 3,
    },
    "sliced, both stages": {"repulsion": Repelling(images=6, pool=16, distance="sliced", stage="both")},
    "printed": {"repulsion": REPEL.changed(force={"kind": "printed", "strength": 1e-4}, stage="both")},
    "chains, cold": {"chains": 2, "cycles": 2, "restart": "cold", "repulsion": REPEL},
    "chains, warm": {"chains": 2, "cycles": 2, "repulsion": REPEL, "sampler": {"samples_per_cycle": 2}},
    "kicked": {"restart": {"kind": "warm", "kick": 0.1, "keep_momentum": True}},
    "burn-in": {
        "sampler": {"burn_in": 0.75, "gradient_noise": "estimate", "center": "init", "weight_decay": 0.1},
        "repulsion": REPEL,
    },
    "averaging": {"averaging": {"mean": 1.0, "std": 1.0}, "sampler": SGD},
    "adamw": {
        "sampler": {"kind": "adamw", "lr": 0.05},
        "warmup": {"epochs": 1},
        "curve": {"kind": "cosine", "every": "epoch"},
        "repulsion": REPEL,
    },
    "adaptive": {"adaptive": Adaptive(), "cycles": 4},
}


@pytest.mark.parametrize("name", RESUMABLE)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(name, tmp_path):
    inference = settings(**RESUMABLE[name])
    more = {"held_out": data(20, seed=5)}
    whole = list(chain(inference, **more).run())
    for stop in (3, 10, 14):
        first = chain(inference, **more)
        for _ in range(stop):
            first.step()
        torch.save(first.state_dict(), tmp_path / "state.pt")
        del first
        second = chain(inference, ToyLearner(seed=99), **more)
        second.load_state_dict(torch.load(tmp_path / "state.pt"))
        list(second.run())
        assert torch.equal(values(second.samples), values(whole))
        assert [(s.cycle, s.chain, s.step) for s in second.samples] == [(s.cycle, s.chain, s.step) for s in whole]


MASS = {"mass_matrix": "diagonal"}
WITH_A_MASS_MATRIX = {
    "of its own gradients": {"sampler": MASS},
    "of AdamW, with a force and chains": {
        "sampler": {**MASS, "burn_in": 0.7, "gradient_noise": "estimate", "lr": 0.001},
        "chains": 2,
        "repulsion": REPEL,
    },
    "of AdamW until the sampling": {"sampler": {**MASS, "burn_in": 1.0}, "repulsion": REPEL},
}


@pytest.mark.parametrize("name", WITH_A_MASS_MATRIX)
def test_a_resumed_run_has_the_mass_matrix_that_was_frozen(name, tmp_path):
    """Cycles are long enough for a mass matrix other than 1; runs stop before, at and after its freezing."""
    inference = settings(**WITH_A_MASS_MATRIX[name], epochs=10)
    first, frozen = chain(inference), 0
    for step in range(1, first.steps_in_all + 1):
        first.step()
        masses = [state["inverse_mass"] for state in first.schedule.optimizer.state.values() if "inverse_mass" in state]
        frozen += any((mass - 1).abs().max() > 0.1 for mass in masses)
        if step in (7, 20, 23, 41, 60, 73):
            torch.save(first.state_dict(), tmp_path / f"{step}.pt")
    assert frozen > 50
    for path in tmp_path.iterdir():
        second = chain(inference, ToyLearner(seed=99))
        second.load_state_dict(torch.load(path))
        list(second.run())
        assert torch.equal(values(second.samples), values(first.samples)), path.name


def test_adaptive_cycles_stop_when_nothing_is_gained():
    """At a vanishing step size every cycle gives the same sample. Two cycles show this, and the others are not run."""
    idle = settings({**SGD, "lr": 1e-9}, cycles=10, adaptive=Adaptive())
    run = chain(idle, held_out=data(20, seed=5))
    assert len(list(run.run())) == 2
    assert run.done
    patient = chain(idle.changed(adaptive=Adaptive(patience=3)), held_out=data(20, seed=5))
    assert len(list(patient.run())) == 4
    eager = Adaptive(min_diversity_gain=0.0, min_likelihood_gain=0.0)
    different = settings(SGD, restart="cold", cycles=4, adaptive=eager)
    assert len(list(chain(different, held_out=data(20, seed=5)).run())) == 4
    with pytest.raises(UserError, match="held_out"):
        chain(idle)


def test_same_seed_same_run_and_global_randomness_is_untouched():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    runs = [values(chain(settings(repulsion=REPEL), seed=seed).run()) for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.equal(before, torch.get_rng_state())


class Breaks(ToyLearner):
    """A learner whose loss, or only its gradient, is not finite from the 13th pass on."""

    def __init__(self, term):
        super().__init__()
        self.term, self.calls = term, 0

    def loss(self, output, labels):
        self.calls += 1
        loss = super().loss(output, labels)
        if self.calls <= 12:
            return loss
        if self.term == "loss":
            return loss * float("nan")
        return loss + (output.logits.detach() - output.logits).abs().sum().sqrt() * 1.0  # value 0, gradient 0·inf


@pytest.mark.parametrize("term", ["loss", "gradient"])
def test_a_non_finite_term_stops_the_run_and_leaves_the_last_good_state(term):
    learner = Breaks(term)
    run = chain(settings(), learner, check_every=4)
    with pytest.raises(NonFiniteError, match=f"the {term} is not finite at step 12") as error:
        list(run.run())
    assert error.value.step == 12
    assert error.value.good_step == 12
    assert "lower" in str(error.value)
    good = chain(settings(), ToyLearner(), check_every=4)
    for _ in range(12):
        good.step()
    assert torch.equal(learner.image, good.learner.image)
    assert len(run.samples) == 1
    learner.calls = -1000
    assert len(list(run.run())) == 2
    assert torch.equal(values(run.samples), values([*list(chain(settings(), ToyLearner()).run())]))


def test_the_last_good_state_is_never_older_than_a_loaded_one():
    saved = chain()
    for _ in range(8):
        saved.step()
    run = chain(learner=Breaks("loss"), check_every=50)
    run.step()
    run.load_state_dict(saved.state_dict())
    run.learner.calls = 1000
    with pytest.raises(NonFiniteError) as error:
        list(run.run())
    assert error.value.good_step == 8
    assert torch.equal(run.learner.image, saved.learner.image)


def test_a_non_finite_repulsion_is_named():
    run = chain(settings(repulsion=REPEL.changed(force=Absolute(strength=1e38))), check_every=1)
    with pytest.raises(NonFiniteError, match=r"not finite at step \d+: the repulsion is the likely cause"):
        list(run.run())


def test_diagnostics_read_the_temperature_and_the_norms():
    run = chain(settings({"gradient_noise": "estimate", "temperature": 1.0}, repulsion=REPEL), record_every=1)
    list(run.run())
    rows = run.diagnostics.rows()
    assert [row["step"] for row in rows] == list(range(30))
    assert all(row["gradient_norm"] > 0 for row in rows)
    assert rows[0]["temperature"] == 0.0
    assert rows[9]["temperature"] == 1.0
    assert rows[12]["force_norm"] > 0
    assert rows[12]["distance"] > 0
    assert "force_norm" not in rows[0]
    assert 0 < rows[9]["acceptance"] <= 1


def test_a_run_that_is_over_moves_nothing_when_it_is_asked_for_a_step() -> None:
    run = chain(settings(cycles=1))
    list(run.run())
    before = {name: p.detach().clone() for name, p in run.parameters.items()}
    with pytest.raises(UserError, match="this run is over"):
        run.step()
    assert all(torch.equal(p, before[name]) for name, p in run.parameters.items())


def test_a_device_that_steps_do_not_wait_for_warns_at_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    warn = SGHMC.warn_if_clamped
    monkeypatch.setattr(SGHMC, "warn_if_clamped", lambda self, wait=True: warn(self) if wait else None)
    noisy = {"temperature": 1e-9, "gradient_noise": "estimate"}
    with pytest.warns(UserWarning, match="Lower lr"):
        list(chain(settings(noisy, cycles=1)).run())
