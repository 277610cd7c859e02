"""The pages of the documentation, read as text."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text_of(page: str) -> str:
    """The text of a page, by its path from the root of the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    """The fenced blocks of one language on a page."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text_of(page), flags=re.MULTILINE | re.DOTALL)
    return [block for each, block in found if each == language]


def without_blocks(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def in_backticks(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`\n]+)`", text)
