"""`rebapl embed`: run the frozen image tower over images once, and store the features."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebapl.cli import options
from rebapl.cli.shards import do_shards
from rebapl.errors import UserError, unknown

if TYPE_CHECKING:
    from rebapl.runs.engine import Engine


def embed(
    images: list[str] | None = None,
    *,
    out: Path,
    backbone: str | None = None,
    list_: list[Path] | None = None,
    form: str = "parquet",
    precision: str = "float16",
    unlabelled: bool = False,
    strict: bool = False,
    root: options.Root = None,
    split: str | None = None,
    engine: str | None = None,
    shard: Annotated[int | None, typer.Option(min=1, max=1_000_000)] = None,
    device: options.Device = None,
    jobs: options.Jobs = None,
    engine_option: options.EngineOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Store the features of images, which then stand for the images: `train`, `learn` and `predict` take the folder.

    If the command is stopped, the same command goes on where it was. An image that cannot be read is named and left
    out.

    Parameters:
        images: A data set by its name, folders, images, CSV files or tar archives (webdataset). One data set, one
            folder of class folders or one CSV file with labels keeps its classes and splits.
        out: Folder for the features.
        backbone: A local Hugging Face folder, a hub id, or mini; mini for embedded data sets and
            openai/clip-vit-base-patch16 for others, if not given.
        list_: List of images: a path per line, or a CSV with a column path. Repeatable.
        form: parquet, or npy (the layout of clip-retrieval: img_emb and metadata).
        precision: float16, or float32, which is exactly what the backbone gives.
        unlabelled: Take a folder or a list as images alone, without classes.
        strict: Stop at the first image that cannot be read, instead of leaving it out.
        split: Another split file of a published data set.
        engine: Work on shards of the images side by side: local (this machine), ray (a Ray cluster) or slurm (jobs of
            SLURM); local if only other options of this kind are given.
        shard: Images in a shard; 8192 if not given, 512 on a CPU.
    """
    options.expect_workers(None, jobs)
    from rebapl.backbones import load_backbone
    from rebapl.cli.progress import StepProgress
    from rebapl.data.features import FORMS, PRECISIONS
    from rebapl.runs.embedding import CPU_SIZE, SIZE, embed_shards, features_place, gather_images, plan_features
    from rebapl.runs.machine import best_device
    from rebapl.training import default_backbone

    for option, given, allowed in (("form", form, FORMS), ("precision", precision, PRECISIONS)):
        if given not in allowed:
            raise unknown(option, given, allowed)
    if not images and not list_:
        raise UserError("which images? Name a data set, folders, files, tar archives, or --list FILE")
    place, devices = features_place(out, form), options.parse_names(device) or []
    place.check()
    where: Engine[Any] | None = None
    if any(option is not None for option in (engine, jobs, engine_option or None)) or len(devices) > 1:
        where = options.engine_of(engine or "local", out, device, jobs, engine_option)
    found = gather_images(images or [], list_ or [], root=root, split=split, unlabelled=unlabelled)
    on = "cpu" if where is not None else best_device(device)
    encoder = load_backbone(backbone or default_backbone(found.data or ""), on)
    size = shard or (CPU_SIZE if where is None and encoder.device.type == "cpu" else SIZE)
    with StepProgress(quiet, "images", where is None or not sys.stdout.isatty()) as progress:
        if found.passed_over:
            progress.note(f"passed over: {found.passed_over}")
        do_shards(
            progress,
            place,
            lambda: plan_features(place, found, encoder, precision=precision, size=size, strict=strict),
            lambda shards, pace: embed_shards(shards, encoder, pace),
            where,
            doing="embedding",
            done="embedded",
        )
