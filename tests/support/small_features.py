"""Pictures, and their features by the backbone `mini`, computed in this process."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from PIL import Image

from rebapl.backbones import DualEncoder
from rebapl.data.features import WHAT, StoredFeatures
from rebapl.runs.embedding import FeatureMaker, gather_images
from rebapl.runs.shards import Place, ShardedWork, plan_shards, work_on


def pictures(folder: Path, **counts: int) -> Path:
    """Draw `folder/<class>/<number>.png`, for each class the given number, larger than `mini` sees them."""
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            noise = np.random.default_rng([label, number]).integers(0, 256, (70, 90, 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / name / f"{number}.png")
    return folder


def plan(encoder: DualEncoder, images: list[Any], out: Path, **more: Any) -> tuple[ShardedWork, FeatureMaker]:
    """The shards of the features of images, and what makes them."""
    settings = {"form": "parquet", "precision": "float32", "size": 5, "gathered": {}, **more}
    gathered = gather_images([str(path) for path in images], **settings["gathered"])
    maker = FeatureMaker.of(gathered, encoder, settings["form"], precision=settings["precision"])
    place = Place(out, settings["form"], joined=False, what=WHAT)
    return plan_shards(place, maker, gathered.entries, settings["size"]), maker


def embed(encoder: DualEncoder, images: list[Any], out: Path, **more: Any) -> Path:
    """Embed images in this process, into the folder `out`."""
    work, maker = plan(encoder, images, out, **more)
    for _ in work_on(work.missing, maker):
        pass
    work.conclude()
    return out


def assert_same_features(first: Path, second: Path) -> None:
    """Compare two folders: all columns, and the features up to the rounding of passes with more or fewer images."""
    frames = [pandas.read_parquet(folder) for folder in (first, second)]
    pandas.testing.assert_frame_equal(*(frame.drop(columns="feature") for frame in frames))
    np.testing.assert_allclose(*(np.stack(frame["feature"].tolist()) for frame in frames), atol=1e-6)
    assert len(StoredFeatures.read(first)) == len(frames[0])


def pack(tar: Path, files: dict[str, bytes]) -> Path:
    """A tar archive with these files."""
    with tarfile.open(tar, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return tar
