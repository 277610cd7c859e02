"""Show how large the package is: files and lines of code of each room, and class names that occur more than once.

    python tools/rooms.py
    python tools/rooms.py tests

A room is a folder of the package. Lines of code are those with code on them: docstrings, comments and blank lines are
not counted.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "rebapl"
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    r"""The number of lines of a Python file that have code on them.

    >>> code_lines('\"\"\"About.\"\"\"\n\n# why\nx = [\n    1,\n]\n')
    3
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def class_names(source: str) -> list[str]:
    """The names of the classes of a Python file."""
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def rooms(package: Path) -> tuple[dict[str, tuple[int, int]], Counter[str]]:
    """Files and code lines by room, and how many classes have each name."""
    sizes: dict[str, tuple[int, int]] = {}
    classes: Counter[str] = Counter()
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).parts
        room = inside[0] if len(inside) > 1 else "top"
        source = path.read_text(encoding="utf-8")
        files, lines = sizes.get(room, (0, 0))
        sizes[room] = files + 1, lines + code_lines(source)
        classes.update(class_names(source))
    return sizes, classes


def main() -> None:
    """Print the table, and the class names that occur more than once."""
    sizes, classes = rooms(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PACKAGE)
    for room, (files, lines) in sorted(sizes.items()):
        print(f"{room:14}{files:6}{lines:8}")
    print(f"{'all':14}{sum(files for files, _ in sizes.values()):6}{sum(lines for _, lines in sizes.values()):8}")
    twice = sorted(name for name, count in classes.items() if count > 1)
    print(f"class names that stand more than once: {', '.join(twice) or 'none'}")


if __name__ == "__main__":
    main()
