"""The examples in the page of `rebapl reproduce` run."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"


def test_the_python_in_the_page_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(block, "docs/reproduce.md", "exec"), {})
    assert "letters maple rebapl 1" in shown.getvalue()
