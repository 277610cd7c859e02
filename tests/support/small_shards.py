"""A posterior without training, images, and their prediction in shards."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from PIL import Image

from rebapl.backbones import load_backbone
from rebapl.learners import build_learner
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.posterior.answers import Question
from rebapl.runs.answer_shards import AnswerMaker, entries_of
from rebapl.runs.shards import Place, ShardedWork, plan_shards, work_on

BROKEN = "image-003.png"


def save_small(folder: Path) -> Path:
    """Two samples of CoOp on the embedded backbone."""
    learner = build_learner("coop", load_backbone("mini"), ["one", "two", "three"], "a {}.", torch.Generator(), {})
    stream = torch.Generator().manual_seed(1)
    samples = [
        {name: x.detach() + 0.3 * torch.randn(x.shape, generator=stream) for name, x in learner.named_parameters()}
        for _ in range(2)
    ]
    return Path(save_posterior(Posterior.of(learner.eval(), samples), folder))


def draw(folder: Path, count: int) -> list[Path]:
    """`count` images, one of them broken."""
    folder.mkdir()
    for seed in range(count):
        noise = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"image-{seed:03}.png")
    (folder / BROKEN).write_bytes(b"broken")
    return sorted(folder.iterdir())


def place_of(out: Path) -> Place:
    """The place of a file of answers or, if the name has no ending, of a folder of shards."""
    return Place(out, out.suffix[1:] or "parquet", joined=bool(out.suffix))


def maker_of(run: Path, place: Place, **asked: Any) -> AnswerMaker:
    """What answers with the posterior in `run`."""
    return AnswerMaker.of(str(run), *Question(**asked).put_to(load_posterior(run)), place.form)


def small_work(run: Path, files: list[Path], out: Path, size: int, **asked: Any) -> ShardedWork:
    """The shards of a prediction with the posterior in `run`."""
    place = place_of(out)
    return plan_shards(place, maker_of(run, place, **asked), entries_of(files), size)


def answer_all(run: Path, files: list[Path], out: Path, size: int = 40, **asked: Any) -> None:
    """Answer all images in this process."""
    work = small_work(run, files, out, size, **asked)
    for _ in work_on(work.missing, maker_of(run, work.place, **asked)):
        pass
    work.conclude()


def rows_of(out: Path) -> pandas.DataFrame:
    """The rows of all shards, in the order of their names."""
    return pandas.concat([pandas.read_parquet(path) for path in sorted(out.glob("*.parquet"))], ignore_index=True)
