"""A run in its folder: finished work is kept, broken work goes on, another configuration is refused."""

import json
from pathlib import Path

import pytest

from rebapl.errors import UserError
from rebapl.experiments.run import RunConfig, best_device, evaluate_run, train_run

CONFIG = RunConfig(data="digits", backbone="mini", shots=2, epochs=1, test_images=20)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "x"
    assert train_run(CONFIG, out, device="cpu")
    return out


def test_a_trained_run_holds_its_config_and_posterior_and_no_checkpoint(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} >= {"config.json", "posterior"}
    assert not (trained / "checkpoint.safetensors").exists()
    assert json.loads((trained / "config.json").read_text())["shots"] == 2


def test_results_are_stored_unrounded_and_evaluation_repeats_itself(trained: Path) -> None:
    results = evaluate_run(trained, device="cpu")
    assert json.loads((trained / "results.json").read_text()) == json.loads(json.dumps(results))
    base, novel = (results["parts"][name]["accuracy"] for name in ("base", "novel"))
    assert results["base_to_novel"]["hm"] == pytest.approx(2 * base * novel / (base + novel))
    assert evaluate_run(trained, device="cpu") == results


def test_a_finished_run_is_skipped(trained: Path) -> None:
    before = (trained / "posterior" / "samples.safetensors").stat().st_mtime_ns
    assert not train_run(CONFIG, trained, device="cpu")
    assert (trained / "posterior" / "samples.safetensors").stat().st_mtime_ns == before


def test_another_configuration_is_refused(trained: Path) -> None:
    with pytest.raises(UserError, match="shots = 2, not 4"):
        train_run(RunConfig(data="digits", backbone="mini", shots=4, epochs=1, test_images=20), trained)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(UserError, match="is not a run"):
        train_run(CONFIG, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_bad_input_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'digits'"):
        train_run(RunConfig(data="digit", backbone="mini"), tmp_path / "x")
    with pytest.raises(UserError, match="did you mean 'coop'"):
        train_run(RunConfig(data="digits", method="cop", backbone="mini"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_untrained_run_cannot_be_scored(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        evaluate_run(tmp_path)
    (tmp_path / "config.json").write_text('{"data": "digits", "backbone": "mini"}')
    with pytest.raises(UserError, match="not trained yet"):
        evaluate_run(tmp_path)
    (tmp_path / "config.json").write_text('{"data": "digits", "shoots": 3}')
    with pytest.raises(UserError, match="shoots"):
        evaluate_run(tmp_path)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UserError, match="device 'tpu9'"):
        best_device("tpu9")
