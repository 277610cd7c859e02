"""`rebapl data` as a person meets it."""

from pathlib import Path

import pytest
from drawn_folder import class_folders
from drawn_published import make_fixture
from typer.testing import CliRunner

from rebapl.cli.data import data
from rebapl.data.published import PUBLISHED
from rebapl.errors import UserError


def rebapl_data(*words: str):
    return CliRunner().invoke(data, words, env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_list_has_every_data_set() -> None:
    shown = rebapl_data("list")
    assert shown.exit_code == 0
    for entry in PUBLISHED.values():
        assert entry.name in shown.stdout
        assert entry.template in shown.stdout
    assert "digits" in shown.stdout


def test_list_says_what_is_there(tmp_path: Path) -> None:
    make_fixture("imagenet", tmp_path)
    make_fixture("eurosat", tmp_path)
    (tmp_path / "eurosat" / "split_zhou_EuroSAT.json").unlink()
    lines = rebapl_data("list", "--root", str(tmp_path)).stdout.splitlines()
    state = {line.split()[1]: line.split("│")[-2].strip() for line in lines if line.startswith("│")}
    assert {name: state[name] for name in ("imagenet", "eurosat", "dtd", "imagenetv2")} == {
        "imagenet": "there",
        "eurosat": "in part",
        "dtd": "none",
        "imagenetv2": "in part",
    }


def test_list_of_one_says_what_is_missing(tmp_path: Path) -> None:
    make_fixture("eurosat", tmp_path)
    assert "(missing)" not in rebapl_data("list", "eurosat", "--root", str(tmp_path)).stdout
    (tmp_path / "eurosat" / "split_zhou_EuroSAT.json").unlink()
    lines = rebapl_data("list", "eurosat", "--root", str(tmp_path)).stdout.splitlines()
    assert [line.strip() for line in lines if "missing" in line] == ["eurosat/split_zhou_EuroSAT.json (missing)"]
    assert "data root nowhere is not a folder" in str(rebapl_data("list", "eurosat", "--root", "nowhere").exception)


def test_list_of_one_marks_the_folder_of_images() -> None:
    lines = [line.strip() for line in rebapl_data("list", "eurosat").stdout.splitlines()]
    assert lines[lines.index("files below the data root:") + 1] == "eurosat/2750/"
    lines = [line.strip() for line in rebapl_data("list", "stanford_cars").stdout.splitlines()]
    assert lines[lines.index("files below the data root:") + 1] == "stanford_cars/", "its images are in several folders"


@pytest.mark.parametrize("name", PUBLISHED)
def test_list_of_one_has_all_that_is_known(name: str) -> None:
    entry = PUBLISHED[name]
    shown = rebapl_data("list", name).stdout
    for part in (*entry.lists, *entry.sources, entry.template, entry.title, f"{entry.counts[2]:,} test"):
        assert part in shown


def test_a_drawn_data_set_is_complete_until_something_is_missing(tmp_path: Path) -> None:
    make_fixture("eurosat", tmp_path)
    shown = rebapl_data("check", "eurosat", "--root", str(tmp_path))
    assert shown.exit_code == 0
    assert "eurosat: complete" in shown.stdout
    assert "all 40 images can be read" in shown.stdout
    (tmp_path / "eurosat" / "2750" / "Forest" / "Forest_1.jpg").write_bytes(b"[x]")
    assert rebapl_data("check", "eurosat", "--root", str(tmp_path), "--quick").exit_code == 0
    shown = rebapl_data("check", "eurosat", "--root", str(tmp_path))
    assert shown.exit_code == 1
    assert "Forest_1.jpg cannot be read" in shown.stdout
    assert "eurosat: not complete" in shown.stdout


def test_unknown_names() -> None:
    for words in (("list", "eurosta"), ("check", "eurosta")):
        error = rebapl_data(*words).exception
        assert isinstance(error, UserError)
        assert "did you mean 'eurosat'?" in str(error)


def test_control_characters_in_names_are_shown_as_escapes(tmp_path: Path) -> None:
    class_folders(tmp_path, **{"c\x1b[31mat": 3, "dog": 3})
    (tmp_path / "dog" / "\x07\n.png").write_bytes(b"broken")
    shown = rebapl_data("check", str(tmp_path)).stdout
    assert "c\\x1b[31mat" in shown
    assert "\\x07\\n.png cannot be read" in shown
    assert not {"\x1b", "\x07"} & set(shown)
