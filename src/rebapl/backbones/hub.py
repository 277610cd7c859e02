"""Checkpoints of the Hugging Face hub: those that were fetched before, and whether the hub answers for the others."""

from __future__ import annotations

import logging
from pathlib import Path

from rebapl.errors import UserError

HUB_SECONDS = 5
"""How long the hub may take to answer. The library itself would ask it for half a minute."""

_NEEDED = (
    ("config.json",),
    ("preprocessor_config.json", "processor_config.json"),
    ("tokenizer.json", "vocab.json", "spiece.model"),
    ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"),
)

_log = logging.getLogger(__name__)


def split_revision(hub_id: str) -> tuple[str, str | None]:
    """A hub id as its repository, and the revision if it names one.

    >>> split_revision("somebody/clip@v2"), split_revision("somebody/clip")
    (('somebody/clip', 'v2'), ('somebody/clip', None))
    """
    repository, _, revision = hub_id.partition("@")
    return repository, revision or None


def fetched_before(hub_id: str) -> Path | None:
    """The folder of the local cache that holds the whole checkpoint; None if there is none."""
    from huggingface_hub import try_to_load_from_cache

    repository, revision = split_revision(hub_id)
    found = try_to_load_from_cache(repository, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    whole = all(any((folder / name).is_file() for name in names) for names in _NEEDED)
    return folder if whole else None


def ask_hub(hub_id: str) -> None:
    """Say that a checkpoint will be fetched. If the hub does not answer or has none, that is an error, in seconds."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    repository, revision = split_revision(hub_id)
    try:
        HfApi().model_info(repository, revision=revision, timeout=HUB_SECONDS)
    except RepositoryNotFoundError as error:
        raise UserError(f"backbone '{hub_id}': the hub has no such model, or only for those who log in") from error
    except Exception as error:  # whatever the connection makes the library raise
        raise UserError(
            f"backbone '{hub_id}' is not on this machine, and the hub cannot be reached ({type(error).__name__}). "
            "Connect once, and it is fetched and kept; or give --backbone a local folder in Hugging Face format; or "
            "'mini', which comes with rebapl and knows only drawings"
        ) from error
    _log.warning("backbone %s is fetched from the hub and kept", hub_id)
