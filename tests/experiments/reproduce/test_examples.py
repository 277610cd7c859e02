"""The examples in docstrings and in the page of `rebapl reproduce` run."""

import contextlib
import doctest
import importlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "reproduce.md"


@pytest.mark.parametrize("module", ["tables", "paper", "averages", "reproduce.estimate", "reproduce.make"])
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"rebapl.experiments.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_python_in_the_page_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(block, "docs/reproduce.md", "exec"), {})
    assert "letters maple rebapl 1" in shown.getvalue()
