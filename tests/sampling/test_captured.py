"""Steps that are replayed as CUDA graphs give the same numbers as steps without recordings, and take less CPU time."""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from rebapl import captured
from rebapl.backbones import load_backbone
from rebapl.data.batches import TrainBatches
from rebapl.data.task import load_task
from rebapl.errors import UserError
from rebapl.learners import METHODS
from rebapl.repulsion import Fading
from rebapl.repulsion.force import Absolute, Capped, Normalised
from rebapl.sampling import Chain, Inference, NonFiniteError
from rebapl.sampling.settings import Repelling
from rebapl.training.fit import Training
from rebapl.training.resolution import resolve_training

from .toy import ToyLearner, batches, data


class Recorded:
    """Stands in for a CUDA graph: says so, and keeps the function it was given, as a recording does."""

    made: list[str] = []

    def __init__(self, function, given, _generators, _pool):
        self.function, self.shapes, self.graph = function, [x.shape for x in given], self
        Recorded.made.append(function.__name__)

    def pool(self):
        return None

    def fits(self, given):
        return [x.shape for x in given] == self.shapes

    def __call__(self, *given):
        return ("replayed", self.function(*given))


def test_a_kind_of_step_is_recorded_after_two_runs_and_again_for_another_memory_or_shape(monkeypatch):
    monkeypatch.setattr(captured, "_Captured", Recorded)
    Recorded.made = []
    capturing, x = captured.Capturing(), torch.ones(2)

    def first(x):
        return x.sum().item()

    def second(x):
        return -x.sum().item()

    assert [capturing("plain", first, x) for _ in range(4)] == [2.0, 2.0, ("replayed", 2.0), ("replayed", 2.0)]
    assert Recorded.made == ["first"]
    for memory, expected in ((1, -2.0), (1, -2.0), (1, ("replayed", -2.0)), (2, ("replayed", -2.0))):
        assert capturing("follow", second, x, memory=memory) == expected
    assert Recorded.made == ["first", "second", "second"]
    assert capturing("plain", first, torch.ones(3)) == ("replayed", 3.0)
    assert Recorded.made == ["first", "second", "second", "first"]


class Replayed:
    """Stands in for a CUDA graph on the CPU: it copies the inputs, and each replay overwrites the last outputs."""

    def __init__(self, function, given, _generators, _pool):
        self.function, self.graph = function, self
        self.copies = tree_map(torch.clone, given)
        self.inputs = tree_leaves(self.copies)
        self.outputs = None

    fits = captured._Captured.fits

    def pool(self):
        return None

    def __call__(self, *given):
        for own, x in zip(self.inputs, tree_leaves(given), strict=True):
            own.copy_(x)
        outputs = self.function(*self.copies)
        if self.outputs is None:
            self.outputs = outputs
        for old, new in zip(tree_leaves(self.outputs), tree_leaves(outputs), strict=True):
            if old is not None:
                old.copy_(new)
        return self.outputs


class Drawn:
    """The toy's batches, which can be drawn inside a pass. From step `breaks` on, their images are not finite."""

    def __init__(self, drawable=True, size=8, breaks=1000):
        self.drawable, self.size, self.breaks = drawable, size, breaks
        self.asked = []

    def __call__(self, step):
        self.asked.append(step)
        return self.draw(self.choices(step))

    def choices(self, step):
        rows = torch.randperm(40, generator=torch.Generator().manual_seed(step))[: self.size]
        return torch.stack([rows, torch.full_like(rows, step >= self.breaks)], dim=1)

    def draw(self, choices):
        x, y = data()
        return x[choices[:, 0]] + torch.where(choices[:, 1:] > 0, torch.nan, 0.0), y[choices[:, 0]]


def drawn_chain(batches, capture=True, chains=1, **options):
    inference = Inference(
        sampler={"kind": "sghmc", "lr": 0.05, "temperature": 0.01},
        epochs=3,
        batch=8,
        cycles=3,
        chains=chains,
        restart={"kind": "warm", "kick": 0.01},
        repulsion=Repelling(images=6, force=Fading(measure_every=3)),
    )
    options = {"num_data": 40, "steps_per_epoch": 5, "reference": data()[0], **options}
    return Chain(ToyLearner(), inference, batches, capture=capture, **options)


def assert_same(first, second):
    """Samples that are equal to the bit."""
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(a.parameters[name], b.parameters[name]) for name in a.parameters)


@pytest.fixture
def replayed(monkeypatch):
    monkeypatch.setattr(captured, "_Captured", Replayed)


@pytest.mark.usefixtures("replayed")
def test_a_batch_drawn_inside_the_pass_gives_the_same_run_to_the_bit():
    usual, outside, inside = Drawn(), Drawn(drawable=False), Drawn()
    wanted = list(drawn_chain(usual, capture=False).run())
    for given in (outside, inside):
        assert_same(wanted, drawn_chain(given).run())
    assert usual.asked == outside.asked == [0, *range(45)]  # the first is an example for the repulsion
    assert inside.asked == [0]


@pytest.mark.usefixtures("replayed")
def test_chains_that_share_recordings_keep_forces_of_their_own():
    usual, captured = (list(drawn_chain(Drawn(), capture, chains=3).run()) for capture in (False, True))
    assert_same(usual, captured)


@pytest.mark.usefixtures("replayed")
def test_such_a_run_goes_on_from_a_state_as_if_it_were_not_interrupted():
    whole, first, second = (drawn_chain(Drawn()) for _ in range(3))
    list(whole.run())
    for _ in range(22):
        first.step()
    second.load_state_dict(first.state_dict())
    list(second.run())
    assert_same(whole.samples, second.samples)


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("capture", [False, True])
def test_replays_note_the_first_step_that_was_not_finite(capture):
    run = drawn_chain(Drawn(breaks=21), capture, check_every=4)
    with pytest.raises(NonFiniteError) as error:
        list(run.run())
    assert (error.value.step, error.value.term, error.value.good_step) == (21, "loss", 20)
    run.batches.breaks = 1000
    list(run.run())
    assert_same(drawn_chain(Drawn(), capture).run(), run.samples)


def test_what_a_recording_looks_at_is_still_there_when_it_is_replayed(monkeypatch):
    """This also holds when a run returns to its last good state, which replaces the tensors of the memory."""
    replays = []

    class Looking(Replayed):
        def __init__(self, function, *rest):
            super().__init__(function, *rest)
            self.looked_at = self.stored()

        def stored(self):
            return self.function.args[0].memory.stored if self.function.args[1] != "plain" else None

        def __call__(self, *given):
            replays.append(self.stored() is self.looked_at)
            return super().__call__(*given)

    monkeypatch.setattr(captured, "_Captured", Looking)
    run = drawn_chain(Drawn(breaks=35), check_every=5)
    with pytest.raises(NonFiniteError):
        list(run.run())
    run.batches.breaks = 1000
    list(run.run())
    assert len(replays) > 30
    assert all(replays)


def test_choices_of_another_number_of_images_are_refused():
    with pytest.raises(UserError, match=r"batches of 8 images, and step 0 was given 7: .* or change `batch`"):
        drawn_chain(Drawn(size=7)).step()


@pytest.mark.usefixtures("replayed")
def test_training_draws_inside_the_pass_where_the_images_are_resident(monkeypatch):
    task = load_task("digits", shots=1, seed=1, test_images=20)
    found = []
    for resident in (False, True):
        monkeypatch.setattr(sys.modules[Training.__module__], "TrainBatches", partial(TrainBatches, resident=resident))
        monkeypatch.setattr("rebapl.sampling.chain.accelerated", lambda _, resident=resident: resident)
        chain = chain_of(task, load_backbone("mini"), "coop", "mle", epochs=5, inference_settings={"batch": 2})
        assert (chain.drawing is not None) == resident
        for _ in range(6):
            chain.step()
        found.append(torch.cat([p.detach().flatten() for p in chain.parameters.values()]))
    assert torch.equal(*found)


def test_a_step_has_its_own_gpu_as_the_current_one(monkeypatch):
    """Otherwise a run on the second GPU would be recorded on the first, and its replays would do nothing."""
    assert captured.current("cuda:1").idx == 1
    entered = []

    @contextmanager
    def current(device):
        entered.append(device)
        yield
        entered.append("left")

    monkeypatch.setattr("rebapl.sampling.loop.current", current)
    chain = drawn_chain(Drawn())
    monkeypatch.setattr(chain, "_advance", lambda now: entered.append(now))
    chain.step()
    assert entered == [torch.device("cpu"), 0, "left"]


class Stream:
    """Stands in for a CUDA stream, and lists the events and streams for which it has to wait."""

    def __init__(self):
        self.waits = []

    def wait_event(self, event):
        self.waits.append(event)

    def wait_stream(self, stream):
        self.waits.append(stream)


def test_the_branches_of_all_recordings_share_a_stream(monkeypatch):
    """A library keeps working memory for each stream on which it runs, so a stream per recording needs too much."""
    here, used = Stream(), []
    stand_ins = {
        "current_device": lambda: 0,
        "current_stream": lambda: here,
        "Stream": Stream,
        "stream": lambda stream: used.append(stream) or nullcontext(),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(captured, "_branches", defaultdict(Stream))
    for event in ("first", "second"):
        token = captured._began.set(event)
        assert not list(captured.beside(dict))
        captured._began.reset(token)
    assert used[0] is used[1]
    assert used[0].waits == ["first", "second"]
    assert here.waits == used
    captured.beside(dict)  # nothing is recorded: at once
    assert len(used) == 2


@pytest.mark.gpu
def test_another_recording_takes_no_more_memory():
    weight, x = torch.randn(512, 512, device="cuda").requires_grad_(), torch.randn(64, 512, device="cuda")

    def gradient(x):
        beside = captured.beside(lambda: {"product": weight @ weight})
        return torch.autograd.grad((x @ weight @ beside["product"]).square().sum(), weight)[0]

    def recorded():
        capturing = captured.Capturing()
        return [capturing("plain", gradient, x).clone() for _ in range(4)][-1]

    first = recorded()
    before = torch.cuda.memory_allocated()
    for _ in range(4):
        torch.testing.assert_close(recorded(), first)
    assert torch.cuda.memory_allocated() - before < 8 * 2**20, "a stream for each would keep 64 MiB"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_captured_run_on_the_second_gpu_equals_that_on_the_first():
    found = [list(toy_chain(True, device=device).run()) for device in ("cuda:0", "cuda:1")]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a.parameters, b.parameters, rtol=1e-4, atol=1e-5)


def toy_chain(capture, sampler=None, device="cuda", **repelling):
    inference = Inference(
        sampler={"kind": "sghmc", "lr": 0.05, "temperature": 0.01, **(sampler or {})},
        epochs=5,
        batch=8,
        cycles=3,
        restart={"kind": "warm", "kick": 0.01},
        repulsion=Repelling(images=6, **repelling),
    )

    def given(step):
        return tuple(x.to(device) for x in batches(step))

    learner = ToyLearner().to(device)
    return Chain(
        learner, inference, given, num_data=40, steps_per_epoch=5, reference=data()[0], capture=capture, record_every=1
    )


RELATIVE = {"plain", "measure", "follow"}
REPELLED = {
    "fading": ({"force": Fading(measure_every=3)}, None, RELATIVE),
    "tolerant": ({"force": Fading(measure_every=3, tolerance=0.05)}, None, RELATIVE),
    "normalised": ({"force": Normalised(measure_every=3)}, None, RELATIVE),
    "capped": ({"force": Capped(strength=1.0, measure_every=3)}, None, RELATIVE),
    "absolute": ({"force": Absolute(strength=0.1), "stage": "both"}, None, {"plain", "absolute"}),
    "printed": ({"force": {"kind": "printed", "strength": 1e-4}, "stage": "both"}, None, {"plain", "absolute"}),
    "held": ({"force": Fading(measure_every=3), "stage": "both"}, None, RELATIVE | {"hold"}),
    "decoupled": (
        {"force": Fading(measure_every=3)},
        {"burn_in": 1.0},
        {"plain", "measure, decoupled", "follow, decoupled"},
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("distance", ["mmd", "energy", "sinkhorn", "sliced", "wasserstein"])
@pytest.mark.parametrize("name", REPELLED)
def test_a_captured_run_equals_the_usual_one(distance, name):
    """Three cycles, so that every kind of step is captured, and captured again when the memory changes."""
    repelling, sampler, kinds = REPELLED[name]
    usual, captured = (toy_chain(capture, sampler, distance=distance, **repelling) for capture in (False, True))
    for a, b in zip(usual.run(), captured.run(), strict=True):
        torch.testing.assert_close(a.parameters, b.parameters, rtol=1e-4, atol=1e-5)
    rows = zip(usual.diagnostics.rows(), captured.diagnostics.rows(), strict=True)
    for row, other in rows:
        assert row == pytest.approx(other, rel=1e-3, abs=1e-4, nan_ok=True)
    assert set(captured.capturing._captured) == kinds


@pytest.mark.gpu
@pytest.mark.parametrize("itself", [False, True], ids=["elsewhere", "in the same chain"])
def test_an_interrupted_captured_run_goes_on_as_if_it_were_not(itself):
    whole, first, second = (toy_chain(True) for _ in range(3))
    list(whole.run())
    for _ in range(33):
        first.step()
    state = first.state_dict()
    if itself:
        second = first
        second.step()
    second.load_state_dict(state)
    list(second.run())
    for a, b in zip(whole.samples, second.samples, strict=True):
        torch.testing.assert_close(a.parameters, b.parameters, rtol=1e-4, atol=1e-5)


def chain_of(task, encoder, method, inference, **settings):
    resolved = resolve_training(method, inference, protocol="base-to-novel", data="digits", shots=4, **settings)
    return Training(task, encoder, resolved, task.seed).loop


@pytest.mark.gpu
@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if each.learner.recipe.epochs > 0])
def test_every_method_is_captured_and_equals_itself_uncaptured(method):
    """Parameters after 12 steps in float32, with repulsion in the second cycle, relative to how far they moved."""
    task = load_task("digits", shots=4, seed=1, test_images=20)
    settings = {"batch": 5, "cycles": 2, "repulsion.force.measure_every": 2}
    found = []
    for capture in (True, False):
        encoder = load_backbone("mini", "cuda", torch.float32)
        chain = chain_of(task, encoder, method, "rebapl", epochs=3, inference_settings=settings)
        if not capture:
            chain.capturing = None
        start = torch.cat([p.detach().flatten() for p in chain.parameters.values()])
        while not chain.done:
            chain.step()
        found.append(torch.cat([p.detach().flatten() for p in chain.parameters.values()]))
        assert (chain.drawing is None) == chain.learner.learns_from_features, "features are there, and not drawn"
        if capture:
            assert "plain" in chain.capturing._captured
    moved = (found[1] - start).norm()
    assert moved > 0
    assert (found[0] - found[1]).norm() < 0.05 * moved


@pytest.mark.gpu
def test_fifty_captured_steps_with_batches_drawn_inside_equal_the_usual_ones_and_do_not_wait(monkeypatch):
    """MaPLe in float32, relative to how far the parameters moved; every pixel is the same, so the rest is rounding."""
    task = load_task("digits", shots=4, seed=1, test_images=20)
    found = []
    for eager in ("0", "1"):
        monkeypatch.setenv("REBAPL_EAGER", eager)
        encoder = load_backbone("mini", "cuda", torch.float32)
        chain = chain_of(task, encoder, "maple", "mle", epochs=40, inference_settings={"batch": 4})
        assert (chain.drawing is None) == (eager == "1")
        chain.check_every = 1000
        start = torch.cat([p.detach().flatten() for p in chain.parameters.values()])
        for step in range(50):
            replaying = eager == "0" and step > 3  # the third is recorded
            torch.cuda.set_sync_debug_mode("error" if replaying else "default")
            try:
                chain.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        found.append(torch.cat([p.detach().flatten() for p in chain.parameters.values()]))
    moved = (found[1] - start).norm()
    assert moved > 0
    assert (found[0] - found[1]).norm() < 0.05 * moved


def test_what_cannot_be_captured_runs_as_usual_and_says_so_once(monkeypatch):
    def refused(*_given):
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        finally:  # as the end of a recording that was broken off
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(captured, "_Captured", refused)
    capturing, x = captured.Capturing(), torch.ones(2)
    with pytest.warns(RuntimeWarning, match="operation not permitted when stream is capturing") as said:
        assert [capturing("plain", torch.sum, x).item() for _ in range(6)] == [2.0] * 6
    assert len(said) == 1


def test_one_switch_turns_capture_off(monkeypatch):
    assert captured.accelerated("cuda")
    assert not captured.accelerated("cpu")
    monkeypatch.setenv("REBAPL_EAGER", "1")
    assert not captured.accelerated("cuda:1")
