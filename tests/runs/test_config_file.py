"""Configurations as people write them: files, inheritance, words with dots, and mistakes."""

import re
from pathlib import Path

import pytest

from rebapl.errors import UserError
from rebapl.runs.config import RunConfig
from rebapl.runs.config_file import KEYS, build_config, merged, read_config_file, read_words
from rebapl.yaml_files import parse_yaml

PAGE = (Path(__file__).parents[2] / "docs/runs.md").read_text(encoding="utf-8")

FILE = """
data: digits
method: {name: maple, tokens: 3}
inference:
  name: rebapl
  lr: 1e-3
  repulsion: {metric: energy}
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
        inference_settings={"lr": 0.001, "repulsion": {"metric": "energy"}},
    )


def test_a_file_goes_on_top_of_the_one_it_extends(tmp_path: Path) -> None:
    write(tmp_path, "common.yaml", FILE)
    (tmp_path / "deep").mkdir()
    path = write(
        tmp_path / "deep",
        "run.yaml",
        "extends: ../common.yaml\nseed: 3\ninference: {repulsion: {fraction: 0.1}}\nmethod: coop\n",
    )
    config = build_config(read_config_file(path))
    assert (config.data, config.seed, config.shots) == ("digits", 3, 4)
    assert config.inference_settings == {"lr": 0.001, "repulsion": {"metric": "energy", "fraction": 0.1}}
    assert (config.method, config.method_settings) == ("coop", {})  # the tokens were MaPLe's


def test_words_go_on_top_of_a_file(tmp_path: Path) -> None:
    chosen = read_config_file(write(tmp_path, "run.yaml", FILE))
    words = read_words(["seed=2", "method.tokens=5", "inference.repulsion.reference=8", "targets=[a, b]"])
    config = build_config(merged(chosen, words))
    assert config.seed == 2
    assert config.method_settings == {"tokens": 5}
    assert config.inference_settings["repulsion"] == {"metric": "energy", "reference": 8}
    assert config.targets == ("a", "b")
    assert build_config(merged(chosen, {"targets": "a, b"})).targets == ("a", "b")
    without = build_config(merged(chosen, read_words(["inference.repulsion=null"])))
    assert without.inference_settings["repulsion"] is None


def test_another_inference_leaves_the_settings_of_the_first_behind(tmp_path: Path) -> None:
    chosen = read_config_file(write(tmp_path, "run.yaml", FILE))
    config = build_config(merged(chosen, read_words(["inference=mle", "inference.lr=0.1"])))
    assert (config.inference, config.inference_settings) == ("mle", {"lr": 0.1})
    same = build_config(merged(chosen, {"inference": "rebapl"}))
    assert same.inference_settings["lr"] == 0.001


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed: 2", "unknown setting in run.yaml 'sed': did you mean 'seed'"),
        ("data: digits\ndata: shapes", "'data' stands twice"),
        ("data: [", "is not YAML"),
        ("- 1", "must hold settings"),
        ("data: digits\nmethod: 3", "method is 3"),
        ("data: digits\nshots: {a: 1}", "'shots' has no settings of its own"),
        ("data: digits\nshots: four", "shots is 'four'; it must be a whole number"),
        ("data: digits\nseed: true", "seed is True; it must be a whole number"),
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


def test_the_page_shows_a_configuration_that_holds_and_names_every_key() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    words = re.findall(r"[\w.]+=[\w.]+", next(line for line in PAGE.splitlines() if "run.yaml shots=4" in line))
    config = build_config(merged(parse_yaml(shown), read_words(words)))
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
