"""CONTRIBUTING.md names what is there: the layers, and every file, class and function on the way of `rebapl train`."""

import ast
import importlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rebapl
from rebapl.cli.commands import app

SOURCE = Path(rebapl.__file__).parent
PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The text under a heading of the page."""
    (text,) = [part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if part.startswith(heading)]
    return text


WALK = re.findall(r"^\d+\. (.*)$", section("What happens in `rebapl train`"), flags=re.MULTILINE)


def codes(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", text)


def defined() -> set[str]:
    """All classes and functions of the package, and `Class.method` for methods."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def written() -> set[str]:
    """All texts in the modules that write a run and its posterior: the names of their files are among them."""
    paths = [*(SOURCE / "runs").glob("*.py"), *(SOURCE / "posterior").glob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_the_walk_has_ten_lines() -> None:
    assert len(WALK) == 10


@pytest.mark.parametrize("line", WALK)
def test_each_line_begins_with_a_file_and_what_is_defined_in_it(line: str) -> None:
    path, name = codes(line)[:2]
    assert line.startswith(f"`{path}`: `{name}`")
    thing = importlib.import_module(f"rebapl.{path.removesuffix('.py').replace('/', '.')}")
    for part in name.split("."):
        thing = getattr(thing, part)
    assert thing.__module__ == f"rebapl.{path.removesuffix('.py').replace('/', '.')}"


def test_everything_named_in_the_walk_exists() -> None:
    names, files = defined(), written()
    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for code in codes("\n".join(WALK)):
        if code.endswith(".py"):
            assert (SOURCE / code).is_file(), code
        elif code.startswith("--"):
            assert code in shown, code
        elif "=" in code:
            assert code.upper() in shown, code
        elif re.search(r"\.(json|csv|txt|safetensors)$", code) or code == "posterior":
            assert code in files, code
        else:
            assert code in names, code


def test_the_tables_name_every_folder_and_module() -> None:
    named = [codes(line)[0] for line in section("How the code is laid out").splitlines() if line.startswith("| `")]
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(folders | modules)


def test_other_files_that_are_named_exist() -> None:
    root = Path(__file__).parents[1]
    for code in codes(PAGE):
        if re.fullmatch(r"[\w/.]+\.(py|md)", code):
            assert any((folder / code).is_file() for folder in (root, SOURCE, SOURCE / "learners")), code
