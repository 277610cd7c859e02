"""The two tools that say how much there is to read."""

from pathlib import Path

import pytest

import rooms
import walk


def test_the_walk_has_the_functions_of_a_command_and_no_bodies_of_modules(capsys: pytest.CaptureFixture[str]) -> None:
    functions, _ = walk.walk(["toy", "--help"])
    assert "Usage" in capsys.readouterr().out
    assert functions
    assert all((walk.PACKAGE / file).is_file() for file, _ in functions)
    assert "<module>" not in {name for _, name in functions}


def test_rooms_are_counted_in_files_and_lines_of_code(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "top.py").write_text(
        '"""About."""\n\n\nclass Same:\n    """It is."""\n\n    x = [  # why\n        1,\n    ]\n'
    )
    (tmp_path / "room" / "inside.py").write_text("class Same:\n    pass\n")
    sizes, classes = rooms.rooms(tmp_path)
    assert sizes == {"top": (1, 4), "room": (1, 2)}
    assert classes["Same"] == 2
