"""Configurations as people write them: files, inheritance, words with dots, mistakes, and the schema for editors."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from rebapl.cli.commands import app
from rebapl.errors import UserError
from rebapl.learners import METHODS
from rebapl.runs.config import RunConfig
from rebapl.runs.config_file import KEYS, build_config, gather_settings, read_config_file, read_words, run_schema
from rebapl.runs.folder import config_from_json, run_folder
from rebapl.runs.run import run as do_run
from rebapl.sampling.presets import PRESETS
from rebapl.yaml_files import Value

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/runs.md").read_text(encoding="utf-8")

FILE = """
data: digits
method: {name: maple, tokens: 3}
inference:
  name: rebapl
  sampler: {lr: 1e-3}
  repulsion: {distance: energy}
shots: 4
targets: null
"""


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_file_becomes_a_configuration(tmp_path: Path) -> None:
    config = build_config(read_config_file(write(tmp_path, "run.yaml", FILE)))
    assert config == RunConfig(
        "digits",
        "maple",
        "rebapl",
        shots=4,
        method_settings={"tokens": 3},
        inference_settings={"sampler": {"lr": 0.001}, "repulsion": {"distance": "energy"}},
    )


def test_a_file_goes_on_top_of_the_one_it_extends(tmp_path: Path) -> None:
    write(tmp_path, "common.yaml", FILE)
    (tmp_path / "deep").mkdir()
    path = write(
        tmp_path / "deep",
        "run.yaml",
        "extends: ../common.yaml\nseed: 3\ninference: {repulsion.force: {fraction: 0.1}}\nmethod: coop\n",
    )
    config = build_config(read_config_file(path))
    assert (config.data, config.seed, config.shots) == ("digits", 3, 4)
    assert config.inference_settings == {
        "sampler": {"lr": 0.001},
        "repulsion": {"distance": "energy", "force": {"fraction": 0.1}},
    }
    assert (config.method, config.method_settings) == ("coop", {})  # the tokens were MaPLe's


def test_words_go_on_top_of_a_file(tmp_path: Path) -> None:
    file = write(tmp_path, "run.yaml", FILE)
    words = ["seed=2", "method.tokens=5", "inference.repulsion.images=8", "targets=[a, b]"]
    config = build_config(gather_settings(file, {}, words))
    assert config.seed == 2
    assert config.method_settings == {"tokens": 5}
    assert config.inference_settings["repulsion"] == {"distance": "energy", "images": 8}
    assert config.targets == ("a", "b")
    assert build_config(gather_settings(file, {"targets": "a, b"}, [])).targets == ("a", "b")
    without = build_config(gather_settings(file, {}, ["inference.repulsion=null"]))
    assert without.inference_settings["repulsion"] is None


def test_another_inference_leaves_the_settings_of_the_first_behind(tmp_path: Path) -> None:
    file = write(tmp_path, "run.yaml", FILE)
    config = build_config(gather_settings(file, {}, ["inference=mle", "inference.sampler.lr=0.1"]))
    assert (config.inference, config.inference_settings) == ("mle", {"sampler": {"lr": 0.1}})
    assert build_config(gather_settings(file, {"inference": "mle"}, [])).inference_settings == {}
    same = build_config(gather_settings(file, {"inference": "rebapl"}, []))
    assert same.inference_settings["sampler"] == {"lr": 0.001}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed: 2", "unknown setting in run.yaml 'sed': did you mean 'seed'"),
        ("data: digits\ndata: shapes", "'data' stands twice"),
        ("data: [", "is not YAML"),
        ("- 1", "must hold settings"),
        ("data: digits\nmethod: 3", "method is 3"),
        ("data: digits\nshots: {a: 1}", "'shots' has no settings of its own"),
        ("data: digits\nshots: four", "shots is 'four': it must be a whole number"),
        ("data: digits\nseed: true", "seed is True: it must be a whole number"),
        ("shots: 4", "which data set"),
        ("extends: run.yaml", "extends itself"),
        ("extends: nowhere.yaml", "nowhere.yaml cannot be read"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_config(read_config_file(write(tmp_path, "run.yaml", text)))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("seed", "write key=value"),
        ("=2", "write key=value"),
        ("method.=2", "write key=value"),
        ("sead=2", "did you mean 'seed'"),
        ("methd.tokens=4", "did you mean 'method'"),
        ("seed.x=4", "has no settings of its own"),
        ("seed=[", "is not YAML"),
        ("template={} texture.", "goes in quotes, as in \"template='…'\""),
    ],
)
def test_mistakes_in_words_are_named(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_words([word])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method.tokens=abc"], "method.tokens is 'abc': it must be a whole number"),
        (["inference.curve={kind: {}}"], "inference.curve: unknown kind of curve"),
        (["inference={name: {}}"], "inference is {}: it must be text"),
        (["inference.repulsion.distance=nonsense"], "inference.repulsion.distance: unknown kind of distance"),
        (["inference.sampler.mometum=0.5"], "inference.sampler.mometum: there is no such setting, did you mean"),
    ],
)
def test_values_that_do_not_fit_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["train", "--data", "digits", "--method", "maple", "--inference", "rebapl", "--out", "x", *words]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code != 0
    assert isinstance(shown.exception, UserError)
    assert str(shown.exception).startswith(message)
    assert "\n" not in str(shown.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = RunConfig(
        "digits",
        "coop",
        "csghmc",
        shots=1,
        epochs=1,
        test_images=10,
        method_settings={"tokens": 2, "init": None},
        inference_settings={"cycles": 2, "batch": 5, "sampler.temperature": 0.5},
    )
    folder = run_folder(config, tmp_path_factory.mktemp("runs"))
    assert do_run(config, folder, device="cpu", score=False)
    return folder


def test_the_file_of_a_run_names_the_same_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config(read_config_file(run / "config.json"))
    assert run_folder(config, run.parent) == run
    changed = build_config(gather_settings(run / "config.json", {}, ["inference.cycles=3"]))
    assert changed.resolved().training.inference == config.resolved().training.inference.changed(cycles=3)
    monkeypatch.chdir(run.parent.parent)
    shown = CliRunner().invoke(app, ["train", "--config", str(run / "config.json"), "--runs", str(run.parent)])
    assert shown.stdout.split(";")[0].split() == ["already", "trained:", str(run)]


def test_the_file_of_a_run_names_the_same_run_when_a_preset_has_changed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was = PRESETS.find("csghmc")
    more = {"sampler.exploration": Value(0.7, "ours"), "chains": Value(2, "ours")}
    monkeypatch.setitem(PRESETS.known, "csghmc", replace(was, layers=(*was.layers, more)))
    resolved = json.loads((run / "config.json").read_text())["resolved"]
    assert config_from_json(json.loads((run / "config.json").read_text()), run).resolved().settings != resolved
    config = build_config(read_config_file(run / "config.json"))
    assert config.resolved().settings == resolved
    assert run_folder(config, run.parent) == run


def test_the_file_of_a_run_that_cannot_be_made_again_is_refused(run: Path, tmp_path: Path) -> None:
    content = json.loads((run / "config.json").read_text())
    for changed, message in (
        ({**content["resolved"], "crop_scale": [0.5, 1.0]}, "would not make again"),
        ({**content["resolved"], "inference": {**content["resolved"]["inference"], "lr": 3}}, "cannot make again.*lr"),
    ):
        path = write(tmp_path, "config.json", json.dumps({**content, "resolved": changed}))
        with pytest.raises(UserError, match=message):
            read_config_file(path)
    path = write(tmp_path, "config.json", json.dumps({**content, "method_settings": ["tokens"]}))
    with pytest.raises(UserError, match="cannot make again"):
        read_config_file(path)


def test_the_page_shows_a_configuration_that_holds_and_names_every_key(tmp_path: Path) -> None:
    shown = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    words = re.findall(r"[\w.]+=[\w.]+", next(line for line in PAGE.splitlines() if "run.yaml shots=4" in line))
    config = build_config(gather_settings(write(tmp_path, "run.yaml", shown), {}, words))
    assert (config.shots, config.method_settings) == (4, {"tokens": 2})
    assert len(config.hash()) == 10
    (keys,) = (line for line in PAGE.splitlines() if line.startswith("- Accepted keys"))
    assert set(re.findall(r"`(\w+)`", keys)) == set(KEYS)


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/runs.md", "exec"), {})
    outcome, scores = capsys.readouterr().out.splitlines()
    assert outcome.endswith("done None")
    assert all(0 <= float(score) <= 100 for score in scores.split())


# The schema


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = run_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def examples() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [(page.name, text) for page in pages for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)]
    return [(page, text) for page, text in found if "data:" in text]


@pytest.mark.parametrize(("page", "text"), examples())
def test_the_examples_of_the_pages_pass_and_resolve(validator: Draft202012Validator, page: str, text: str) -> None:
    content = yaml.safe_load(text)
    assert validator.is_valid(content), page
    build_config(content).resolved()


@pytest.mark.parametrize(
    ("method", "inference"), [*((method, "rebapl") for method in METHODS), *(("maple", name) for name in PRESETS)]
)
def test_every_resolved_run_passes(validator: Draft202012Validator, method: str, inference: str) -> None:
    """All settings that there are, with the values that they have by default."""
    if METHODS.find(method).learner.recipe.epochs == 0:  # a method without training steps
        inference = "tta"
    resolved = build_config({"data": "digits", "method": method, "inference": inference}).resolved().settings
    chosen = {"data": "digits", "method": resolved["method"], "inference": resolved["inference"]}
    assert [error.message for error in validator.iter_errors(chosen)] == []


@pytest.mark.parametrize(
    "given",
    [
        {"extends": "common.yaml", "seed": 2},
        {"method": {"depth": 3}, "inference": {"batch": 4}},
        {"targets": "dtd,eurosat"},
        {"targets": ["dtd", "eurosat"]},
        {"inference": {"name": "rebapl", "repulsion.distance": "energy", "sampler.lr": 0.1}},
        {"inference": {"repulsion": {"force": {"kind": "absolute", "strength": 2}, "distance": {"bandwidth": 1.0}}}},
        {"inference": {"sampler": "sgld", "repulsion": None}},
    ],
)
def test_what_is_right_passes(validator: Draft202012Validator, given: dict[str, Any]) -> None:
    assert [error.message for error in validator.iter_errors(given)] == []


@pytest.mark.parametrize(
    "given",
    [
        {"dta": "digits"},
        {"shots": "sixteen"},
        {"shots": 0},
        {"protocol": "base"},
        {"method": "cop"},
        {"method": {"name": "coop", "depth": 3}},
        {"method": {"name": "maple", "tokens": 2.5}},
        {"inference": "rebappl"},
        {"inference": {"name": "rebapl", "cycels": 3}},
        {"inference": {"cycles": 0}},
        {"inference": {"sampler": {"kind": "sgd", "temperature": 1.0}}},
        {"inference": {"sampler": {"kind": "sgdd"}}},
        {"inference": {"repulsion": {"force": {"kind": "fading", "strength": 2}}}},
        {"inference": {"repulsion": {"distance": "euclid"}}},
        {"inference": {"repulsions.distance": "mmd"}},
    ],
)
def test_what_is_wrong_does_not(validator: Draft202012Validator, given: dict[str, Any]) -> None:
    assert not validator.is_valid(given)


def test_the_command_prints_or_writes_it(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["config", "schema"])
    assert json.loads(printed.stdout) == run_schema()
    written = CliRunner().invoke(app, ["config", "schema", "--out", str(tmp_path / "s.json")])
    assert written.exit_code == 0
    assert json.loads((tmp_path / "s.json").read_text()) == run_schema()
