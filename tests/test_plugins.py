"""Code from outside: a real small package with an entry point, a broken one, and modules that are named."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rebapl import plugins
from rebapl.errors import UserError

LEARNER = """
from rebapl.learners import Learner, Recipe, register
from rebapl.settings import Settings

class Config(Settings):
    strength: float = 1.0

@register("from-outside", Config)
class Outside(Learner):
    recipe = Recipe(lr=0.1, epochs=1, batch=2)
    repels_in = None
"""


def install(folder: Path, name: str, module: str, text: str) -> None:
    """Write a package as pip installs it: its module, and metadata with an entry point."""
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rebapl.learners]\n{name} = {module}\n")


def run(folder: Path, program: str) -> str:
    source = Path(plugins.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": f"{source}:{folder}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout + found.stderr


def test_installed_learners_are_found_and_broken_ones_named(tmp_path: Path) -> None:
    install(tmp_path, "outside", "outside_learners", LEARNER)
    install(tmp_path, "broken", "broken_learners", "import a_module_that_nobody_has\n")
    said = run(
        tmp_path,
        """
        import sys
        from rebapl.learners import METHODS
        METHODS["coop"]
        print("imported early:", "outside_learners" in sys.modules)
        print("settings:", METHODS.find("from-outside").settings({"strength": 2}).plain())
        print("listed:", "from-outside" in list(METHODS), "coop" in list(METHODS))
        """,
    )
    assert "imported early: False" in said
    assert "settings: {'strength': 2}" in said
    assert "listed: True True" in said
    assert said.count("plugin 'broken' (broken_learners, of broken) could not be loaded and is left out") == 1
    assert "No module named 'a_module_that_nobody_has'" in said


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_a_module_in_the_working_folder_is_imported(here: Path) -> None:
    (here / "a_module_of_mine.py").write_text("value = 5\n")
    assert plugins.load_module("a_module_of_mine").value == 5
    del sys.modules["a_module_of_mine"]


def test_a_module_that_cannot_be_imported_is_refused(here: Path) -> None:
    (here / "a_broken_module.py").write_text("raise RuntimeError('not today')\n")
    with pytest.raises(UserError, match=r"plugin 'a_broken_module' cannot be imported \(RuntimeError: not today\)"):
        plugins.load_module("a_broken_module")
    with pytest.raises(UserError, match=r"without '\.py'"):
        plugins.load_module("missing")


def test_modules_in_the_environment_are_imported_when_a_name_is_looked_up(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a_first_module.py").write_text("")
    (here / "a_second_module.py").write_text("")
    monkeypatch.setenv(plugins.VARIABLE, "a_first_module")
    registry: plugins.Registry[int] = plugins.Registry("thing", "rebapl.nothing")
    registry.known["one"] = 1
    assert registry["one"] == 1
    assert "a_first_module" not in sys.modules
    assert "two" not in registry
    assert "a_first_module" in sys.modules
    plugins.use_modules(["a_second_module", "a_first_module"])
    assert "a_second_module" in sys.modules
    assert os.environ[plugins.VARIABLE] == "a_first_module,a_second_module"
    monkeypatch.setenv(plugins.VARIABLE, "a_missing_module")
    with pytest.raises(UserError, match="plugin 'a_missing_module' cannot be imported"):
        list(registry)
    for name in ("a_first_module", "a_second_module"):
        del sys.modules[name]
