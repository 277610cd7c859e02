"""The notebooks of docs/notebooks run, in miniature; what they show is what they say."""

import json
import re
from typing import Any

import pytest
import torch

import notebooks

SMALL = {
    "samplers": {"STEPS = 10_000": "STEPS = 1_500", "STEPS_PER_CYCLE = 1_000": "STEPS_PER_CYCLE = 150"},
    "photos": {"SHOTS = 6": "SHOTS = 2", "EPOCHS = None": "EPOCHS = 1", "< 22": "< 6"},
}


def read(name: str) -> dict[str, Any]:
    return json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def small(name: str) -> dict[str, Any]:
    """The names that the cells of a notebook leave after it has run with small settings."""
    changed = []

    def change(code: str) -> str:
        for before, after in SMALL[name].items():
            if before in code:
                changed.append(before)
                code = code.replace(before, after)
        return code

    names = notebooks.run(read(name), change)
    assert sorted(changed) == sorted(SMALL[name])
    return names


def test_each_notebook_has_a_miniature() -> None:
    assert sorted(path.stem for path in notebooks.FOLDER.glob("*.ipynb")) == sorted(SMALL)


def test_the_samplers() -> None:
    names = small("samplers")
    assert names["draws"].mean(0) == pytest.approx(names["exact_mean"], abs=0.1), "over four standard errors"
    assert len(names["plain"]) == len(names["repelled"]) == 6
    assert torch.equal(names["plain"][0], names["repelled"][0]), "nothing repels the first cycle"
    assert names["apart"](names["repelled"]) > names["apart"](names["plain"])


def test_photos() -> None:
    names = small("photos")
    assert len(names["posterior"]) == 6
    assert names["posterior"].class_names == ["C", "D", "G", "O", "Q"]
    assert names["prediction"].per_sample.shape == (6, 20, 5)
    assert (names["kept"] / "posterior.json").exists()


@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_kept_and_clean(name: str) -> None:
    """They are those of a run from top to bottom, without errors, warnings and paths of a machine."""
    cells = [cell for cell in read(name)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    said = "".join(line for output in outputs for line in output.get("text", []))
    assert not re.search(r"Warning|Error|/tmp|/home|/root", said)
