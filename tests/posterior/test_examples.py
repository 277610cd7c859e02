"""The examples in docstrings, and the one of docs/prediction.md, run as they stand there."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "prediction.md"


@pytest.mark.parametrize(
    "module",
    ["posterior.prediction", "posterior.stacking", "evaluation.scores", "evaluation.diversity", "cli.values"],
)
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"rebapl.{module}"), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_example_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(compile(code, str(PAGE), "exec"), scope)
    assert capsys.readouterr().out.startswith("zero tensor(")
    assert scope["prediction"].probabilities.shape == (1, 5)
    assert (tmp_path / "runs/digits/posterior/posterior.json").is_file()
