"""`rebapl embed`: compute the features of images once, with the frozen image tower, and store them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli import options
from rebapl.cli.shards import do_shards, workers
from rebapl.errors import UserError, unknown
from rebapl.processes import allow_workers


def embed(
    images: list[str] | None = None,
    *,
    out: Path,
    list_: list[Path] | None = None,
    backbone: str | None = None,
    form: str = "parquet",
    precision: str = "float16",
    unlabelled: bool = False,
    strict: bool = False,
    root: Path | None = None,
    split: str | None = None,
    device: str | None = None,
    shard: Annotated[int | None, typer.Option(min=1, max=1_000_000)] = None,
    jobs: options.AtLeastOne = None,
    engine: options.ShardEngine = None,
    engine_option: options.EngineOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Store the features of images in a folder, which `train`, `learn` and `predict` take instead of the images.

    If the command is stopped, the same command continues it. An image that cannot be read is named and left out.

    Parameters:
        images: The name of a data set, or folders, images, CSV files and tar archives (webdataset). One data set, one
            folder of class folders, or one CSV file with labels keeps its classes and splits.
        out: Folder for the features.
        list_: A list of images: a text file with a path in each line, or a CSV file with a column path. Repeatable.
        backbone: A local Hugging Face folder, a hub id, or mini. If not given, mini for embedded data sets and
            openai/clip-vit-base-patch16 for all others.
        form: parquet, or npy (the layout of clip-retrieval, with img_emb and metadata).
        precision: float16, or float32, which keeps exactly what the backbone computes.
        unlabelled: Take the images of a folder or a list without their classes.
        strict: Stop at the first image that cannot be read, instead of leaving it out.
        split: Another split file of a published data set.
        shard: Number of images in a shard; if not given, 8192, or 512 on a CPU.
        jobs: Shards to do at the same time on each device; 1 if not given.
    """
    options.expect_workers(None, jobs)
    allow_workers()  # this command's program is the package's own
    from rebapl.backbones import load_backbone
    from rebapl.cli.progress import StepProgress
    from rebapl.data.features import FORMS, PRECISIONS, WHAT
    from rebapl.runs.embedding import CPU_SIZE, SIZE, FeatureMaker, gather_images
    from rebapl.runs.shards import Place
    from rebapl.training import default_backbone

    for option, value, accepted in (("form", form, FORMS), ("precision", precision, PRECISIONS)):
        if value not in accepted:
            raise unknown(option, value, accepted)
    if not images and not list_:
        raise UserError("which images? Name a data set, folders, files, tar archives, or --list FILE")
    place = Place(out, form, joined=False, what=WHAT)
    place.check()
    where, devices = workers(place, device, jobs, engine, engine_option)
    gathered = gather_images(images or [], list_ or [], root=root, split=split, unlabelled=unlabelled)
    encoder = load_backbone(backbone or default_backbone(gathered.data or ""), devices[0])
    size = shard or (CPU_SIZE if where is None and encoder.device.type == "cpu" else SIZE)
    with StepProgress(quiet, "images", where is None or not sys.stdout.isatty()) as progress:
        if gathered.passed_over:
            progress.note(f"passed over: {gathered.passed_over}")
        do_shards(
            progress,
            place,
            FeatureMaker.of(gathered, encoder, form, precision=precision, strict=strict),
            gathered.entries,
            size,
            where,
            doing="embedding",
            done="embedded",
        )
