"""Load a frozen dual encoder by name or path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from rebapl.backbones.encoder import ARCHITECTURES, Architecture, Dtype, DualEncoder, computing_type
from rebapl.backbones.hub import PREPROCESSING, TOKENIZERS, ask_hub, fetch, fetched_before, is_hub_id
from rebapl.backbones.model import LARGEST, fill_with_weights, weight_files
from rebapl.backbones.text import TextTokenizer
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError, first_line
from rebapl.files import read_json, stamp

DEFAULT_BACKBONE = "openai/clip-vit-base-patch16"
MINI = "mini"
_ACCEPTED = (
    "'mini' (embedded), a local folder in Hugging Face format (config.json, model.safetensors, tokenizer and "
    f"preprocessor_config.json), or a hub id such as '{DEFAULT_BACKBONE}'"
)


def load_backbone(
    name_or_path: str | Path = DEFAULT_BACKBONE,
    device: str | torch.device = "cpu",
    dtype: Dtype = "auto",
) -> DualEncoder:
    """The frozen dual encoder of that name: `mini`, a local Hugging Face folder, or a hub id.

    A hub id may be pinned to a commit, a tag or a branch: `openai/clip-vit-base-patch16@57c216476eef`. All files come
    from one commit, which the encoder keeps as its `revision`. Code in a repository is never executed. The towers
    compute in `dtype`; with `auto` it depends on the device (see `computing_type`). Learnable parameters and features
    stay float32.

    >>> encoder = load_backbone("mini")
    >>> encoder.vision.width, len(encoder.vision.layers)
    (128, 5)
    """
    computing = computing_type(dtype, device)
    folder = _on_this_machine(str(name_or_path)) or fetch(str(name_or_path))
    content = _read_json(folder, "config.json")
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise UserError(
            f"backbone '{name_or_path}' is a '{kind}' checkpoint, not a dual encoder that is supported. Accepted "
            f"model types: {', '.join(ARCHITECTURES)}"
        )
    architecture = ARCHITECTURES[kind]
    try:
        config = architecture.read_config(content)
    except UserError as error:
        raise UserError(f"config.json of backbone '{folder}' cannot be used: {error}") from error
    tokenizer = _load_tokenizer(folder, architecture, config.text_config.max_position_embeddings)
    preprocessing = _load_preprocessing(folder, architecture, config.vision_config.image_size)
    with torch.device("meta"):
        model = architecture.build(config)
    fill_with_weights(model, folder)
    name = str(name_or_path)
    if name != MINI and Path(name).expanduser().is_dir():
        name = str(folder)
    revision = folder.name if folder.parent.name == "snapshots" else None
    encoder = DualEncoder(name, model, tokenizer, preprocessing, revision)
    _ = encoder.fingerprint  # computed before the cast, so that it does not depend on the type
    encoder.model.to(device=device, dtype=computing)
    return encoder


def backbone_stamps(backbone: str) -> tuple[tuple[str, int, int], ...]:
    """The stamps of the files of a backbone in a local folder, which show whether it has changed; else none."""
    folder = Path(backbone).expanduser()
    if backbone == MINI or not folder.is_dir():
        return ()
    folder = folder.resolve()
    files = {path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".txt", ".model")}
    existing = sorted(path for path in files.union(weight_files(folder)) if path.is_file())  # links may be broken
    return tuple(map(stamp, existing))


def find_backbone(name: str) -> str:
    """The folder of a backbone on this machine, perhaps in the local cache. If it must be fetched first, the hub id.

    A name that is neither a folder nor a hub id is an error, and so is a hub that does not answer. So a caller learns
    within seconds whether `load_backbone` can find the backbone.
    """
    if (folder := _on_this_machine(name)) is not None:
        return str(folder)
    ask_hub(name)
    return name


def _on_this_machine(name: str) -> Path | None:
    """The folder of a backbone; None if it is a hub id that must be fetched first."""
    if name == MINI:
        return Path(__file__).parent / MINI
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder.resolve()
    if folder.is_file():
        raise UserError(f"backbone '{name}' is a file. Accepted: {_ACCEPTED}")
    if not is_hub_id(name):
        raise UserError(f"unknown backbone '{name}': no such folder. Accepted: {_ACCEPTED}")
    return fetched_before(name)


def _read_json(folder: Path, *names: str) -> dict[str, Any]:
    """The content of the first of these JSON files that the checkpoint has."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"backbone folder '{folder}' has no {names[0]}. Accepted: {_ACCEPTED}")
    return read_json(path, "the checkpoint")


def _load_tokenizer(folder: Path, architecture: Architecture, limit: int) -> TextTokenizer:
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError(
            f"backbone folder '{folder}' has no tokenizer: tokenizer.json, or vocab.json with merges.txt, or "
            f"spiece.model is needed beside config.json"
        )
    try:
        return architecture.text_tokenizer(folder, limit)
    except UserError as error:
        raise UserError(f"the tokenizer of backbone '{folder}' does not fit: {error}") from error
    except Exception as error:  # a broken tokenizer file makes the libraries raise errors of any type
        raise UserError(
            f"the tokenizer of backbone '{folder}' cannot be read ({type(error).__name__}: {first_line(error)}): "
            f"fetch tokenizer.json again (a spiece.model alone needs: pip install sentencepiece protobuf)"
        ) from error


def _load_preprocessing(folder: Path, architecture: Architecture, image_size: int) -> Preprocessing:
    content = _read_json(folder, *PREPROCESSING)
    section = content.get("image_processor")  # in a processor_config.json
    try:
        return read_preprocessing(section if isinstance(section, Mapping) else content, image_size, architecture.CROPS)
    except UserError as error:
        raise UserError(f"preprocessor_config.json of backbone '{folder}': {error}") from error


def read_preprocessing(settings: Mapping[str, Any], image_size: int, crops: bool) -> Preprocessing:
    """The preprocessing that a checkpoint's `settings` describe, for a model whose images have `image_size` px a side.

    `size` is a number or `{"shortest_edge"}`, and the short side is resized before a centre crop. Or it is
    `{"height", "width"}`, and both sides are resized, whatever the shape of the image. `crops` is the default of
    `do_center_crop`.
    """
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if settings.get(step) is False:
            raise UserError(f"{step} is false; images are always resized, rescaled to 0 … 1 and normalised")
    factor = settings.get("rescale_factor")
    if factor is not None and (not isinstance(factor, float) or not math.isclose(factor, 1 / 255, rel_tol=1e-4)):
        raise UserError(f"rescale_factor is {factor!r}; pixels are always multiplied by 1/255, which gives 0 … 1")
    size = settings.get("size", image_size)
    square = isinstance(size, Mapping) and "height" in size
    resize = _edge("size", size)
    cropped = settings.get("do_center_crop", crops)
    crop = _edge("crop_size", settings.get("crop_size", image_size)) if cropped else resize
    if not cropped and not square:
        raise UserError(
            f"size is {size} without a centre crop, which leaves images that are not square: give size as "
            f"{{'height': …, 'width': …}}, or set do_center_crop"
        )
    if crop != image_size:
        raise UserError(f"images come out at {crop} px but the model sees {image_size} px (vision_config.image_size)")
    resample = settings.get("resample", 3)
    if resample not in list(Image.Resampling):
        raise UserError(f"resample is {resample!r} and should be the number of a filter of PIL, such as 3 for bicubic")
    return Preprocessing(
        resize=resize,
        crop=crop,
        mean=_channels(settings, "image_mean"),
        std=_channels(settings, "image_std", above=0),
        resample=int(resample),
        square=square,
    )


def _edge(key: str, value: Any) -> int:
    """The pixels of the size `value`, which is a number or a mapping."""
    if isinstance(value, Mapping):
        if value.get("height") != value.get("width"):
            raise UserError(f"{key} is {dict(value)}: height and width must be equal")
        value = value.get("height", value.get("shortest_edge"))
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST["image_size"]:
        raise UserError(
            f"{key} must be pixels (at most {LARGEST['image_size']}), {{'shortest_edge': pixels}} or "
            f"{{'height': …, 'width': …}}; got {value}"
        )
    return value


def _channels(settings: Mapping[str, Any], key: str, above: float = -math.inf) -> tuple[float, ...]:
    """Three numbers, one per colour, finite and larger than `above`."""
    values: Any = settings.get(key)
    numbers = isinstance(values, list) and len(values) == 3 and all(isinstance(value, int | float) for value in values)
    if not numbers or not all(math.isfinite(value) and value > above for value in values):
        least = "" if above == -math.inf else f" above {above:g}"
        raise UserError(f"{key} must be three numbers{least}, one per colour; got {values}")
    return tuple(float(value) for value in values)
