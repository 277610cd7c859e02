"""Files of answers that grow: stopped in the middle they go on, with one row per image."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import small_clip
import torch
from PIL import Image

from rebapl.errors import UserError
from rebapl.learners import build_learner
from rebapl.posterior import Posterior, answers
from rebapl.posterior.answers import Asked, answer_files
from rebapl.runs import answer_file
from rebapl.runs.answer_file import write_answers

FORMS = ["csv", "jsonl", "parquet"]


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    learner = build_learner("coop", small_clip.small_encoder(), ["cat", "dog", "tree"], "a {}.", torch.Generator(), {})
    stream = torch.Generator().manual_seed(1)
    moved = [
        {name: x.detach() + torch.randn(x.shape, generator=stream) for name, x in learner.named_parameters()}
        for _ in range(3)
    ]
    return Posterior.of(learner.eval(), moved)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / name for name in ("a.png", 'b,"2"\n.png', "c.png", "d.png", "e.png")]
    for seed, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 16, 3), dtype=np.uint8)).save(path)
    paths[3].write_bytes(b"broken")
    return paths


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "CPU_PORTION", 2)


def write(posterior: Posterior, files: Any, out: Path, **more: Any) -> int:
    return write_answers(posterior, files, out, Asked(**more), form=out.suffix[1:], run="runs/x")


def read(out: Path) -> pandas.DataFrame:
    kind = {".csv": pandas.read_csv, ".parquet": pandas.read_parquet}
    return pandas.read_json(out, lines=True) if out.suffix == ".jsonl" else kind[out.suffix](out)


def test_portions_give_what_predict_gives(posterior: Posterior, files: list[Path]) -> None:
    good = [file for file in files if file.name != "d.png"]
    expected = posterior.predict(good).records(top=2)
    portions = list(answer_files(posterior, iter(files), Asked(top=2)))
    assert [len(portion) for portion in portions] == [2, 2, 1]
    found = [record for portion in portions for record in portion]
    assert found.pop(3)["error"] == "it is in no format of images that is known"
    for one, other in zip(found, expected, strict=True):
        assert (one["image"], one["answer"]) == (other["image"], other["answer"])
        assert one["top"][1]["probability"] == pytest.approx(other["top"][1]["probability"], rel=1e-5)


def test_only_what_is_needed_is_read_ahead(posterior: Posterior, files: list[Path]) -> None:
    asked: list[Path] = []
    portions = answer_files(posterior, (asked.append(file) or file for file in files * 100), Asked())
    next(portions)
    assert len(asked) <= 6
    portions.close()


@pytest.mark.parametrize("form", FORMS)
def test_stopped_work_goes_on(posterior: Posterior, files: list[Path], tmp_path: Path, form: str) -> None:
    def stopping() -> Iterator[Path]:
        yield from files[:4]
        raise KeyboardInterrupt

    out = tmp_path / f"x.{form}"
    with pytest.raises(KeyboardInterrupt):
        write(posterior, stopping(), out)
    assert 0 < len(read(out)) < 5
    assert write(posterior, files * 2, out) == 2
    frame = read(out)
    assert frame["image"].tolist() == [str(file) for file in files]
    assert frame["error"].notna().tolist() == [False, False, False, True, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, f"{out.name}.about.json"]


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_row_that_was_cut_off_is_written_again(
    posterior: Posterior, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, cut: int
) -> None:
    monkeypatch.setattr(answers, "CPU_PORTION", 1)  # the size of a pass changes the last digits
    out = tmp_path / f"x.{form}"
    write(posterior, files[:2], out)
    whole = out.read_bytes()
    os.truncate(out, len(whole) - cut)
    assert write(posterior, files[:2], out) == 1
    assert out.read_bytes() == whole


def test_a_killed_parquet_goes_on_from_its_rows(posterior: Posterior, files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    write(posterior, files[:3], out)
    records = [record for portion in answer_files(posterior, files[2:4], Asked()) for record in portion]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "x.parquet.rows.jsonl").write_text(lines + '{"image": "cut')
    assert write(posterior, files, out) == 4
    assert read(out)["image"].tolist() == [str(file) for file in files]


def test_files_that_are_not_its_own_are_refused(posterior: Posterior, files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    out.write_text("my,own\n1,2\n")
    with pytest.raises(UserError, match=r"no x\.csv\.about\.json says what it holds: name another --out, or delete"):
        write(posterior, files, out)
    assert out.read_text() == "my,own\n1,2\n"
    out.unlink()
    write(posterior, files[:1], out)
    out.write_text(out.read_text() + "another,row\n")
    with pytest.raises(UserError, match="was changed since it was written: row 3 has not the columns"):
        write(posterior, files, out)
    with pytest.raises(UserError, match="other weights"):
        write(posterior.with_weights(torch.tensor([0.5, 0.25, 0.25])), files, out)


def test_strict_keeps_what_came_before(posterior: Posterior, files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    with pytest.raises(UserError, match=r"d\.png cannot be read as an image"):
        write(posterior, files, out, strict=True)
    assert read(out)["image"].tolist() == [str(file) for file in files[:2]]


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_is_one_line_and_costs_nothing(
    posterior: Posterior, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    out, rows = tmp_path / f"x.{form}", answer_file.text_rows
    with monkeypatch.context() as full:
        full.setattr(answer_file, "text_rows", _Full(rows))
        with pytest.raises(UserError, match=rf"x\.{form}.* cannot be written \(No space left on device\)"):
            write(posterior, files, out)
    assert write(posterior, files, out) == 2
    assert read(out)["image"].tolist() == [str(file) for file in files]


class _Full:
    """Rows for the first portion; then the disk is full."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.left = rows, 1

    def __call__(self, *given: Any) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.rows(*given)


def test_without_pyarrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'rebapl\[parquet\]'"):
        answer_file.import_parquet()
