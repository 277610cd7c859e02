"""What the README shows runs, and what it names is there."""

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rebapl.cli.commands import app
from rebapl.data.catalogue import load_dataset
from rebapl.learners import METHODS
from rebapl.sampling import PRESETS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_python_in_the_readme_runs(number: int) -> None:
    """As it stands, but for the number of images: what is checked is that it runs and what it shows."""
    code = BLOCKS[number].replace("shots=16,", "shots=1, test_images=20,")
    assert (code == BLOCKS[number]) == ("load_task" not in code)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, f"README block {number}", "exec"), {})
    if "print(" in BLOCKS[number]:
        assert "'novel': {'accuracy'" in shown.getvalue()


def _drawn(folder: Path) -> str:
    """Two pictures of each of two classes, and another one, as photos; gives the backbone for them."""
    shapes = load_dataset("shapes")
    for item in shapes.train:
        if item.label in (0, 9) and item.key.endswith(("000", "001", "002")):
            held_back = item.key.endswith("002")
            parent = folder / ("new-photos" if held_back else f"photos/{item.class_name}")
            path = parent / f"{item.label}-{item.key[-3:]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            shapes.load(item.key).save(path)
    return "mini"


def _real(folder: Path, shared: Path) -> str:
    """The same of real photos."""
    categories = shared / "data" / "caltech-101" / "101_ObjectCategories"
    for name in ("dalmatian", "elephant"):
        *learned, other = sorted((categories / name).iterdir())[:3]
        for file in learned:
            (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / "photos" / name)
        (folder / "new-photos").mkdir(exist_ok=True)
        shutil.copy(other, folder / "new-photos" / f"{name}.jpg")
    return str(shared / "models" / "photo-clip")


@pytest.mark.parametrize("photos", ["drawn", pytest.param("real", marks=pytest.mark.shared)])
def test_the_transcript_of_ones_own_photos_runs(
    photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As it stands, but for a quick method. Lines begin with the same words; the rest depends on the photos."""
    backbone = _drawn(tmp_path) if photos == "drawn" else _real(tmp_path, request.getfixturevalue("shared"))
    monkeypatch.chdir(tmp_path)
    (transcript,) = re.findall(r"```\n(\$ rebapl learn .*?)```", README, flags=re.DOTALL)
    commands = re.findall(r"^\$ rebapl (.*)\n((?:[^$].*\n)*)", transcript, flags=re.MULTILINE)
    assert [command.split()[0] for command, _ in commands] == ["learn", "predict"]
    for command, shown in commands:
        words = shlex.split(re.sub(r"--backbone \S+", f"--backbone {backbone}", command))
        quick = ["--method", "coop", "--inference", "ensemble", "--epochs", "1"] if words[0] == "learn" else []
        result = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app, [*words, *quick])
        assert result.exit_code == 0, result.output
        if words[0] == "learn":
            begin = re.compile(r"^(?!warning)[^:\n]+:", flags=re.MULTILINE)
            found = begin.findall(result.stdout)
            assert found == begin.findall(shown)[-len(found) :]
        else:
            assert all(file.name in result.stdout for file in (tmp_path / "new-photos").iterdir())


def test_the_readme_names_every_method_and_inference_once() -> None:
    tables = [line.split("|")[1] for line in README.splitlines() if line.startswith("| `")]
    named = re.findall(r"`([^`]+)`", " ".join(tables))
    assert sorted(named) == sorted([*METHODS, *PRESETS])


def test_links_and_pictures_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
