"""Run the notebooks of docs/notebooks without Jupyter, and store in them what their cells print and draw.

python tools/notebooks.py
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"


def run(notebook: dict[str, Any], change: Callable[[str], str] = str) -> dict[str, Any]:
    """Run the code cells in their order, and store in each what it prints and draws. Returns the names they define.

    `change` turns the code of a cell into the code that is run. The notebook keeps the original code.
    """
    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "notebook"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(change("".join(cell["source"])), f"cell {number}", "exec"), names)
        cell["execution_count"], cell["outputs"] = number, []
        if printed.getvalue():
            lines = printed.getvalue().splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": lines})
        for figure in pyplot.get_fignums():
            cell["outputs"].append(_picture(pyplot.figure(figure)))
        pyplot.close("all")
    return names


def _picture(figure: Any) -> dict[str, Any]:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80, metadata={"Software": None})
    data = {"image/png": base64.b64encode(file.getvalue()).decode()}
    return {"output_type": "display_data", "data": data, "metadata": {}}


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        content = json.loads(path.read_text(encoding="utf-8"))
        run(content)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.name)
