"""Hooks of mkdocs for the documentation site: they add pages from outside `docs`, and change links to fit the site.

The pages are read on the site and as files of the repository, and their links must work in both. The site has only the
files in `docs`. Therefore

* CONTRIBUTING.md, SECURITY.md and CHANGELOG.md become pages of the site, and so do the notebooks;
* a link to one of them, or from one of them, leads to the page on the site;
* a link to any other file of the repository becomes its text with the path of the file;
* a link to nothing stays as it is, and `mkdocs build --strict` refuses it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {"contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md", "changes.md": "CHANGELOG.md"}
"""The pages of the site that are made from files outside `docs`, and these files."""

NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))

_FENCED = re.compile(r"^[ ]*```.*?^[ ]*```", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside `docs`. mkdocs calls this once."""
    from mkdocs.structure.files import File  # not above, because the tests of links do not need mkdocs

    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in NOTEBOOKS:
        content = as_markdown(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, _page_of(path), content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Change the links of a page. mkdocs calls this for each page."""
    return for_the_site(markdown, page.file.src_uri)


def for_the_site(markdown: str, page: str) -> str:
    """The text of a page, with links that work on the site. `page` is the path of the page on the site.

    >>> for_the_site("Read [the code](../tools/site_hooks.py).", "data.md")
    'Read the code (`tools/site_hooks.py`).'
    >>> for_the_site("[Add a learner](../CONTRIBUTING.md#add-a-learner)", "data.md")
    '[Add a learner](contributing.md#add-a-learner)'
    >>> for_the_site("[Data](docs/data.md)", "contributing.md")
    '[Data](data.md)'
    """
    parts, end = [], 0
    for fenced in _FENCED.finditer(markdown):
        parts += [_LINK.sub(lambda link: _on_the_site(link, page), markdown[end : fenced.start()]), fenced.group()]
        end = fenced.end()
    return "".join([*parts, _LINK.sub(lambda link: _on_the_site(link, page), markdown[end:])])


def _on_the_site(link: re.Match[str], page: str) -> str:
    text, path, anchor = link.group(1), link.group(2), link.group(3) or ""
    source = ROOT / PAGES[page] if page in PAGES else DOCS / page
    target = Path(os.path.normpath(source.parent / path))
    pages = {ROOT / file: name for name, file in PAGES.items()} | {path: _page_of(path) for path in NOTEBOOKS}
    on_site = pages.get(target) or (target.relative_to(DOCS).as_posix() if target.is_relative_to(DOCS) else None)
    if on_site is not None:
        return f"[{text}]({os.path.relpath(on_site, Path(page).parent)}{anchor})"
    if not target.exists():
        return link.group()
    shown = target.relative_to(ROOT).as_posix()
    return text if shown in text else f"{text} (`{shown}`)"


def as_markdown(notebook: dict[str, Any]) -> str:
    """A notebook as a page: its text, its code, and what its cells printed and drew."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text'])}```")
            else:
                parts.append(f"![what the cell above draws](data:image/png;base64,{output['data']['image/png']})")
    return "\n\n".join(parts) + "\n"


def _page_of(notebook: Path) -> str:
    return notebook.relative_to(DOCS).with_suffix(".md").as_posix()
