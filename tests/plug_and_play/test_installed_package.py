"""A real little package with a learner, a distance, a preset and a data set, installed by pip and used by name."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

import rebapl

SOURCE = Path(rebapl.__file__).parents[1]

LEARNER = """
import torch
import torch.nn.functional as F
from torch import nn

import rebapl
from rebapl.learners import Output


class ShiftSettings(rebapl.Settings):
    scale: float = 1.0


@rebapl.register("their-shift", ShiftSettings)
class Shift(rebapl.Learner):
    recipe = rebapl.Recipe(lr=0.01, epochs=1, batch=4)
    repels_in = "image"

    def __init__(self, encoder, config):
        super().__init__(encoder, config)
        self.shift = nn.Parameter(torch.zeros(encoder.joint_width, device=encoder.device))

    @torch.no_grad()
    def prepare_text(self):
        self.text = self.encoder.text_features(self.encoder.tokenize([[each] for each in self.sentences()]))

    def reset(self, generator):
        nn.init.normal_(self.shift, std=0.02, generator=generator)

    @torch.no_grad()
    def frozen(self, images):
        return self.encoder.image_features(images)

    def encode_classes(self):
        return {"text": self.text}

    def respond(self, frozen, classes):
        image = F.normalize(frozen + self.config.scale * self.shift, dim=-1)
        return Output(self.encoder.logits(image, classes["text"]), {"image": image}, classes)
"""

DISTANCE = """
import rebapl


@rebapl.register_distance("their-mean-shift")
def mean_shift(x, stored):
    return (x.mean(0) - stored.cloud.mean(1)).square().sum(-1)
"""

PRESET_MODULE = """
from pathlib import Path

import rebapl

rebapl.register_preset(Path(__file__).parent / "their-preset.yaml")
"""

PRESET = """
about: one chain with a distance from outside
extends: rebapl
ours:
  chains: 1
  cycles: 2
  repulsion.distance.kind: their-mean-shift
  repulsion.images: 4
"""

DATASET = """
from dataclasses import replace

import rebapl
from rebapl.data.catalogue import load_dataset

rebapl.register_dataset("their-digits", lambda: replace(load_dataset("digits"), name="their-digits"))
"""

ENTRY_POINTS = """
[rebapl.learners]
shift = theirs.learner
[rebapl.distances]
mean-shift = theirs.distance
[rebapl.presets]
preset = theirs.preset
[rebapl.datasets]
digits = theirs.dataset
"""

FILES = {
    "theirs/__init__.py": "",
    "theirs/learner.py": LEARNER,
    "theirs/distance.py": DISTANCE,
    "theirs/preset.py": PRESET_MODULE,
    "theirs/their-preset.yaml": PRESET,
    "theirs/dataset.py": DATASET,
}
TRAIN = (
    "train --method their-shift --inference their-preset --backbone mini --shots 1 --device cpu "
    "method.scale=0.5 test_images=10"
).split()


def wheel(folder: Path) -> Path:
    """The package as a wheel, which is a zip file with a list of its files."""
    info = "theirs-1.0.dist-info"
    files = {
        **FILES,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": ENTRY_POINTS,
    }
    lines = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    path = folder / "theirs-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


PROGRAM = """
import json, sys
from rebapl.cli.commands import app
from rebapl.runs import engine

if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        if "--plugin" in words:
            engine.LocalEngine._hand_out = engine.Engine._hand_out  # in a process of its own, though it is one job
        app(words, standalone_mode=False)
"""
"""All commands one after the other, since every start of a process takes seconds; the last in a worker process."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    done = subprocess.run([*pip, "--target", str(folder / "lib"), str(wheel(folder))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "lib"


@pytest.fixture(scope="module")
def folder(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands were called; what they printed is in `said.txt`."""
    folder = tmp_path_factory.mktemp("work")
    Image.new("RGB", (64, 64)).save(folder / "picture.png")
    (folder / "commands.py").write_text(PROGRAM)
    (folder / "mine.py").write_text(DATASET.replace("their", "my"))
    commands = [
        ["list"],
        ["data", "list"],
        [*TRAIN, "--data", "their-digits", "--out", "run", "--evaluate"],
        ["predict", "run", "picture.png"],
        "reproduce overhead --suite mini --out made".split(),
        "config schema --out schema.json".split(),
        ["--plugin", "mine", *TRAIN, "--data", "my-digits", "--out", "mine"],
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, installed)))}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
    words = [sys.executable, "commands.py", json.dumps(commands)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return folder


def manifest(run: Path) -> dict:
    return json.loads((run / "posterior/posterior.json").read_text())


def test_everything_is_listed(folder: Path) -> None:
    text = (folder / "said.txt").read_text()
    lines = {line.partition(":")[0]: line for line in text.splitlines()}
    below = {word.split()[0] for word in text.splitlines() if word.startswith("  ")}
    assert "their-digits" in lines["data sets"]
    assert {"their-shift", "their-preset"} <= below
    assert "their-mean-shift" in lines["distances"]
    assert lines["registered by plugins"] == "registered by plugins: their-digits"


def test_a_run_with_all_four_is_trained_scored_and_predicts(folder: Path) -> None:
    about = manifest(folder / "run")
    assert (about["method"], about["data"]) == ("their-shift", "their-digits")
    assert about["method_settings"] == {"scale": 0.5}
    assert about["inference"]["repulsion"]["distance"] == {"kind": "their-mean-shift"}
    assert len(about["weights"]) == 2
    assert (folder / "run/results.json").is_file()
    assert "picture.png" in (folder / "said.txt").read_text()


def test_the_distance_is_timed_and_the_schema_knows_the_method(folder: Path) -> None:
    assert "their-mean-shift" in (folder / "made/README.md").read_text()
    assert "their-shift" in (folder / "schema.json").read_text()


def test_a_module_that_is_not_installed_is_named_and_workers_import_it_too(folder: Path) -> None:
    assert manifest(folder / "mine")["data"] == "my-digits"
