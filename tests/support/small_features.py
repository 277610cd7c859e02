"""Pictures, and their features by the backbone `mini`, computed in this process."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rebapl.backbones import DualEncoder
from rebapl.runs.embedding import FeatureShard, embed_shards, features_place, gather_images, plan_features
from rebapl.runs.shards import conclude


def pictures(folder: Path, **counts: int) -> Path:
    """Draw `folder/<class>/<number>.png`, for each class the given number, larger than `mini` sees them."""
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            noise = np.random.default_rng([label, number]).integers(0, 256, (70, 90, 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / name / f"{number}.png")
    return folder


def plan(encoder: DualEncoder, images: list[Any], out: Path, **more: Any) -> list[FeatureShard]:
    """The shards of the features of images."""
    settings = {"precision": "float32", "size": 5, **more}
    place, gathered = features_place(out, settings.pop("form", "parquet")), settings.pop("gathered", {})
    return plan_features(place, gather_images([str(path) for path in images], **gathered), encoder, **settings)


def embed(encoder: DualEncoder, images: list[Any], out: Path, **more: Any) -> Path:
    """Embed images in this process, into the folder `out`."""
    shards = plan(encoder, images, out, **more)
    for _ in embed_shards([shard for shard in shards if not shard.is_done()], encoder):
        pass
    conclude(features_place(out, more.get("form", "parquet")), shards)
    return out


def pack(tar: Path, files: dict[str, bytes]) -> Path:
    """A tar archive with these files."""
    with tarfile.open(tar, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return tar
