"""The pages of the documentation: their links lead somewhere, their commands and names exist, their examples run."""

import ast
import contextlib
import gc
import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_run
import typer
import yaml
from huggingface_hub import HfApi, constants
from pages import DOCS, ROOT, blocks, in_backticks, run_code, text_of, without_blocks
from typer.testing import CliRunner

import rebapl
import site_hooks
from rebapl.cli.commands import app
from rebapl.data.batches import LabelledImages
from rebapl.data.catalogue import load_dataset
from rebapl.data.published import PUBLISHED
from rebapl.evaluation import SCORES
from rebapl.learners import METHODS
from rebapl.plugins import Registry
from rebapl.reproduce.targets import PAPER_TARGETS
from rebapl.runs.run import run
from rebapl.sampling import PRESETS
from rebapl.training.log import TRACKERS

SOURCE = Path(rebapl.__file__).parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for path in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", without_blocks(text_of(page))):
        assert (ROOT / page).parent.joinpath(path).exists(), path


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_lists_are_lists_on_the_site(page: str) -> None:
    """Other than elsewhere, a list needs an empty line before it, and what belongs to an item four spaces."""
    text = without_blocks(text_of(page))
    assert not re.findall(r"^[^\s\-|].*\n- .*$", text, flags=re.MULTILINE)
    assert not re.findall(r"^ {1,3}\|.*$", text, flags=re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    def paths(nav: Any) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        return [path for each in (nav if isinstance(nav, list) else nav.values()) for path in paths(each)]

    pages = [page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")]
    notebooks = [f"notebooks/{path.stem}.md" for path in (DOCS / "notebooks").glob("*.ipynb")]
    shown = paths(yaml.safe_load(text_of("mkdocs.yml"))["nav"])
    assert sorted(shown) == sorted([*pages, *notebooks, *site_hooks.PAGES])


def test_links_are_changed_for_the_site() -> None:
    fenced = "```\n[a](../CONTRIBUTING.md)\n```"
    assert site_hooks.for_the_site(fenced, "data.md") == fenced
    assert site_hooks.for_the_site("[a](notebooks/photos.ipynb)", "index.md") == "[a](notebooks/photos.md)"
    nowhere = "[a](../nowhere.md)"
    assert site_hooks.for_the_site(nowhere, "data.md") == nowhere, "for mkdocs to refuse"
    assert site_hooks.for_the_site("[a](../data.md#x)", "mini-suite/README.md") == "[a](../data.md#x)"


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the extra docs: pip install 'rebapl[docs]'")
def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    loaded = r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*stylesheet[^>]*href=\"?(?:https?:)?//"
    for page in tmp_path.rglob("*.html"):
        assert not re.search(loaded, page.read_text(encoding="utf-8")), page
    assert "exactly 0.951" in (tmp_path / "notebooks/samplers.html").read_text(encoding="utf-8")
    assert 'id="rebapl.fit"' in (tmp_path / "api.html").read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    """The lines of a page that call `rebapl`, in blocks and between backticks, without comments and pipes."""
    text = text_of(page).replace("\\\n", " ")
    fenced = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    shell = "".join(block for language, block in fenced if language in ("", "sh"))
    lines = [*shell.splitlines(), *in_backticks(without_blocks(text))]
    calls = [re.match(r"(?:\$ |[A-Z_]+=\S+ )*rebapl ([-a-z].*)", line.strip()) for line in lines]
    return [re.split(r" #|[|>;&]", call[1])[0] for call in calls if call is not None]


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_the_commands_and_options_that_a_page_shows_exist(page: str) -> None:
    root = typer.main.get_command(app)
    for line in commands(page):
        command: Any = root
        for word in line.split():
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
            elif re.match(r"--?[a-zA-Z]", word):
                known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
                assert word.partition("=")[0] in known | {"--help"}, f"{page}: rebapl {line}"
        assert command is not root or line.startswith("-"), f"{page}: rebapl {line}"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("README.md", [*METHODS, *PRESETS]),
        ("docs/methods.md", [*METHODS, *PRESETS]),
    ],
)
def test_the_tables_name_every_method_and_preset_once(page: str, names: list[str]) -> None:
    cells = [line.split("|")[1] for line in text_of(page).splitlines() if line.startswith("| `")]
    assert sorted(in_backticks(" ".join(cells))) == sorted(names)


def test_the_table_of_published_data_sets_is_the_catalogue() -> None:
    rows = [line.strip("| ").split(" | ") for line in text_of("docs/data.md").splitlines() if "{}" in line]
    table = {row[0]: row[1:] for row in rows if row[0] in PUBLISHED}
    assert set(table) == set(PUBLISHED)
    for name, (classes, images, lists, template) in table.items():
        entry = PUBLISHED[name]
        assert (int(classes), template, lists.split(",")[0]) == (entry.classes, entry.template, entry.lists[0])
        assert Path(images) == Path(entry.folder, entry.images)


def test_the_reference_has_every_public_name_once() -> None:
    named = re.findall(r"^::: rebapl\.(\w+)$", text_of("docs/api.md"), flags=re.MULTILINE)
    assert sorted(named) == sorted({*rebapl.__all__} - {"__version__"})


def test_contributing_names_what_there_is() -> None:
    """Every folder and module of the package stands in its tables, and the files and functions it names exist."""
    page = text_of("CONTRIBUTING.md")
    rows = [in_backticks(line)[0] for line in page.splitlines() if line.startswith("| `")]
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders | {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"} <= set(rows)
    for code in in_backticks(without_blocks(page)):
        if re.fullmatch(r"[\w/.]+\.(py|md)", code):
            assert any((folder / code).is_file() for folder in (ROOT, SOURCE, SOURCE / "learners")), code
    for path, name in re.findall(r"^\d+\. `([\w/]+\.py)`: `([\w.]+)`", page, flags=re.MULTILINE):
        outer, _, inner = name.partition(".")
        tree = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
        found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert outer in found, f"{path}: {name}"
        assert not inner or inner in {getattr(node, "name", "") for node in found[outer].body}, f"{path}: {name}"


def replaced(code: str, changes: dict[str, str]) -> str:
    """The code with some of its words replaced, each of which must stand there."""
    for before, after in changes.items():
        assert before in code, before
        code = code.replace(before, after)
    return code


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    for each in gc.get_objects():
        if isinstance(each, Registry):
            monkeypatch.setattr(each, "known", dict(each))  # all of them: a module registers when it is first imported
    entries: list[dict[str, Any]] = [SCORES, PAPER_TARGETS]
    before = [dict(each) for each in entries]
    yield
    for each, content in zip(entries, before, strict=True):
        each.clear()
        each.update(content)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("code", blocks("CONTRIBUTING.md"))
def test_the_examples_of_contributing_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 13, "one kind of thing is added in about ten lines"
    monkeypatch.chdir(tmp_path)
    run_code(code, "CONTRIBUTING.md")


@pytest.mark.parametrize("code", blocks("README.md"))
def test_the_python_in_the_readme_runs(code: str) -> None:
    """As it stands, but for the number of images: what is checked is that it runs and what it shows."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        run_code(code.replace("shots=16,", "shots=1, test_images=20,"), "README.md")
    if "print(" in code:
        assert "harmonic mean of the accuracies" in shown.getvalue()


EXAMPLES: dict[str, tuple[dict[str, str], Callable[[dict[str, Any], str], bool]]] = {
    "docs/index.md": (
        {'inference="rebapl"': 'inference="rebapl", epochs=1', "shots=4, test_images=100": "shots=1, test_images=10"},
        lambda names, _: names["top"].labels.shape == (1, 3),
    ),
    "docs/data.md": ({}, lambda _, said: said == "nine a photo of the number {}. 908 (64, 64)\nTrue\n"),
    "docs/loading.md": ({}, lambda names, _: np.shape(names["images"]) == (8, 3, 64, 64)),
    "docs/prediction.md": (
        {},
        lambda names, said: said.startswith("zero tensor(") and names["prediction"].probabilities.shape == (1, 5),
    ),
    "docs/report.md": ({}, lambda *_: Path("report.html").is_file()),
}
"""The pages with one example in Python: what is made smaller in it, and whether it did what the page says."""


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_example_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks(page)
    smaller, holds = EXAMPLES[page]
    monkeypatch.chdir(tmp_path)
    assert holds(run_code(replaced(code, smaller), page), capsys.readouterr().out)


def sharing(word: str) -> str:
    """The block of docs/sharing.md with a word. The one on ONNX runs in tests/posterior/test_export.py."""
    (found,) = [each for each in blocks("docs/sharing.md") if word in each]
    return found


def test_a_posterior_goes_to_the_hub_and_into_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "d" * 40

    def upload(_: HfApi, *, repo_id: str, folder_path: Path, **__: object) -> Any:
        shutil.copytree(folder_path, tmp_path / f"models--{repo_id.replace('/', '--')}/snapshots" / commit)
        return SimpleNamespace(oid=commit)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: None)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    shorter = replaced(sharing("push_to_hub"), {"shots=16": "shots=2, test_images=10", "epochs=2": "epochs=1"})
    names = run_code(shorter + sharing("with_one_matrix"), "docs/sharing.md")
    posterior, task = names["posterior"], names["task"]
    encoder = posterior.learner.encoder
    views = LabelledImages(task.dataset, task.dataset.test[:4]).views(encoder.preprocessing)
    expected = posterior.predict(views).probabilities.numpy()
    assert np.array_equal(names["again"].predict(views).probabilities.numpy(), expected)
    features = encoder.image_features(encoder.preprocessing.normalize(views))
    np.testing.assert_allclose(names["exactly"](features), expected, atol=1e-5)
    np.testing.assert_allclose(names["with_one_matrix"](features), expected, atol=0.02)


def test_a_tracker_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package wandb: this shows that ours calls theirs as the page says."""
    began: list[dict[str, Any]] = []
    rows: list[int] = []
    summary: dict[str, float] = {}
    their_run = SimpleNamespace(log=lambda _, step: rows.append(step), summary=summary, finish=lambda: None)
    wandb = ModuleType("wandb")
    wandb.init = lambda **asked: began.append(asked) or their_run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(TRACKERS, "known", dict(TRACKERS.known))
    run_code(sharing("register_tracker"), "docs/sharing.md")
    run(small_run.CONFIG.changed(method="coop", test_images=10), tmp_path / "x", device="cpu", track=["wandb"])
    assert [each["id"] for each in began] == ["x"]
    assert began[0]["config"]["method.name"] == "coop"
    assert rows == [0]
    assert {"base/accuracy", "novel/accuracy", "hm"} <= summary.keys()


def drawn(folder: Path) -> str:
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


def real(folder: Path, shared: Path) -> str:
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
    """As it stands, but for a quick method. Its lines are printed in that order; the rest depends on the photos."""
    backbone = drawn(tmp_path) if photos == "drawn" else real(tmp_path, request.getfixturevalue("shared"))
    monkeypatch.chdir(tmp_path)
    (transcript,) = re.findall(r"```\n(\$ rebapl learn .*?)```", text_of("README.md"), flags=re.DOTALL)
    lines = re.findall(r"^\$ rebapl (.*)\n((?:[^$].*\n)*)", transcript, flags=re.MULTILINE)
    assert [command.split()[0] for command, _ in lines] == ["learn", "predict"]
    for command, shown in lines:
        words = shlex.split(re.sub(r"--backbone \S+", f"--backbone {backbone}", command))
        quick = ["--method", "coop", "--inference", "ensemble", "--epochs", "1"] if words[0] == "learn" else []
        result = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app, [*words, *quick])
        assert result.exit_code == 0, result.output
        if words[0] == "learn":
            begin = re.compile(r"^(?!warning)[^:\n]+:", flags=re.MULTILINE)
            found = begin.findall(result.stdout)
            expected = begin.findall(shown[shown.index("learned:") :])
            assert [each for each in found if each in expected] == expected
        else:
            assert all(file.name in result.stdout for file in (tmp_path / "new-photos").iterdir())
