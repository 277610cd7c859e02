"""Files in, records out: in order, with few images in memory, and with a note of what limits the pace."""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_clip
import torch
from PIL import Image

from rebapl import processes
from rebapl.backbones import load_backbone
from rebapl.data import workers
from rebapl.errors import UserError
from rebapl.posterior import Posterior, answers
from rebapl.posterior.answers import RECENT, Pace, Question, answer_files, by_one_torch_thread, read_ahead


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Thirty images; those from 8 to 13 and the last are broken."""
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / f"{seed:02}.png" for seed in range(30)]
    for seed, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 16, 3), dtype=np.uint8)).save(path)
    for path in (*paths[8:14], paths[-1]):
        path.write_bytes(b"broken")
    return paths


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "CPU_PORTION", 2)


def all_records(posterior: Posterior, files: list[Path], **asked: Any) -> list[Any]:
    return [record for portion in answer_files(posterior, files, Question(**asked)) for record in portion]


def test_two_devices_give_the_records_of_one_in_order(make: Any, files: list[Path]) -> None:
    posterior = make("coop")
    files = [*files, files[0], files[0]]
    one, two = all_records(posterior, files), all_records(posterior.spread(["cpu", "cpu"]), files)
    assert [record["image"] for record in two] == [str(file) for file in files]
    assert [record["error"] is None for record in two] == [not (8 <= index < 14 or index == 29) for index in range(32)]
    for ours, theirs in zip(two, one, strict=True):
        assert ours["answer"] == theirs["answer"]
        if ours["error"] is None:
            assert ours["entropy"] == pytest.approx(theirs["entropy"], rel=1e-4)


@pytest.mark.parametrize("devices", [1, 2])
def test_strict_stops_at_a_broken_image_after_what_came_before(make: Any, files: list[Path], devices: int) -> None:
    given = []
    portions = answer_files(make("coop").spread(["cpu"] * devices), files, Question(strict=True))
    with pytest.raises(UserError, match=r"08\.png cannot be read as an image"):
        given.extend(record for portion in portions for record in portion)
    assert [record["image"] for record in given] == [str(file) for file in files[:8]]


@pytest.mark.parametrize("devices", [1, 2])
def test_few_images_are_in_memory_however_many_are_asked(make: Any, files: list[Path], devices: int) -> None:
    asked, given, most = 0, 0, 0

    def counted() -> Any:
        nonlocal asked
        for file in files * 10:
            asked += 1
            yield file

    for portion in answer_files(make("coop").spread(["cpu"] * devices), counted(), Question()):
        most = max(most, asked - given)
        given += len(portion)
    assert given == 300
    assert most <= 4 * 2 * devices, "a portion that is given, one that is begun, and one that is read ahead"


def test_portions_give_what_predict_gives(make: Any, files: list[Path]) -> None:
    posterior, good = make("coop"), files[:5]
    portions = list(answer_files(posterior, [*good, files[8]], Question(top=2)))
    assert [len(portion) for portion in portions] == [2, 2, 2]
    *found, broken = (record for portion in portions for record in portion)
    assert broken["error"] == "it is in no format of images that is known"
    for one, other in zip(found, posterior.predict(good).records(top=2), strict=True):
        assert (one["image"], one["answer"]) == (other["image"], other["answer"])
        assert one["top"][1]["probability"] == pytest.approx(other["top"][1]["probability"], rel=1e-5)


def test_what_a_posterior_cannot_answer_is_refused(make: Any) -> None:
    posterior = make("coop")
    for question, message in (
        (Question(abstain=True), "no threshold was chosen"),
        (Question(sets=True), "no prediction sets were fitted"),
        (Question(average="median"), "unknown average 'median'"),
        (Question(class_names=["cat", "cat"]), "cat"),
    ):
        with pytest.raises(UserError, match=message):
            question.put_to(posterior)
    bound, asked = Question(class_names=["cat", "dog"]).put_to(posterior)
    assert (bound.class_names, asked.top, asked.abstain, asked.sets) == (["cat", "dog"], 2, False, False)
    assert asked.put_to(posterior)[1] == asked


def test_who_always_answers_pays_no_passes_for_none_of_these(
    make: Any, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outside score of image features needs the frozen features of each image."""
    views, passed = small_clip.random_views(7), []
    posterior = make("maple").fit_outside(views, "neighbours", 0.5, (views, torch.tensor([0, 1, 2, 3, 0, 1, 2])))
    original = Posterior.image_features
    monkeypatch.setattr(
        Posterior, "image_features", lambda self, given: (passed.append(len(given)), original(self, given))[1]
    )
    assert {record["outside"] for record in all_records(posterior, files[:4], abstain=False)} == {None}
    assert passed == []
    assert {record["outside"] for record in all_records(posterior, files[:4])} <= {True, False}
    assert sum(passed) == 4


def test_the_pace_is_that_of_the_latest_portions() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.said() == ""
    for part, seconds in [("the model", 100.0)] * 3 + [("decoding", 0.5)] * RECENT:
        pace.waits_for(part)
        now += seconds
        pace.answered(256)
    assert pace.said() == "limited by decoding: 512 images/s"


@pytest.fixture
def two_torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_torch_threads")
def test_torch_has_its_threads_between_the_portions_also_of_two_folders_at_once() -> None:
    threads = []

    def portions(count: int) -> Iterator[list[Any]]:
        for _ in range(count):
            threads.append(torch.get_num_threads())
            yield []

    for _ in zip(by_one_torch_thread(portions(2)), by_one_torch_thread(portions(9)), strict=False):
        assert torch.get_num_threads() == 2
    assert threads == [1] * 4
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked by a server on Linux only")
def test_processes_read_what_threads_read(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read = partial(answers._read_file, load_backbone("mini").preprocessing, False)
    threads = list(read_ahead(read, files, 4, Pace()))
    for name, value in {"cores": lambda: 3, "MOST_THREADS": 2, "SOME": 2, "MANY": 4}.items():
        monkeypatch.setattr(workers, name, value)
    monkeypatch.setattr(processes, "_allowed", {os.getpid()})
    pools: list[tuple[Any, ...]] = []

    def pool(*arguments: Any) -> ProcessPoolExecutor:
        pools.append(arguments)
        return ProcessPoolExecutor(*arguments)

    monkeypatch.setattr(workers, "ProcessPoolExecutor", pool)
    others = list(read_ahead(read, files, 4, Pace(), processes=True))
    assert len(pools) == 1
    assert [labels for labels, _ in others] == [labels for labels, _ in threads]
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(threads, others, strict=True))
