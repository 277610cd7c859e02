"""Each folder of the package imports only folders above it in the list, and modules do not import in circles."""

import ast
from pathlib import Path

import pytest

import rebapl

SOURCE = Path(rebapl.__file__).parent
LAYERS = [
    "data",
    "backbones",
    "learners",
    "repulsion",
    "sampling",
    "posterior",
    "evaluation",
    "training",
    "runs",
    "reports",
    "reproduce",
    "app",
    "cli",
]
FOUNDATION = {path.stem for path in SOURCE.glob("*.py")}
"""Modules beside the folders: everybody may import them, and they import none of the folders when they are loaded."""


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, wherever in the file, except for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module and node.module.split(".")[0] == "rebapl":
                found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "rebapl"}
    return found


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def folder_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_the_list_names_every_folder() -> None:
    there = {path.parent.relative_to(SOURCE).parts[0] for path in files() if path.parent != SOURCE}
    assert there == set(LAYERS)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_goes_up(path: Path) -> None:
    parts = path.relative_to(SOURCE).parts
    allowed = set(FOUNDATION) | {"", "__version__"}
    if len(parts) > 1:
        allowed |= set(LAYERS[: LAYERS.index(parts[0]) + 1])
    elif path.stem in ("__init__", "__main__"):
        return  # the front doors: one names things of every layer, and imports them when they are asked for
    upward = {module for module in imports(path) if folder_of(module) not in allowed}
    assert not upward


def test_no_circles() -> None:
    known = {".".join(("rebapl", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in files()}
    known = {name.removesuffix(".__init__"): path for name, path in known.items() if name != "rebapl.__init__"}
    graph = {name: {each for each in imports(path) if each in known and each != name} for name, path in known.items()}
    for name, needed in graph.items():  # a package's own list of names is no part of the way between its modules
        graph[name] = {each for each in needed if not name.startswith(f"{each}.")}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' > '.join((*path, name))}"
        if name not in done:
            for each in sorted(graph[name]):
                visit(each, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_no_class_name_stands_twice() -> None:
    places: dict[str, list[str]] = {}
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice
