"""A posterior that was not trained, images, and their prediction in shards."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from PIL import Image

from rebapl.backbones import load_backbone
from rebapl.learners import build_learner
from rebapl.posterior import Posterior
from rebapl.posterior.answers import Asked
from rebapl.runs.answer_file import about_answers
from rebapl.runs.folder import load_trained
from rebapl.runs.shards import Question, Shard, shards_of

BROKEN = "image-003.png"


def save_small(folder: Path) -> Path:
    """Two samples of CoOp on the embedded backbone."""
    learner = build_learner("coop", load_backbone("mini"), ["one", "two", "three"], "a {}.", torch.Generator(), {})
    stream = torch.Generator().manual_seed(1)
    samples = [
        {name: x.detach() + 0.3 * torch.randn(x.shape, generator=stream) for name, x in learner.named_parameters()}
        for _ in range(2)
    ]
    return Path(Posterior.of(learner.eval(), samples).save_pretrained(folder))


def draw(folder: Path, count: int) -> list[Path]:
    """So many images, one of them broken."""
    folder.mkdir()
    for seed in range(count):
        noise = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"image-{seed:03}.png")
    (folder / BROKEN).write_bytes(b"broken")
    return sorted(folder.iterdir())


def small_shards(run: Path, files: list[Path], out: Path, size: int, **asked: Any) -> list[Shard]:
    """The shards of a prediction with the posterior in `run`."""
    posterior = load_trained(run, device="cpu")
    wanted = {"top": 3, "average": posterior.average, "abstain": False, "strict": False, "sets": False, **asked}
    question = Question(
        run=str(run.absolute()),
        backbone="mini",
        fingerprint=posterior.fingerprint,
        class_names=None,
        template=None,
        start=str(Path.cwd()),
        **wanted,
    )
    about = about_answers(posterior, "parquet", str(run), Asked(**wanted))
    return shards_of(question, about, files, out, size=size)


def rows_of(out: Path) -> pandas.DataFrame:
    """The rows of all shards, in the order of their names."""
    return pandas.concat([pandas.read_parquet(path) for path in sorted(out.glob("*.parquet"))], ignore_index=True)
