"""Features in shards are those of the frozen tower for every kind of source, also if a process is killed."""

import hashlib
import json
import os
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from small_features import assert_same_features, embed, pack, pictures, plan

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.data.features import StoredFeatures
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError
from rebapl.runs import embedding
from rebapl.runs.engine import LocalEngine
from rebapl.runs.jobs import Event, Retried, Started, Stepped
from rebapl.runs.shards import Shard, work_on


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, twelve images."""
    return pictures(tmp_path_factory.mktemp("images") / "pets", cat=5, dog=4, bird=3)


@pytest.fixture(scope="module")
def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


def tower(encoder: DualEncoder, files: list[Path]) -> np.ndarray:
    """The normalised features (n, e) of images, preprocessed with Pillow and the formula only."""
    views = []
    for file in files:
        with Image.open(file) as image:  # 90 × 70 px: the short side becomes 64 px, and the centre is cropped
            small = image.resize((82, 64), Image.Resampling.BICUBIC).crop((9, 0, 73, 64))
        views.append(torch.from_numpy(np.array(small).transpose(2, 0, 1)))
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (encoder.preprocessing.mean, encoder.preprocessing.std))
    with torch.no_grad():
        states = encoder.embed_images((torch.stack(views).float() / 255 - mean) / std)
        features = encoder.vision.features(states)
    return (features / features.norm(dim=-1, keepdim=True)).numpy()


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_rows_hold_what_the_tower_gives_and_where_it_comes_from(
    mini: DualEncoder, folder: Path, files: list[Path], tmp_path: Path, precision: str
) -> None:
    out = embed(mini, [folder], tmp_path / "features", precision=precision)
    frame = pandas.read_parquet(out)
    assert frame["image_path"].tolist() == [file.relative_to(folder).as_posix() for file in files]
    assert frame["sha256"].tolist() == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert frame["class"].tolist() == frame["label"].tolist() == [file.parent.name for file in files]
    assert frame["split"].isna().all(), "the split is made when the features are used, as it is of images"
    stored = np.stack(frame["feature"].tolist())
    assert stored.dtype == precision
    close = {"float16": 6e-4, "float32": 1e-6}[precision]  # half a step of float16 below 1 is 2⁻¹² ≈ 2.4e-4
    np.testing.assert_allclose(stored.astype(np.float64), tower(mini, files), atol=close)
    about = json.loads((out / "_about.json").read_text())
    assert (about["fingerprint"], about["rows"], about["shards"]) == (mini.fingerprint, 12, 3)
    assert about["own"], "the name of the folder is not that of a published data set"


def test_float16_is_float32_rounded(mini: DualEncoder, folder: Path, tmp_path: Path) -> None:
    single, half = (
        np.stack(pandas.read_parquet(embed(mini, [folder], tmp_path / each, precision=each))["feature"].tolist())
        for each in ("float32", "float16")
    )
    np.testing.assert_array_equal(half, single.astype(np.float16))


class KillsOnce:
    """Kills the process of a shard with SIGKILL while it works on the images."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.process = shard, 0
        self.retried = 0

    def __call__(self, event: Event) -> None:
        self.retried += isinstance(event, Retried)
        if isinstance(event, Started) and event.job == self.shard and event.attempt == 1:
            self.process = event.process
        elif isinstance(event, Stepped) and event.job == self.shard and self.process:
            os.kill(self.process, signal.SIGKILL)
            self.process = 0


def test_two_workers_one_of_which_is_killed_give_the_same_files(
    mini: DualEncoder, folder: Path, tmp_path: Path
) -> None:
    one = embed(mini, [folder], tmp_path / "one")
    work, _ = plan(mini, [folder], tmp_path / "two")
    kills = KillsOnce(work.shards[0])
    outcomes = list(LocalEngine(["cpu"], 2).run(work.shards, kills))
    assert kills.retried == 1
    assert all(outcome.state == "done" for outcome in outcomes)
    work.conclude()
    assert_same_features(tmp_path / "two", one)
    assert len(StoredFeatures.read(one)) == 12


def test_stopped_work_goes_on_and_new_images_become_new_shards(
    mini: DualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images come from a list that names each of them twice. One of them is broken."""
    folder = pictures(tmp_path / "images", a=34)
    (folder / "a" / "3.png").write_bytes(b"broken")
    files, out = sorted(folder.rglob("*.png")), tmp_path / "features"
    work, maker = plan(mini, files[:30] * 2, out, size=20)
    stream = work_on(work.shards, maker)
    next(stream)
    stream.close()
    assert [shard.is_done() for shard in work.shards] == [False, False]
    monkeypatch.setattr("rebapl.runs.embedding.CPU_PORTION", 20)
    stream = work_on(work.shards, maker)
    next(stream), next(stream)
    stream.close()
    assert [shard.is_done() for shard in work.shards] == [True, False]
    work.conclude()
    with pytest.raises(UserError, match="is not complete: give the command `rebapl embed` again"):
        StoredFeatures.read(out)
    before = (out / "shard-000000.parquet").stat().st_mtime_ns
    embed(mini, files, out, size=20)
    assert (out / "shard-000000.parquet").stat().st_mtime_ns == before
    stored = StoredFeatures.read(out)
    good = [str(file) for file in files if file.name != "3.png"]
    assert [row.image_path for row in stored.rows()] == good
    assert len(stored) == len(good)
    assert [rows for _, _, rows in stored.shards()] == [20, 9, 4]
    names = [file for file in files if file.name != "3.png"]
    np.testing.assert_allclose(stored.of(good[::-1]).numpy(), tower(mini, names[::-1]), atol=1e-6)


class Alive:
    """How many of the objects that passed through `count` exist, and the most that existed at a time."""

    def __init__(self) -> None:
        self.now, self.most, self.all, self._lock = 0, 0, 0, threading.RLock()

    def count(self, thing: Any) -> Any:
        with self._lock:
            self.now, self.all = self.now + 1, self.all + 1
            self.most = max(self.most, self.now)
        weakref.finalize(thing, self._gone)
        return thing

    def _gone(self) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("form", ["parquet", "npy"])
def test_few_images_views_and_features_are_in_memory_however_many_are_embedded(
    mini: DualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Portions of four images, and shards of eight: the peak is the same for 40 images and for 160."""
    folder = pictures(tmp_path / "pets", a=1)
    for number in range(1, 160):
        os.link(folder / "a" / "0.png", folder / "a" / f"{number}.png")
    files = sorted(folder.rglob("*.png"))
    alive: dict[str, Alive] = {}
    monkeypatch.setattr("rebapl.runs.embedding.CPU_PORTION", 4)
    read, view, encode = embedding.read_image, Preprocessing.centre, embedding.encode
    monkeypatch.setattr(embedding, "read_image", lambda path: alive["images"].count(read(path)))
    monkeypatch.setattr(Preprocessing, "centre", lambda self, image: alive["views"].count(view(self, image)))

    class Encoded:
        def __init__(self, *given: Any) -> None:
            self.features = encode(*given).numpy()

        def numpy(self) -> np.ndarray:
            return alive["features"].count(self.features)  # the rows of the records hold it

    monkeypatch.setattr(embedding, "encode", Encoded)
    for count in (40, 160):
        alive.update({name: Alive() for name in ("images", "views", "features")})
        embed(mini, files[:count], tmp_path / f"{count}", size=8, form=form)
        assert [alive[name].all for name in alive] == [count, count, count // 4]
        assert alive["images"].most <= 4 + 1, "those that are read ahead"
        assert alive["views"].most <= 4 * 4, "those that are read ahead, a portion in the tower, and the one before"
        assert alive["features"].most <= 2 * 8 // 4, "a shard that was written last, and one that is not complete yet"


def test_the_layout_of_clip_retrieval(mini: DualEncoder, folder: Path, files: list[Path], tmp_path: Path) -> None:
    out = embed(mini, [folder], tmp_path / "features", form="npy", precision="float16")
    names = [f"img_emb/img_emb_{number:06}.npy" for number in range(3)]
    features = np.concatenate([np.load(out / name) for name in names])
    frames = [pandas.read_parquet(out / f"metadata/metadata_{number:06}.parquet") for number in range(3)]
    assert features.dtype == np.float16
    np.testing.assert_allclose(features.astype(np.float64), tower(mini, files), atol=6e-4)
    paths = pandas.concat(frames)["image_path"].tolist()
    assert paths == [file.relative_to(folder).as_posix() for file in files]
    stored = StoredFeatures.read(out)
    np.testing.assert_array_equal(stored.of(paths).numpy(), features.astype(np.float32))


def test_archives_of_webdataset(mini: DualEncoder, files: list[Path], tmp_path: Path) -> None:
    """Each sample has a file with its label as a word. Captions are ignored."""
    tars = []
    for number, some in enumerate((files[:7], files[7:])):
        content = {}
        for index, file in enumerate(some):
            content |= {f"{index:04}.png": file.read_bytes(), f"{index:04}.cls": file.parent.name.encode()}
            content |= {f"{index:04}.txt": b"a caption"}
        tars.append(pack(tmp_path / f"{number}.tar", content))
    frame = pandas.read_parquet(embed(mini, tars, tmp_path / "features"))
    assert frame["image_path"].tolist() == [
        str(tar / f"{index:04}.png") for tar, count in zip(tars, (7, 5), strict=True) for index in range(count)
    ]
    assert frame["class"].tolist() == [file.parent.name for file in files]
    assert frame["sha256"].tolist() == [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    np.testing.assert_allclose(np.stack(frame["feature"].tolist()), tower(mini, files), atol=1e-6)


def test_another_backbone_or_precision_and_other_files_are_refused(
    mini: DualEncoder, nano: Path, folder: Path, tmp_path: Path
) -> None:
    out = embed(mini, [folder], tmp_path / "features")
    with pytest.raises(UserError, match=r"holds features of the backbone mini \(.*\), not of .*nano.*: name another"):
        plan(load_backbone(nano), [folder], out)
    with pytest.raises(UserError, match='was made with precision = "float32", not "float16": name another --out'):
        plan(mini, [folder], out, precision="float16")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(UserError, match=r"no _about\.json says that it is features: name another --out"):
        plan(mini, [folder], tmp_path / "mine")


def test_nothing_to_embed_is_refused(mini: DualEncoder, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    compressed = tmp_path / "x.tar"
    compressed.write_bytes(b"\x1f\x8b\x08 no archive")
    for images, more, message in (
        ([tmp_path / "nowhere"], {}, "no such image or folder"),
        ([tmp_path / "empty"], {}, "no images in"),
        ([compressed], {}, "cannot be read as a tar archive .*: one that is not compressed is needed"),
        ([folder], {"gathered": {"split": "x.json"}}, "only a published data set has other split files"),
    ):
        with pytest.raises(UserError, match=message):
            plan(mini, images, tmp_path / "features", **more)
    assert not (tmp_path / "features").exists()
