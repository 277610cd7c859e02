"""The site that `make docs` builds: its pages, its links, and that it needs no network."""

import doctest
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import rebapl
import site_hooks

ROOT = Path(__file__).parents[1]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def paths(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [path for each in (nav if isinstance(nav, list) else nav.values()) for path in paths(each)]


def test_every_page_is_in_the_navigation_once_and_exists() -> None:
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")]
    assert sorted(paths(CONFIG["nav"])) == sorted([*pages, *notebooks, *site_hooks.PAGES])


@pytest.mark.parametrize("page", [*(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
def test_links_lead_somewhere_when_pages_are_read_as_files(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for path in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / path).exists(), path


@pytest.mark.parametrize("page", [*(ROOT / "docs").rglob("*.md")])
def test_lists_are_lists_on_the_site(page: Path) -> None:
    """Other than elsewhere, a list needs an empty line before it, and what belongs to an item four spaces."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^[^\s\-|].*\n- .*$", text, flags=re.MULTILINE)
    assert not re.findall(r"^ {1,3}\|.*$", text, flags=re.MULTILINE)


def test_links_of_the_site() -> None:
    assert doctest.testmod(site_hooks).attempted == 3
    assert doctest.testmod(site_hooks).failed == 0
    fenced = "```\n[a](../CONTRIBUTING.md)\n```"
    assert site_hooks.for_the_site(fenced, "data.md") == fenced
    assert site_hooks.for_the_site("[a](notebooks/photos.ipynb)", "index.md") == "[a](notebooks/photos.md)"
    nowhere = "[a](../nowhere.md)"
    assert site_hooks.for_the_site(nowhere, "data.md") == nowhere, "for mkdocs to refuse"
    assert site_hooks.for_the_site("[a](../data.md#x)", "mini-suite/README.md") == "[a](../data.md#x)"


def test_the_reference_has_every_public_name_once() -> None:
    named = re.findall(r"^::: rebapl\.(\w+)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(named) == sorted({*rebapl.__all__} - {"__version__"})


def test_the_python_of_the_first_page_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/index.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    small = code.replace('inference="rebapl"', 'inference="rebapl", epochs=1').replace("shots=4", "shots=1")
    small = small.replace("test_images=100", "test_images=10")
    assert "epochs=1" in small
    assert "shots=1, test_images=10" in small
    names: dict[str, Any] = {}
    exec(compile(small, "docs/index.md", "exec"), names)
    assert names["top"].labels.shape == (1, 3)


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the extra docs: pip install 'rebapl[docs]'")
def test_it_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    loaded = r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*stylesheet[^>]*href=\"?(?:https?:)?//"
    for page in pages:
        assert not re.search(loaded, page.read_text(encoding="utf-8")), page
    assert "exactly 0.951" in (tmp_path / "notebooks/samplers.html").read_text(encoding="utf-8")
    assert 'id="rebapl.fit"' in (tmp_path / "api.html").read_text(encoding="utf-8")
