"""A run in its folder: finished work is kept, interrupted work continues, another configuration is refused."""

import contextlib
import gc
import json
import multiprocessing
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from drawn_folder import coloured_squares
from drawn_published import make_fixture
from filelock import SoftFileLease

import rebapl
from rebapl.errors import UserError
from rebapl.files import alone_in
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.runs import run as runs_module
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import is_finished, run_folder, scored_as, write_config
from rebapl.runs.machine import best_device
from rebapl.runs.results import read_result
from rebapl.runs.run import Job, evaluate_run, run
from rebapl.training import Training
from rebapl.training.log import COLUMNS, read_log

CONFIG = RunConfig(data="digits", backbone="mini", shots=2, epochs=1, test_images=20)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "x"
    return run(CONFIG, out, device="cpu", score=False)


def test_a_trained_run_holds_its_config_and_posterior_and_no_checkpoint(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} >= {"config.json", "environment.json", "log.csv", "posterior"}
    assert not (trained / "checkpoint.safetensors").exists()
    assert not list(trained.parent.glob(".*"))  # the lock is gone
    config = json.loads((trained / "config.json").read_text())
    assert config["shots"] == 2
    assert config["resolved"]["inference"]["epochs"] == 1
    assert config["resolved"] == CONFIG.resolved().settings
    assert config["hash"] == CONFIG.hash()
    rows = read_log(trained / "log.csv")
    assert rows[0]["step"] == 0
    assert {"lr", "loss", "gradient_norm"} <= rows[0].keys() <= set(COLUMNS)


def test_the_environment_is_kept(trained: Path) -> None:
    kept = json.loads((trained / "environment.json").read_text())
    assert kept["versions"]["rebapl"] == rebapl.__version__
    assert kept["device"].startswith("cpu")
    assert kept["training_seconds"] > 0
    assert 50e6 < kept["peak_memory"]["process"] < 1e12  # bytes: with torch it is more than 50 MB
    assert kept["backbone"]["name"] == "mini"
    assert kept["backbone"]["revision"] is None
    assert (
        kept["backbone"]["sha256"]
        == json.loads((trained / "posterior/posterior.json").read_text())["backbone"]["sha256"]
    )


def test_results_are_stored_unrounded_and_evaluation_repeats_itself(trained: Path) -> None:
    results = evaluate_run(trained, device="cpu")
    assert read_result(trained) == results
    base, novel = (results.parts[name].accuracy for name in ("base", "novel"))
    assert results.as_json()["base_to_novel"]["hm"] == pytest.approx(2 * base * novel / (base + novel))
    again = evaluate_run(trained, device="cpu")
    assert again.parts == results.parts
    assert (results.seconds.training or 0) > 0
    assert (results.seconds.evaluation or 0) > 0
    assert len(results.parts["base"].per_sample) == results.samples == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shots": 4}, "shots = 2, not 4"),
        ({"inference_settings": {"sampler.momentum": 0.8}}, r"inference\.sampler\.momentum = 0.9, not 0.8"),
    ],
)
def test_another_configuration_is_refused(trained: Path, changes: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        run(CONFIG.changed(**changes), trained, score=False)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(UserError, match="is not a run"):
        run(CONFIG, tmp_path, score=False)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_bad_input_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'digits'"):
        run(RunConfig(data="digit", backbone="mini"), tmp_path / "x", score=False)
    with pytest.raises(UserError, match="did you mean 'coop'"):
        run(RunConfig(data="digits", method="cop", backbone="mini"), tmp_path / "x", score=False)
    assert not (tmp_path / "x").exists()


def test_an_untrained_run_cannot_be_scored(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        evaluate_run(tmp_path)
    write_config(CONFIG, CONFIG.resolved(), tmp_path)
    with pytest.raises(UserError, match="not trained yet"):
        evaluate_run(tmp_path)
    (tmp_path / "config.json").write_text('{"data": "digits", "shoots": 3}')
    with pytest.raises(UserError, match="shoots"):
        evaluate_run(tmp_path)


def test_an_unknown_device_is_refused() -> None:
    for name in ("tpu9", "gpu", "cuda:99", "cpu:x"):
        with pytest.raises(UserError, match=rf"device '{name}' is not available here; there is cpu"):
            best_device(name)


def test_outside_images_are_scored_with_the_run_and_added_to_a_finished_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'letters'"):
        run(CONFIG.changed(outside=("leters",)), runs=tmp_path, device="cpu")
    assert not run_folder(CONFIG, tmp_path).exists()
    out = run(CONFIG.changed(outside=("novel",)), runs=tmp_path, device="cpu")
    before = read_result(out)
    assert before.outside.keys() == {"novel"}
    job = Job.of(CONFIG.changed(outside=("novel", "letters")), tmp_path)
    assert not job.is_done()
    run(job.config, out, device="cpu")
    assert job.is_done()
    after = read_result(out)
    assert after.outside.keys() == {"novel", "letters"}
    assert (after.parts, after.outside["novel"]) == (before.parts, before.outside["novel"])


def test_what_a_finished_run_is_asked_for_later_is_scored_again_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a folder is absolute in the settings and in the scores, so both can be used from any folder."""
    coloured_squares(tmp_path / "things")
    (tmp_path / "novel").mkdir()
    monkeypatch.chdir(tmp_path)
    out = run(CONFIG, tmp_path / "x", device="cpu")
    asked = CONFIG.changed(outside=("novel", "things"), corruptions=("fog@1",))
    run(asked, out, device="cpu")
    run(CONFIG.changed(corruptions=("fog@2",)), out, device="cpu")
    content = json.loads((out / "config.json").read_text())
    assert content["outside"] == ["novel", str(tmp_path / "things")]
    assert content["corruptions"] == ["fog@1", "fog@2"]
    assert content["resolved"] == CONFIG.resolved().settings
    (out / "results.json").unlink()
    monkeypatch.chdir("/")
    again = evaluate_run(out, device="cpu")
    assert list(again.outside) == content["outside"]
    assert list(again.corruptions["fog"]) == ["1", "2"]


def test_scores_of_other_answers_do_not_outlive_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run(CONFIG, runs=tmp_path, device="cpu")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs_module, "evaluate", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate_run(out, device="cpu", fits={"temperature": {}})
    assert not Job.of(CONFIG, tmp_path).is_done(), "the posterior has another temperature than the scores had"
    monkeypatch.undo()
    run(CONFIG, runs=tmp_path, device="cpu")
    assert read_result(out).temperature == load_posterior(out).temperature.value


def test_a_finished_run_is_neither_trained_nor_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run(CONFIG, runs=tmp_path, device="cpu")
    assert out == run_folder(CONFIG, tmp_path)
    assert is_finished(CONFIG, out)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("worked again")

    monkeypatch.setattr(Job, "_begin", refuse)
    monkeypatch.setattr(runs_module, "_score", refuse)
    assert run(CONFIG, runs=tmp_path, device="cpu") == out


@pytest.mark.parametrize(
    ("method", "inference"),
    [
        ("zero-shot", None),
        ("maple", "rebapl"),
        ("mmrl", "rebapl"),
        ("mmrl++", "ensemble"),
        ("promptsrc", None),
        ("cocoop", "ensemble"),
        ("bpl", "ensemble"),
        ("coop", "svgd"),
    ],
)
def test_a_run_that_was_just_trained_is_scored_as_one_that_is_read(
    tmp_path: Path, nano: Path, monkeypatch: pytest.MonkeyPatch, method: str, inference: str | None
) -> None:
    config = CONFIG.changed(method=method, inference=inference, backbone=str(nano), test_images=5)
    settings = {"cycles": 2} if inference in ("rebapl", "ensemble") else {}
    config = config.changed(epochs=None if method == "zero-shot" else 1, inference_settings=settings)
    with monkeypatch.context() as patched:
        patched.setattr(runs_module, "load_posterior", None)  # nothing is read
        run(config, tmp_path / "x", device="cpu")
    at_once, read = read_result(tmp_path / "x"), evaluate_run(tmp_path / "x", device="cpu")
    assert at_once.changed(seconds=read.seconds) == read
    assert list(read.parts) == ["base", "novel"]
    assert read.samples > 1 or inference is None


def test_scores_of_weights_that_were_changed_in_the_folder_are_not_kept(tmp_path: Path, nano: Path) -> None:
    config = CONFIG.changed(method="coop", inference="ensemble", backbone=str(nano), epochs=1, test_images=5)
    config, out = config.changed(inference_settings={"cycles": 2}), tmp_path / "x"
    run(config, out, device="cpu")
    weights = torch.tensor([0.25, 0.75])
    save_posterior(load_posterior(out).with_weights(weights), out / "posterior")
    run(config.changed(outside=("novel",)), out, device="cpu")
    result = read_result(out)
    assert result.weights == weights.tolist()
    assert list(result.parts) == ["base", "novel"]
    assert result == evaluate_run(out, device="cpu", config=config.changed(outside=("novel",))).changed(
        seconds=result.seconds
    )


def test_a_run_is_trained_and_scored_under_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process can change the posterior in between."""
    held: list[Path] = []

    @contextlib.contextmanager
    def counted(folder: Path, *, wait: bool) -> Iterator[None]:
        held.append(folder)
        with alone_in(folder, wait=wait):
            yield

    monkeypatch.setattr(runs_module, "alone_in", counted)
    run(CONFIG, tmp_path / "x", device="cpu")
    assert held == [tmp_path / "x"]


def test_what_a_training_kept_is_free_before_its_run_is_scored(
    tmp_path: Path, nano: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[weakref.ref[object]] = []
    train, score = Training.run, runs_module.evaluate

    def watched(training: Training, *given: object, **named: object) -> Posterior:
        kept.extend(weakref.ref(each) for each in (training, training.loop, training.loop.objective))  # type: ignore[union-attr]
        return train(training, *given, **named)  # type: ignore[arg-type]

    def scored(posterior: Posterior, *given: object) -> object:
        assert [each() for each in kept] == [None] * 3
        assert all(parameter.grad is None for parameter in posterior.learner.parameters())
        return score(posterior, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Training, "run", watched)
    monkeypatch.setattr(runs_module, "evaluate", scored)
    gc.disable()  # it must not need to look for circles
    try:
        run(CONFIG.changed(method="maple", backbone=str(nano), test_images=5), tmp_path / "x", device="cpu")
    finally:
        gc.enable()
    assert len(kept) == 3


def test_transfers_that_train_alike_share_one_posterior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cross = CONFIG.changed(protocol="cross-dataset", targets=["shapes"])
    domain = cross.changed(protocol="domain-generalization", targets=["letters"])
    out = run(cross, runs=tmp_path, device="cpu")
    first = json.loads((out / "results.json").read_text())
    assert list(first["parts"]) == ["test", "shapes"]
    assert not is_finished(domain, out)
    monkeypatch.setattr(runs_module, "Training", None)  # nothing is trained any more
    assert run(domain, runs=tmp_path, device="cpu") == out
    both = json.loads((out / "results.json").read_text())
    assert list(both["parts"]) == ["test", "shapes", "letters"]
    assert both["parts"]["shapes"] == first["parts"]["shapes"]
    assert both["protocols"] == {"cross-dataset": ["test", "shapes"], "domain-generalization": ["test", "letters"]}
    assert both["seconds"]["evaluation"] > first["seconds"]["evaluation"]
    assert is_finished(cross, out)
    assert is_finished(domain, out)


def test_a_target_is_scored_again_when_its_split_file_is_another(tmp_path: Path) -> None:
    make_fixture("dtd", tmp_path)
    split = json.loads((tmp_path / "dtd" / "split_zhou_DescribableTextures.json").read_text())
    few = {part: [each for each in items if each[1] < 10] for part, items in split.items()}
    (tmp_path / "dtd" / "few.json").write_text(json.dumps(few))
    whole = CONFIG.changed(method="zero-shot", epochs=None, protocol="cross-dataset", targets=["dtd"])
    images = []
    for config in (whole, scored_as(whole, targets=["dtd=few.json"])):
        out = run(config, runs=tmp_path / "runs", root=tmp_path, device="cpu")
        images.append(json.loads((out / "results.json").read_text())["parts"]["dtd"]["images"])
        assert is_finished(config, out)
    assert images == [20, len(few["test"])]
    assert not is_finished(whole, out)


def test_a_run_is_not_scored_as_what_it_was_not_trained_for(trained: Path) -> None:
    with pytest.raises(UserError, match="trained with classes = 'base', not 'all'"):
        evaluate_run(trained, config=scored_as(CONFIG, "few-shot"), device="cpu")


def hold(folder: Path, begun, enough, over) -> None:
    with alone_in(folder):
        begun.set()
        enough.wait(600)
        over.set()


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")
    begun, enough, over = (context.Event() for _ in range(3))
    other = context.Process(target=hold, args=(tmp_path / "run", begun, enough, over))
    other.start()
    assert begun.wait(600)
    with (
        pytest.raises(UserError, match=rf"another process \({other.pid} on .*\) is at work"),
        alone_in(tmp_path / "run"),
    ):
        pass
    with alone_in(tmp_path / "elsewhere"):
        pass
    attempt = SoftFileLease._acquire
    monkeypatch.setattr(SoftFileLease, "_acquire", lambda self: (attempt(self), enough.set())[0])  # after an attempt
    with alone_in(tmp_path / "run", wait=True):
        assert over.is_set(), "the other process had left"
        assert not list(tmp_path.glob("run"))
    other.join()
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_ones_own_images_is_scored_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coloured_squares(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    out = run(RunConfig("photos", "zero-shot", protocol="few-shot", backbone="mini"), runs=tmp_path, device="cpu")
    assert out.name.startswith("photos-zero-shot-none-s1-")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert evaluate_run(out, device="cpu").parts["test"].images == 4


@pytest.fixture
def scored(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run that is trained and scored."""
    evaluate_run(trained, device="cpu")
    return Path(shutil.copytree(trained, tmp_path / "scored"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with another step size."""
    config = CONFIG.changed(inference_settings={"sampler.lr": 0.5})
    return run(config, tmp_path_factory.mktemp("runs") / "other", device="cpu")


def test_the_results_of_another_run_are_refused(scored: Path, other: Path) -> None:
    shutil.copy(other / "results.json", scored / "results.json")
    with pytest.raises(UserError, match=r"results.json is of another run: delete it"):
        read_result(scored)
    with pytest.raises(UserError, match="is of another run"):
        run(CONFIG, scored, device="cpu")


def test_the_settings_of_another_run_are_refused(scored: Path, other: Path) -> None:
    shutil.copy(other / "config.json", scored / "config.json")
    with pytest.raises(UserError, match=r"config.json is of another run than the other files"):
        run(CONFIG.changed(inference_settings={"sampler.lr": 0.5}), scored, device="cpu", score=False)
    content = json.loads((other / "config.json").read_text())
    content["resolved"]["shots"] = 7
    (scored / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="its hash is not that of its settings"):
        run(CONFIG, scored, device="cpu", score=False)


def test_what_kills_have_left_in_a_finished_run_is_removed(scored: Path) -> None:
    before = sorted(path.name for path in scored.iterdir())
    for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors", ".results.json.x.tmp"):
        (scored / name).touch()
    (scored / "cycles").mkdir()
    run(CONFIG, scored, device="cpu")
    assert sorted(path.name for path in scored.iterdir()) == before


def test_a_log_that_a_spreadsheet_has_saved_is_read(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text((trained / "log.csv").read_text(), encoding="utf-8-sig")
    assert read_log(tmp_path / "log.csv") == read_log(trained / "log.csv")


@pytest.mark.parametrize("content", ["{}", '{"images": [], "trained": {"x.png": "1"}}', '{"images": 3, "trained": 4}'])
def test_a_changed_record_of_the_images_is_one_line(tmp_path: Path, content: str) -> None:
    photos = coloured_squares(tmp_path / "photos")
    config = RunConfig(str(photos), "zero-shot", protocol="few-shot", backbone="mini")
    out = run(config, runs=tmp_path / "runs", device="cpu", score=False)
    (out / "data.json").write_text(content)
    with pytest.raises(UserError, match=r"data.json is damaged"):
        run(config, out, device="cpu", score=False)


def test_a_run_on_every_image_is_not_trained_to_be_scored(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are none left to score it on"):
        run(CONFIG.changed(protocol="few-shot", fold="all"), tmp_path / "x", device="cpu")
    assert not (tmp_path / "x").exists()
