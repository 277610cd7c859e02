"""The pages of the documentation, read as text, and their code."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text_of(page: str) -> str:
    """The text of a page, by its path from the root of the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, heading: str = "") -> list[str]:
    """The blocks of Python code on a page, or below one of its headings."""
    parts = re.split(r"^## ", text_of(page), flags=re.MULTILINE) if heading else [text_of(page)]
    (text,) = [part for part in parts if part.startswith(heading)]
    return re.findall(r"^ *```python\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)


def run_code(code: str, page: str, **known: Any) -> dict[str, Any]:
    """Run the code of a page, which may use the names in `known`. Returns these names and those that it defines."""
    names: dict[str, Any] = {"__name__": "page", **known}
    exec(compile(code, page, "exec", dont_inherit=True), names)
    return names


def without_blocks(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def in_backticks(text: str) -> list[str]:
    """The texts between backticks."""
    return re.findall(r"`([^`\n]+)`", text)
