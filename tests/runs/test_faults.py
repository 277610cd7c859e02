"""Runs that are killed, stopped, or meet full disks, damaged files and other processes: nothing is lost or mixed up."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_folder import coloured_squares
from PIL import Image
from safetensors.torch import load_file

from rebapl import files
from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.evaluation.tasks import evaluate
from rebapl.files import alone_in, write_atomically
from rebapl.interruption import Interrupted
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.posterior.prediction import Outside
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import CHECKPOINT
from rebapl.runs.run import evaluate_run, run
from rebapl.sampling import Chain
from rebapl.training.checkpoint import checkpoints_at, load_checkpoint, save_checkpoint

Train = Callable[..., Path]
CONFIG = RunConfig(
    "digits", "vpt", "csghmc", backbone="mini", shots=1, epochs=5, test_images=20, inference_settings={"batch": 1}
)


@pytest.fixture(scope="module")
def train() -> Train:
    def call(config: RunConfig, out: Path, **more: Any) -> Path:
        return run(config, out, device="cpu", **more, score=False)

    return call


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupts."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(CONFIG, out)
    return out


def same(first: Path, second: Path) -> bool:
    return all(
        (first / name).read_bytes() == (second / name).read_bytes()
        for name in ("posterior/samples.safetensors", "log.csv")
    )


def stop_after(step: int) -> Callable[[int, int, float], None]:
    def moved(done: int, _total: int, _loss: float) -> None:
        if done == step:
            raise KeyboardInterrupt

    return moved


def stopped_at(train: Train, out: Path, step: int) -> Path:
    """A run that was interrupted after this number of steps."""
    with pytest.raises(Interrupted, match=f"step {step} of 75 is kept"):
        train(CONFIG, out, progress=stop_after(step))
    return out / CHECKPOINT


def test_a_run_that_is_killed_at_twenty_moments_equals_one_that_is_not(
    train: Train, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebapl.training.checkpoint.CHECKPOINT_SECONDS", 0.01)
    context, moments, kills = multiprocessing.get_context("fork"), random.Random(14), 0
    out = tmp_path / "run"
    for _ in range(60):
        process = context.Process(target=train, args=(CONFIG, out))
        process.start()
        if kills < 20:
            process.join(moments.uniform(0.02, 0.5))
        if process.is_alive() and kills < 20:
            process.kill()
            kills += 1
        process.join()
        if process.exitcode == 0:
            assert same(out, whole)
            assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
            assert not list(out.glob(".*.tmp"))
            assert not list(out.glob("checkpoint*"))
            if kills == 20:
                return
            shutil.rmtree(out)
        else:
            assert process.exitcode == -signal.SIGKILL
    raise AssertionError(f"{kills} kills")


def test_an_interruption_keeps_the_very_step_and_the_run_goes_on_from_it(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    kept = stopped_at(train, tmp_path / "run", 31)
    assert load_checkpoint(kept)["loop"]["schedule"]["steps"] == 31
    done: list[int] = []
    train(CONFIG, tmp_path / "run", progress=lambda *at: done.append(at[0]))
    assert done == list(range(32, 76))
    assert same(tmp_path / "run", whole)


def test_a_signal_waits_for_the_end_of_its_step(
    train: Train, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the last step. If the handler only records the signal, the training goes on, as schedulers want."""
    step, noted = Chain.step, []

    def signalled(chain: Chain) -> None:
        if chain.schedule.steps in at:
            signal.raise_signal(at.pop(chain.schedule.steps))
        step(chain)

    monkeypatch.setattr(Chain, "step", signalled)
    at = {40: signal.SIGINT}
    with pytest.raises(Interrupted, match="step 41 of 75 is kept"):
        train(CONFIG, tmp_path / "run")
    before = signal.signal(signal.SIGUSR2, lambda *_: noted.append(load_checkpoint(tmp_path / "run" / CHECKPOINT)))
    try:
        at = {50: signal.SIGUSR2, 74: signal.SIGINT}
        with pytest.raises(Interrupted, match="step 75 of 75 is kept"):
            train(CONFIG, tmp_path / "run")
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert [state["loop"]["schedule"]["steps"] for state in noted] == [51]
    train(CONFIG, tmp_path / "run")
    assert same(tmp_path / "run", whole)


def test_sigterm_ends_a_process_only_after_its_step_is_kept(train: Train, whole: Path, tmp_path: Path) -> None:
    def terminate_at_20(done: int, _total: int, _loss: float) -> None:
        if done == 20:
            os.kill(os.getpid(), signal.SIGTERM)

    process = multiprocessing.get_context("fork").Process(
        target=train, args=(CONFIG, tmp_path / "run"), kwargs={"progress": terminate_at_20}
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGTERM
    assert load_checkpoint(tmp_path / "run" / CHECKPOINT)["loop"]["schedule"]["steps"] == 20
    train(CONFIG, tmp_path / "run")
    assert same(tmp_path / "run", whole)


def test_a_checkpoint_that_is_cut_off_or_changed_anywhere_is_never_used(train: Train, tmp_path: Path) -> None:
    """The file is cut at every 1 KiB, and a byte is flipped in every part of it."""
    path = stopped_at(train, tmp_path / "run", 30)
    content, damaged = path.read_bytes(), tmp_path / "damaged"
    places = random.Random(1).sample(range(len(content)), 150)
    flipped = (content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :] for at in [*range(200), *places])
    cut = (content[:size] for size in range(0, len(content), 1024))
    for wrong in (*cut, *flipped, content + b"\0", b"", b"\xff" * 16):
        damaged.write_bytes(wrong)
        with pytest.raises(UserError, match="is damaged"):
            load_checkpoint(damaged)
    assert load_checkpoint(path)


def test_after_a_damaged_checkpoint_the_one_before_is_taken(
    train: Train, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    stopped_at(train, out, 10)
    last = stopped_at(train, out, 30)
    assert sorted(path.name for path in out.glob("checkpoint*")) == [
        "checkpoint.previous.safetensors",
        "checkpoint.safetensors",
    ]
    last.write_bytes(last.read_bytes()[:-1])
    done: list[int] = []
    train(CONFIG, out, progress=lambda *at: done.append(at[0]))
    assert done[0] == 11
    assert "the one before it is taken" in caplog.text
    assert same(out, whole)
    assert not list(out.glob("checkpoint*"))


def test_two_damaged_checkpoints_are_refused(train: Train, tmp_path: Path) -> None:
    stopped_at(train, tmp_path / "run", 10)
    stopped_at(train, tmp_path / "run", 20)
    for path in checkpoints_at(tmp_path / "run" / CHECKPOINT):
        path.write_bytes(path.read_bytes()[1:])
    with pytest.raises(UserError, match=r"checkpoint.previous.safetensors is damaged .*delete it"):
        train(CONFIG, tmp_path / "run")


@pytest.fixture(scope="module")
def state(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("state") / "run"
    return out, load_checkpoint(stopped_at(train, out, 30))


@pytest.mark.parametrize(
    "edit",
    [
        lambda loop: loop.pop("parameters"),
        lambda loop: loop.update(parameters=3),
        lambda loop: loop["parameters"].clear(),
        lambda loop: loop.update(optimizers=[]),
        lambda loop: loop["schedule"].update(steps=10**12),
        lambda loop: loop["schedule"].update(steps="many"),
        lambda loop: loop["schedule"].update(lrs=None),
        lambda loop: loop["generators"].update({"chain/sampler": torch.zeros(3)}),
        lambda loop: loop.update(samples=[{"wrong": 1}]),
        lambda loop: loop["samples"][0]["parameters"].clear(),
        lambda loop: loop.update(ends={"first": 1}),
        lambda loop: loop.update(predictions=7),
    ],
)
def test_an_edited_checkpoint_with_a_right_checksum_is_refused_in_one_line(
    train: Train, state: Any, edit: Callable[[dict[str, Any]], object]
) -> None:
    out, content = state
    fresh = {**content, "loop": {key: _copied(value) for key, value in content["loop"].items()}}
    edit(fresh["loop"])
    save_checkpoint(fresh, out / CHECKPOINT)
    with pytest.raises(UserError, match="does not fit this run") as refused:
        train(CONFIG, out)
    assert "\n" not in str(refused.value)


def _copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(value) for value in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize(
    "wrong", [[1, 2], {"loop": {}}, {"loop": {}, "seconds": 1.0, "images": "other", "run": "x"}, None]
)
def test_a_checkpoint_of_something_else_is_refused(train: Train, state: Any, wrong: Any) -> None:
    out, _ = state
    save_checkpoint(wrong, out / CHECKPOINT)
    with pytest.raises(UserError, match=r"another version|other training images"):
        train(CONFIG, out)


def test_a_checkpoint_of_a_run_with_other_settings_is_refused(train: Train, tmp_path: Path) -> None:
    stopped_at(train, tmp_path / "one", 10)
    other = CONFIG.changed(inference_settings={"batch": 1, "sampler.lr": 0.02})
    with pytest.raises(Interrupted):
        train(other, tmp_path / "two", progress=stop_after(10))
    shutil.copy(tmp_path / "one" / CHECKPOINT, tmp_path / "two" / CHECKPOINT)
    with pytest.raises(UserError, match="is of a run with other settings"):
        train(other, tmp_path / "two")


def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(train: Train, state: Any) -> None:
    out, _ = state
    (out / CHECKPOINT).unlink()
    os.mkfifo(out / CHECKPOINT)
    with pytest.raises(UserError, match="no plain file"):
        train(CONFIG, out)


def test_a_loss_that_is_not_a_number_stops_the_run_and_leaves_the_last_good_checkpoint(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are written at every step here, also in the steps between the break and its discovery."""
    monkeypatch.setattr("rebapl.training.checkpoint.CHECKPOINT_SECONDS", 0)
    out, step = tmp_path / "run", Chain.step

    def breaks(chain: Chain) -> None:
        if chain.schedule.steps == 36:
            next(iter(chain.parameters.values())).data.fill_(float("nan"))
        step(chain)

    monkeypatch.setattr(Chain, "step", breaks)
    with pytest.raises(UserError, match=r"the loss is not finite at step 36: lr is the likely cause"):
        train(CONFIG, out)
    kept = load_checkpoint(out / CHECKPOINT)["loop"]
    assert kept["schedule"]["steps"] == 36
    assert all(bool(value.isfinite().all()) for value in kept["parameters"].values())


class SmallDisk:
    """A file system of 256 KiB if one can be mounted; otherwise a folder with a limit on the size of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
        self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        """Fill the disk."""
        if self.mounted:
            size = os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_bsize
            (self.folder / "filler").write_bytes(b"x" * size)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, self.limits[1]))

    def free(self) -> None:
        """Free the disk again."""
        (self.folder / "filler").unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)

    def remove(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.free()
    disk.remove()
    signal.signal(signal.SIGXFSZ, before)


FULL = r"cannot be written \((No space left on device|File too large)\)"


def test_a_full_disk_is_named_and_what_was_there_stays(train: Train, small_disk: SmallDisk) -> None:
    """While a checkpoint, a log, a result and a posterior are written."""
    out = small_disk.folder / "run"
    path = stopped_at(train, out, 10)
    before = {each.name: each.read_bytes() for each in out.iterdir()}
    small_disk.fill()
    with pytest.raises(UserError, match=FULL):
        train(CONFIG, out, progress=stop_after(30))
    assert {each.name: each.read_bytes() for each in out.iterdir()} == before
    assert load_checkpoint(path)["loop"]["schedule"]["steps"] == 10
    small_disk.free()
    train(CONFIG, out)
    posterior = load_posterior(out)
    saved = {each.name: each.read_bytes() for each in (out / "posterior").iterdir()}
    small_disk.fill()
    changed = {name: stack + 1 for name, stack in posterior.samples.items()}
    other = type(posterior)(posterior.learner, changed, posterior.weights, posterior.about)
    for attempt in (
        lambda: evaluate_run(out, device="cpu"),
        lambda: save_posterior(other, out / "posterior"),
        lambda: write_atomically(out / "log.csv", "step\n" * 10000),
    ):
        with pytest.raises(UserError, match=FULL):
            attempt()
    assert {each.name: each.read_bytes() for each in (out / "posterior").iterdir()} == saved
    assert not list(out.glob(".*.tmp"))


def test_a_folder_that_may_not_be_written_is_named(train: Train) -> None:
    with pytest.raises(UserError, match=r"/proc/none/run cannot be written"):
        train(CONFIG, Path("/proc/none/run"))


@pytest.mark.parametrize("moment", [1, 2, 3, 4])
def test_a_kill_between_the_renames_of_a_posterior_loses_nothing(
    whole: Path, encoder: DualEncoder, tmp_path: Path, moment: int
) -> None:
    """1: the manifest has its name; 2: the new folder is ready; 3: the old one is moved; 4: the new one is in place."""
    folder = Path(shutil.copytree(whole / "posterior", tmp_path / "run" / "posterior"))
    old = load_posterior(folder, encoder)
    samples = {name: stack + 1 for name, stack in old.samples.items()}
    outside = Outside("neighbours", 1.0, 0.1, old.average, tuple(old.class_names), 10)
    other = Posterior(
        old.learner, samples, old.weights, old.about, outside=outside, bank={"features": torch.ones(2, 3)}
    )

    def killed() -> None:
        replace, moves = Path.replace, []

        def then_die(path: Path, target: Path) -> Path:
            moved = replace(path, target)
            moves.append(path)
            if len(moves) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return moved

        Path.replace = then_die  # type: ignore[method-assign, assignment]
        save_posterior(other, folder)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    found = load_posterior(folder, encoder)
    name, replaced = next(iter(samples)), moment >= 3
    assert torch.equal(found.samples[name], (samples if replaced else old.samples)[name])
    assert (found.outside, found.bank.keys()) == ((outside, {"features"}) if replaced else (None, set()))
    save_posterior(other, folder)
    assert torch.equal(load_file(folder / "samples.safetensors")[name], samples[name])
    assert [path.name for path in folder.parent.iterdir()] == ["posterior"], "nothing hidden stays"


def hold(folder: Path, begun: Any, enough: Any) -> None:
    with alone_in(folder):
        begun.set()
        enough.wait(600)


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    begun, enough = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "run", begun, enough))
    other.start()
    assert begun.wait(600)
    with (
        pytest.raises(UserError, match=rf"another process \({other.pid} on .*\) is at work"),
        alone_in(tmp_path / "run"),
    ):
        pass
    other.kill()
    other.join()
    with alone_in(tmp_path / "run"):
        assert f"pid={os.getpid()}" in (tmp_path / ".run.lock").read_text()
    assert list(tmp_path.iterdir()) == []


OF_ANOTHER_MACHINE = "filelock/2\npid=12\nhost=node7\nmode=lease\ntoken=1234\nduration=120.0\n"


def test_the_lock_of_another_machine_holds_whatever_its_time_is(tmp_path: Path) -> None:
    path, folder = tmp_path / ".run.lock", tmp_path / "run"
    for seconds in (-(10**6), 0, 10**6):
        path.write_text(OF_ANOTHER_MACHINE)
        os.utime(path, (time.time() + seconds, time.time() + seconds))
        with (
            pytest.raises(UserError, match=r"\(12 on node7\) is at work.*if that machine is gone, delete"),
            alone_in(folder),
        ):
            pass


def test_whoever_waits_takes_the_lock_of_a_machine_that_shows_no_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "STALE_SECONDS", 0.3)
    monkeypatch.setattr(files, "BEAT_SECONDS", 0.1)
    path = tmp_path / ".run.lock"
    path.write_text(OF_ANOTHER_MACHINE.replace("120.0", "0.3"))
    long_in_the_future = time.time() + 10**6
    os.utime(path, (long_in_the_future, long_in_the_future))
    with alone_in(tmp_path / "run", wait=True):
        assert f"pid={os.getpid()}" in path.read_text()
    assert not path.exists()


def test_a_pipe_in_the_place_of_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".run.lock")
    with pytest.raises(UserError, match="no plain file"), alone_in(tmp_path / "run"):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "run", tmp_path / ("x" * 300)):
        with pytest.raises(UserError, match="cannot be written"), alone_in(folder):
            pass


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return coloured_squares(tmp_path / "photos")


def test_an_image_that_disappears_during_the_run_is_named(train: Train, photos: Path, tmp_path: Path) -> None:
    config = RunConfig(str(photos), "coop", protocol="few-shot", backbone="mini", epochs=1)
    train(config, tmp_path / "run")
    task, posterior = config.task(), load_posterior(tmp_path / "run")
    (photos / "test" / "red square" / "0.png").unlink()
    with pytest.raises(UserError, match=r"test/red square/0\.png: no such image"):
        evaluate(posterior, task, ["test"])
    (photos / "test" / "red square" / "0.png").write_bytes(b"changed")
    with pytest.raises(UserError, match=r"test/red square/0\.png cannot be read as an image"):
        evaluate(posterior, task, ["test"])


def test_a_training_image_that_changes_is_noticed_when_the_run_goes_on(
    train: Train, photos: Path, tmp_path: Path
) -> None:
    config = RunConfig(str(photos), "coop", protocol="few-shot", backbone="mini", epochs=20)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", progress=stop_after(3))
    path = photos / "train" / "red square" / "0.png"
    Image.new("RGB", (24, 24), "green").save(path)
    with pytest.raises(UserError, match=r"other training images|have changed since"):
        train(config, tmp_path / "run")
    Image.new("RGB", (24, 24), "red").save(path)
    assert train(config, tmp_path / "run")
