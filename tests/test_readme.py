"""What the README shows runs, and what it names is there."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from rebapl.learners import METHODS
from rebapl.sampling import PRESETS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_python_in_the_readme_runs(number: int) -> None:
    """As it stands, but for the number of images: what is checked is that it runs and what it shows."""
    code = BLOCKS[number].replace("shots=16,", "shots=2, test_images=40,")
    assert (code == BLOCKS[number]) == ("load_task" not in code)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, f"README block {number}", "exec"), {})
    if "print(" in BLOCKS[number]:
        assert "'novel': {'accuracy'" in shown.getvalue()


def test_the_readme_names_every_method_and_inference_once() -> None:
    tables = [line.split("|")[1] for line in README.splitlines() if line.startswith("| `")]
    named = re.findall(r"`([^`]+)`", " ".join(tables))
    assert sorted(named) == sorted([*METHODS, *PRESETS])


def test_links_and_pictures_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
