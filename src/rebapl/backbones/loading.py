"""Load a frozen dual encoder by name or path."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from rebapl.backbones.encoder import DualEncoder
from rebapl.backbones.text import TextTokenizer
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError

DEFAULT = "openai/clip-vit-base-patch16"
_ACCEPTED = (
    "'mini' (embedded), a local folder in Hugging Face format (config.json, model.safetensors, tokenizer and "
    f"preprocessor_config.json), or a hub id such as '{DEFAULT}'"
)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json")


def load_backbone(
    name_or_path: str | Path = DEFAULT,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> DualEncoder:
    """The frozen dual encoder of that name: `mini`, a local Hugging Face folder, or a hub id.

    `dtype` is what the towers compute in; learnable parameters and features stay float32.

    >>> encoder = load_backbone("mini")
    >>> encoder.vision.width, len(encoder.vision.layers)
    (128, 5)
    """
    source = _source(str(name_or_path))
    config = _read_config(source)
    if config.get("model_type") != "clip":
        raise UserError(
            f"backbone '{name_or_path}' is a '{config.get('model_type')}' checkpoint, not a dual encoder that is "
            f"supported. Accepted model types: clip"
        )
    tokenizer = _load_tokenizer(source)
    preprocessing = _load_preprocessing(source, config)
    model = _load_model(source)
    name = name_or_path if str(name_or_path) == "mini" else source
    encoder = DualEncoder(str(name), model, tokenizer, preprocessing)
    _ = encoder.fingerprint  # before the cast: it names the checkpoint, whatever type it computes in
    encoder.model.to(device=device, dtype=dtype)
    return encoder


def _source(name: str) -> str:
    """A folder path, or the hub id unchanged."""
    if name == "mini":
        return str(Path(__file__).parent / "mini")
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if folder.exists():
        raise UserError(f"backbone '{name}' is a file. Accepted: {_ACCEPTED}")
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise UserError(f"unknown backbone '{name}': no such folder. Accepted: {_ACCEPTED}")
    return name


def _is_local(source: str) -> bool:
    return Path(source).is_dir()


def _read_json(source: str, filename: str) -> dict[str, Any]:
    """A JSON file of the checkpoint, from the folder or fetched from the hub."""
    path = Path(source) / filename
    if not _is_local(source):
        from transformers.utils import cached_file

        try:
            path = Path(cached_file(source, filename))
        except OSError as error:
            raise UserError(
                f"backbone '{source}' is neither a local folder nor could its {filename} be fetched from the hub "
                f"({str(error).splitlines()[0]}). Accepted: {_ACCEPTED}"
            ) from error
    elif not path.is_file():
        raise UserError(f"backbone folder '{source}' has no {filename}. Accepted: {_ACCEPTED}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): fetch the checkpoint again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a JSON object: fetch the checkpoint again")
    return content


def _read_config(source: str) -> dict[str, Any]:
    return _read_json(source, "config.json")


def _load_tokenizer(source: str) -> TextTokenizer:
    from transformers import AutoConfig, AutoTokenizer

    if _is_local(source) and not any((Path(source) / name).is_file() for name in _TOKENIZER_FILES):
        raise UserError(
            f"backbone folder '{source}' has no tokenizer: {' or '.join(_TOKENIZER_FILES)} (with merges.txt) is "
            f"needed beside config.json"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except Exception as error:  # whatever a broken tokenizer file makes the library raise
        raise UserError(
            f"the tokenizer of backbone '{source}' cannot be read ({type(error).__name__}: {error}): fetch "
            f"tokenizer.json again"
        ) from error
    limit = AutoConfig.from_pretrained(source).text_config.max_position_embeddings
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    ids = tokenizer("a")["input_ids"]
    if start is None or end is None or ids[0] != start or ids[-1] != end:
        raise UserError(
            f"the tokenizer of backbone '{source}' does not put a start and an end token around text, as a CLIP "
            f"tokenizer does"
        )

    def encode(text: str) -> list[int]:
        return tokenizer(text, verbose=False)["input_ids"]

    return TextTokenizer(encode, start, end, limit)


def _load_preprocessing(source: str, config: dict[str, Any]) -> Preprocessing:
    given = _read_json(source, "preprocessor_config.json")
    image_size = config.get("vision_config", {}).get("image_size", 224)

    def edge(value: Any) -> int:
        return int(value.get("shortest_edge", value.get("height", 0)) if isinstance(value, dict) else value)

    crop = edge(given.get("crop_size", image_size))
    if crop != image_size:
        raise UserError(
            f"backbone '{source}': preprocessor_config.json crops to {crop} px but the model sees {image_size} px"
        )
    try:
        return Preprocessing(
            resize=edge(given.get("size", image_size)),
            crop=crop,
            mean=tuple(given["image_mean"]),
            std=tuple(given["image_std"]),
            resample=int(given.get("resample", 3)),
        )
    except KeyError as error:
        raise UserError(f"backbone '{source}': preprocessor_config.json has no {error}") from error


def _load_model(source: str) -> Any:
    from safetensors import SafetensorError
    from transformers import CLIPModel
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, report = CLIPModel.from_pretrained(
            source, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
        )
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the weights of backbone '{source}' cannot be read ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}): the file is missing, truncated or of another model; fetch it again"
        ) from error
    finally:
        if bars:
            logging.enable_progress_bar()
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"the weights of backbone '{source}' lack {len(missing)} tensors of its configuration (first: "
            f"{missing[0]}): config.json and the weights do not belong together"
        )
    return model
