"""`rebapl share`, `rebapl predict` with what others have shared, and `rebapl export`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import small_run
from huggingface_hub import HfApi, constants
from typer.testing import CliRunner

from rebapl.cli.commands import app
from rebapl.data.task import load_task
from rebapl.errors import UserError
from rebapl.runs.run import run as do_run

COMMIT = "c" * 40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    do_run(small_run.CONFIG.changed(method="coop", test_images=10), out, device="cpu")
    return out


def rebapl(*words: object) -> str:
    """What it prints; a `UserError` comes through."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_dry_run_writes_what_would_be_uploaded(run: Path, tmp_path: Path) -> None:
    shown = rebapl("share", run, "--to", "somebody/digits", "--licence", "mit", "--dry-run", tmp_path / "out")
    assert shown == f"what would be uploaded to somebody/digits: {tmp_path / 'out'}\n"
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["README.md", "posterior.json", "samples.safetensors"]
    card = (tmp_path / "out/README.md").read_text()
    scores = json.loads((run / "results.json").read_text())["parts"]
    assert f"| base | {scores['base']['images']} | {scores['base']['accuracy']:.2f} |" in card
    for said in ("license: mit", "| protocol | base-to-novel |", "| images per class | 2 |", "| data | digits |"):
        assert said in card, said
    again = rebapl("share", run, "--to", "somebody/digits", "--dry-run", tmp_path / "out")
    assert again == shown
    assert "license: mit" not in (tmp_path / "out/README.md").read_text()


def test_an_upload_says_how_to_use_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub"

    class Commit:
        oid = COMMIT

    def upload(_: HfApi, *, repo_id: str, folder_path: Path, **__: object) -> Commit:
        assert repo_id == "somebody/digits"
        shutil.copytree(folder_path, cache / "models--somebody--digits/snapshots" / COMMIT)
        return Commit()

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: None)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    shown = rebapl("share", run, "--to", "somebody/digits")
    address = f"hf://somebody/digits@{COMMIT}"
    assert shown.rstrip().endswith(f"rebapl predict {address} IMAGES")
    picture = tmp_path / "picture.png"
    dataset = load_task("digits").dataset
    dataset.load(dataset.test[0].key).save(picture)
    answers = [rebapl("predict", each, picture, "--format", "json", "--quiet") for each in (run, address)]
    assert answers[0] == answers[1]
    with pytest.raises(UserError, match="posterior 'somebody/digits@v9' could not be fetched"):
        rebapl("predict", "hf://somebody/digits@v9", picture)


def test_export_writes_what_the_ending_says(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "classes.npy"
    assert rebapl("export", run, "--out", out, "--classes", "zero,one,nine") == f"{out}\n"
    assert np.load(out).shape == (3, 128)
    with pytest.raises(UserError, match=r"the ending says what is written"):
        rebapl("export", run, "--out", tmp_path / "classes.txt")
    with pytest.raises(UserError, match="there is no such run or posterior"):
        rebapl("export", tmp_path / "none", "--out", out)
