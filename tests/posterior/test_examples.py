"""The example of docs/prediction.md runs as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "prediction.md"


def test_the_example_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(compile(code, str(PAGE), "exec"), scope)
    assert capsys.readouterr().out.startswith("zero tensor(")
    assert scope["prediction"].probabilities.shape == (1, 5)
    assert (tmp_path / "runs/digits/posterior/posterior.json").is_file()
