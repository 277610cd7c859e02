"""Load a frozen dual encoder by name or path."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rebapl.backbones.encoder import ARCHITECTURES, Architecture, DualEncoder
from rebapl.backbones.hub import ask_hub, fetched_before, split_revision
from rebapl.backbones.precision import Dtype, computing_type
from rebapl.backbones.text import TextTokenizer
from rebapl.data.embedded import EMBEDDED
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError, first_line
from rebapl.numbers import all_finite

DEFAULT_BACKBONE = "openai/clip-vit-base-patch16"
_ACCEPTED = (
    "'mini' (embedded), a local folder in Hugging Face format (config.json, model.safetensors, tokenizer and "
    f"preprocessor_config.json), or a hub id such as '{DEFAULT_BACKBONE}'"
)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "spiece.model")


def load_backbone(
    name_or_path: str | Path = DEFAULT_BACKBONE,
    device: str | torch.device = "cpu",
    dtype: Dtype = "auto",
) -> DualEncoder:
    """The frozen dual encoder of that name: `mini`, a local Hugging Face folder, or a hub id.

    A hub id may be pinned to a commit, a tag or a branch: `openai/clip-vit-base-patch16@57c216476eef`. All files come
    from one commit, which the encoder keeps as its `revision`; the code that a repository may hold is never executed.
    The towers compute in `dtype`, which is chosen by the device unless it is given (see `computing_type`); learnable
    parameters and features stay float32.

    >>> encoder = load_backbone("mini")
    >>> encoder.vision.width, len(encoder.vision.layers)
    (128, 5)
    """
    computing = computing_type(dtype, device)
    found = find_backbone(str(name_or_path))
    source, asked = (found, None) if _is_local(found) else split_revision(found)
    revision = _commit(source, asked)
    kind = _read_json(source, revision, "config.json").get("model_type")
    if kind not in ARCHITECTURES:
        raise UserError(
            f"backbone '{name_or_path}' is a '{kind}' checkpoint, not a dual encoder that is supported. Accepted "
            f"model types: {', '.join(ARCHITECTURES)}"
        )
    architecture = ARCHITECTURES[kind]
    config = _load_config(source, revision)
    tokenizer = _load_tokenizer(source, revision, architecture, config)
    preprocessing = _load_preprocessing(source, revision, architecture, config)
    model = _load_model(source, revision, architecture)
    name = source if Path(name_or_path).expanduser().is_dir() else str(name_or_path)
    encoder = DualEncoder(name, model, tokenizer, preprocessing, revision)
    _ = encoder.fingerprint  # before the cast: it names the checkpoint, whatever type it computes in
    encoder.model.to(device=device, dtype=computing)
    return encoder


def default_backbone(data: str) -> str:
    """The backbone that a run on this data set uses unless another is named.

    The embedded tasks have small pictures that are made for `mini`, so they need nothing from outside. All other data
    sets use CLIP ViT-B/16.

    >>> default_backbone("digits"), default_backbone("eurosat")
    ('mini', 'openai/clip-vit-base-patch16')
    """
    return "mini" if data in EMBEDDED else DEFAULT_BACKBONE


def find_backbone(name: str) -> str:
    """The folder of a backbone: its own, or that of the local cache. If it must be fetched first, the hub id.

    A name that is neither, or a hub that does not answer, is an error. So this tells within seconds whether
    `load_backbone` has something to load.
    """
    if name == "mini":
        return str(Path(__file__).parent / "mini")
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return str(folder.resolve())
    if folder.is_file():
        raise UserError(f"backbone '{name}' is a file. Accepted: {_ACCEPTED}")
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise UserError(f"unknown backbone '{name}': no such folder. Accepted: {_ACCEPTED}")
    if (fetched := fetched_before(name)) is not None:
        return str(fetched)
    ask_hub(name)
    return name


def _commit(source: str, revision: str | None) -> str | None:
    """The commit of the hub that a revision, or none, stands for now; None for a folder that is not of its cache."""
    snapshot = Path(source) if _is_local(source) else _find(source, revision, ["config.json"]).parent
    return snapshot.name if snapshot.parent.name == "snapshots" else revision


def _is_local(source: str) -> bool:
    return Path(source).is_dir()


def _read_json(source: str, revision: str | None, *names: str) -> dict[str, Any]:
    """The first of these JSON files that the checkpoint has, from the folder or fetched from the hub."""
    path = _find(source, revision, names)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): fetch the checkpoint again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a JSON object: fetch the checkpoint again")
    return content


def _find(source: str, revision: str | None, names: Sequence[str]) -> Path:
    if _is_local(source):
        for name in names:
            if (Path(source) / name).is_file():
                return Path(source) / name
        raise UserError(f"backbone folder '{source}' has no {names[0]}. Accepted: {_ACCEPTED}")
    from transformers.utils import cached_file

    failures: list[OSError] = []
    for name in names:
        try:
            return Path(cached_file(source, name, revision=revision))
        except OSError as error:
            failures.append(error)
    raise UserError(
        f"backbone '{source}' is neither a local folder nor could its {names[0]} be fetched from the hub "
        f"({first_line(failures[0])}). Accepted: {_ACCEPTED}"
    ) from failures[0]


def _load_config(source: str, revision: str | None) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, revision=revision or "main", trust_remote_code=False)
    except Exception as error:  # whatever a wrong value makes the library raise
        raise UserError(
            f"config.json of backbone '{source}' cannot be used ({' '.join(str(error).split())})"
        ) from error


def _load_tokenizer(source: str, revision: str | None, architecture: Architecture, config: Any) -> TextTokenizer:
    from transformers import AutoTokenizer

    if _is_local(source) and not any((Path(source) / name).is_file() for name in _TOKENIZER_FILES):
        raise UserError(
            f"backbone folder '{source}' has no tokenizer: tokenizer.json, or vocab.json with merges.txt, or "
            f"spiece.model is needed beside config.json"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision or "main", trust_remote_code=False)
    except Exception as error:  # whatever a broken tokenizer file makes the library raise
        raise UserError(
            f"the tokenizer of backbone '{source}' cannot be read ({type(error).__name__}: {first_line(error)}): "
            f"fetch tokenizer.json again (a spiece.model alone needs: pip install sentencepiece protobuf)"
        ) from error
    try:
        return architecture.text_tokenizer(tokenizer, config.text_config.max_position_embeddings)
    except UserError as error:
        raise UserError(f"the tokenizer of backbone '{source}' does not fit: {error}") from error


def _load_preprocessing(source: str, revision: str | None, architecture: Architecture, config: Any) -> Preprocessing:
    given = _read_json(source, revision, "preprocessor_config.json", "processor_config.json")
    given = given.get("image_processor", given)
    try:
        return read_preprocessing(given, config.vision_config.image_size, architecture.crops)
    except UserError as error:
        raise UserError(f"preprocessor_config.json of backbone '{source}': {error}") from error


def _load_model(source: str, revision: str | None, architecture: Architecture) -> Any:
    import transformers
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, report = getattr(transformers, architecture.model_class).from_pretrained(
            source, revision=revision or "main", dtype=torch.float32, output_loading_info=True, weights_only=True
        )
    except Exception as error:  # whatever a broken file, or one that would execute code, makes the libraries raise
        raise UserError(
            f"the weights of backbone '{source}' cannot be read ({type(error).__name__}: "
            f"{first_line(error)}): the file is missing, truncated or of another model; fetch it again"
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
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not all_finite(tensor):
            raise UserError(
                f"the weights of backbone '{source}' hold NaN or infinity (first: {name}): fetch the checkpoint again"
            )
    return model


def read_preprocessing(given: Mapping[str, Any], image_size: int, crops: bool) -> Preprocessing:
    """The preprocessing that `given` describes, for a model that sees `image_size` px.

    A size is a number or `{"shortest_edge"}`, which resize the short side before a centre crop, or it is
    `{"height", "width"}`, which resizes both sides whatever the shape. `crops` says whether a centre crop follows if
    the checkpoint does not say so.
    """
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if given.get(step) is False:
            raise UserError(f"{step} is false; images are always resized, rescaled to 0 … 1 and normalised")
    size = given.get("size", image_size)
    square = isinstance(size, Mapping) and "height" in size
    resize = _edge("size", size)
    cropped = given.get("do_center_crop", crops)
    crop = _edge("crop_size", given.get("crop_size", image_size)) if cropped else resize
    if not cropped and not square:
        raise UserError(
            f"size is {size} without a centre crop, which leaves images that are not square: give size as "
            f"{{'height': …, 'width': …}}, or set do_center_crop"
        )
    if crop != image_size:
        raise UserError(f"images come out at {crop} px but the model sees {image_size} px (vision_config.image_size)")
    return Preprocessing(
        resize=resize,
        crop=crop,
        mean=_channels(given, "image_mean"),
        std=_channels(given, "image_std"),
        resample=int(given.get("resample", 3)),
        square=square,
    )


def _edge(key: str, value: Any) -> int:
    """The pixels of a size given as a number or as a mapping."""
    if isinstance(value, Mapping):
        if value.get("height") != value.get("width"):
            raise UserError(f"{key} is {dict(value)}: height and width must be equal")
        value = value.get("height", value.get("shortest_edge"))
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(
            f"{key} must be pixels, {{'shortest_edge': pixels}} or {{'height': …, 'width': …}}; got {value}"
        )
    return value


def _channels(given: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = given.get(key)
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(v, int | float) for v in values):
        raise UserError(f"{key} must be three numbers, one per colour; got {values}")
    return tuple(float(v) for v in values)
