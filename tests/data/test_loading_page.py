"""The example of docs/loading.md, and `rebapl data cache`, as a person meets them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from rebapl.data.cache import cached
from rebapl.data.dataset import Dataset

PAGE = Path(__file__).parents[2] / "docs" / "loading.md"


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    found: dict[str, object] = {}
    exec(compile(example, PAGE.name, "exec"), found)
    assert np.shape(found["images"]) == (8, 3, 64, 64)


def shown(cache: Path) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "REBAPL_CACHE": str(cache)}
    command = [sys.executable, "-c", "from rebapl.cli import main; main()", "data", "cache"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


def test_the_command_shows_folders_numbers_and_sizes(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert f"no cached images in {cache}" in shown(cache)
    Image.new("RGB", (100, 100)).save(tmp_path / "a.png")
    for size in (50, 80):
        data = Dataset("mine", "{}.", (), (), (), lambda key: Image.open(tmp_path / key), folder=tmp_path)
        cached(data, size, cache).load("a.png")
    lines = shown(cache).splitlines()
    (small,), (large,) = ([line for line in lines if f"mine-{size}px" in line] for size in (50, 80))
    assert "7.6 kB" in small
    assert "19.3 kB" in large
    (total,) = (line for line in lines if "all" in line)
    assert " 2 " in total
    assert "26.9 kB" in total
    assert f"below {cache}" in lines[-1]
