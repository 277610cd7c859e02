"""The example in docs/data.md runs as it stands there; its table is the catalogue."""

import re
from pathlib import Path

from rebapl.data.published import PUBLISHED

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_example_of_the_page(tmp_path, monkeypatch, capsys) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == "Sea or Lake a centered satellite photo of {}. 20 (16, 16)\nTrue\n"


def test_the_table_of_the_page_is_the_catalogue() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "{}" in line]
    table = {row[0]: row[1:] for row in rows if row[0] in PUBLISHED}
    assert len(table) == 15
    for name, (classes, images, lists, template) in table.items():
        entry = PUBLISHED[name]
        assert (int(classes), Path(images), template) == (
            entry.classes,
            Path(entry.folder, entry.images),
            entry.template,
        )
        assert lists.split(",")[0] == entry.lists[0]
