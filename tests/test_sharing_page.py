"""What docs/sharing.md shows runs, but for the block on ONNX, which tests/posterior/test_export.py runs."""

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_run
from huggingface_hub import HfApi, constants
from methods import CASES

from rebapl.data.batches import LabelledImages
from rebapl.runs.run import run
from rebapl.training.log import TRACKERS

PAGE = (Path(__file__).parents[1] / "docs/sharing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
COMMIT = "d" * 40


def block(word: str) -> str:
    (found,) = [each for each in BLOCKS if word in each]
    return found


def test_a_posterior_goes_to_the_hub_and_into_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(_: HfApi, *, repo_id: str, folder_path: Path, **__: object) -> Any:
        shutil.copytree(folder_path, tmp_path / f"models--{repo_id.replace('/', '--')}/snapshots" / COMMIT)
        return SimpleNamespace(oid=COMMIT)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: None)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    shorter = block("push_to_hub").replace("shots=16", "shots=2, test_images=10").replace("epochs=2", "epochs=1")
    assert shorter != block("push_to_hub")
    names: dict[str, Any] = {}
    exec(compile(shorter + block("with_one_matrix"), "docs/sharing.md", "exec"), names)
    posterior, task = names["posterior"], names["task"]
    encoder = posterior.learner.encoder
    views = LabelledImages(task.dataset, task.dataset.test[:4]).views(encoder.preprocessing)
    expected = posterior.predict_proba(views)
    assert np.array_equal(names["again"].predict_proba(views), expected)
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
    exec(compile(block("register_tracker"), "docs/sharing.md", "exec"), {})
    run(small_run.CONFIG.changed(method="coop", test_images=10), tmp_path / "x", device="cpu", track=["wandb"])
    assert [each["id"] for each in began] == ["x", "x"]
    assert began[0]["config"]["method.name"] == "coop"
    assert rows == [0]
    assert {"base/accuracy", "novel/accuracy", "hm"} <= summary.keys()


def test_the_table_names_every_method() -> None:
    table = PAGE.split("| method | class embeddings")[1].split("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert sorted(named) == sorted(CASES)
