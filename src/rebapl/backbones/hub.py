"""Checkpoints of the Hugging Face hub: those that were fetched before, and whether the hub answers for the others."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from rebapl.backbones.model import IN_PARTS, WHOLE, weight_files
from rebapl.errors import UserError, first_line

HUB_SECONDS = 5
"""How long the hub may take to answer. The library itself would ask it for half a minute."""

TOKENIZERS = ("tokenizer.json", "vocab.json", "spiece.model")
"""Files any of which holds a tokenizer."""

PREPROCESSING = ("preprocessor_config.json", "processor_config.json")
"""Files any of which says how images are made ready."""

_BESIDE = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")

_log = logging.getLogger(__name__)


def split_revision(hub_id: str) -> tuple[str, str | None]:
    """A hub id as its repository, and the revision if it names one.

    >>> split_revision("somebody/clip@v2"), split_revision("somebody/clip")
    (('somebody/clip', 'v2'), ('somebody/clip', None))
    """
    repository, _, revision = hub_id.partition("@")
    return repository, revision or None


def is_hub_id(name: str, revision: bool = True) -> bool:
    """Whether a name looks like a repository of the hub, perhaps with a `revision`.

    >>> is_hub_id("somebody/clip@v2"), is_hub_id("somebody/clip@v2", revision=False), is_hub_id("./clip")
    (True, False, False)
    """
    return _HUB_ID.fullmatch(name) is not None and (revision or "@" not in name)


def fetched_before(hub_id: str) -> Path | None:
    """The folder of the local cache that holds the whole checkpoint; None if there is none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, revision = split_revision(hub_id)
    try:
        found = try_to_load_from_cache(repository, "config.json", revision=revision)
    except HFValidationError as error:
        raise UserError(f"backbone '{hub_id}' is no folder, and cannot be a hub id ({first_line(error)})") from error
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    weights = weight_files(folder)
    there = [any((folder / name).is_file() for name in names) for names in (PREPROCESSING, TOKENIZERS)]
    return folder if all(there) and weights and all(file.is_file() for file in weights) else None


def fetch(hub_id: str) -> Path:
    """Fetch the files of a checkpoint, all from one commit, into the local cache, and give its folder there."""
    from huggingface_hub import snapshot_download

    repository, revision = split_revision(hub_id)
    names = {sibling.rfilename for sibling in ask_hub(hub_id).siblings or ()}
    _log.warning("backbone %s is fetched from the hub and kept", hub_id)
    weights = next((name for pair in zip(WHOLE, IN_PARTS, strict=True) for name in pair if name in names), WHOLE[0])
    files = [*_BESIDE, *PREPROCESSING, *TOKENIZERS, weights]
    if weights in IN_PARTS:  # and its parts: model-00001-of-00002.safetensors
        whole = Path(weights.removesuffix(".index.json"))
        files.append(f"{whole.stem}-*{whole.suffix}")
    try:
        # By the name that was asked for, which the cache notes: by its commit it would not be found without the hub.
        return Path(snapshot_download(repository, revision=revision, allow_patterns=files))
    except Exception as error:  # whatever the connection makes the library raise
        raise UserError(
            f"backbone '{hub_id}' could not be fetched from the hub ({type(error).__name__}: {first_line(error)}): try "
            "again, and it goes on where it was"
        ) from error


def ask_hub(hub_id: str) -> Any:
    """The hub's description of a checkpoint. If it does not answer or has none, that is an error within seconds."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    repository, revision = split_revision(hub_id)
    try:
        return HfApi().model_info(repository, revision=revision, timeout=HUB_SECONDS)
    except RepositoryNotFoundError as error:
        raise UserError(f"backbone '{hub_id}': the hub has no such model, or only for those who log in") from error
    except RevisionNotFoundError as error:
        raise UserError(f"backbone '{hub_id}': the hub has the model, but no revision '{revision}' of it") from error
    except Exception as error:  # whatever the connection makes the library raise
        raise UserError(
            f"backbone '{hub_id}' is not on this machine, and the hub cannot be reached ({type(error).__name__}). "
            "Connect once, and it is fetched and kept; or give --backbone a local folder in Hugging Face format; or "
            "'mini', which comes with rebapl and knows only drawings"
        ) from error
