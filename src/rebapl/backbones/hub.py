"""The Hugging Face hub: fetch files of a repository, and find and fetch checkpoints."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rebapl.backbones.model import IN_PARTS, WHOLE, weight_files
from rebapl.errors import UserError, first_line

HUB_SECONDS = 5
"""The number of seconds in which the hub must answer. The library itself would wait for half a minute."""

TOKENIZERS = ("tokenizer.json", "vocab.json", "spiece.model")
"""Files that hold a tokenizer. A checkpoint needs one of them."""

PREPROCESSING = ("preprocessor_config.json", "processor_config.json")
"""Files that describe the preprocessing of images. A checkpoint needs one of them."""

_BESIDE = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")

_log = logging.getLogger(__name__)


def split_revision(hub_id: str) -> tuple[str, str | None]:
    """The repository and the revision of a hub id; the revision is None if the hub id names none.

    >>> split_revision("somebody/clip@v2"), split_revision("somebody/clip")
    (('somebody/clip', 'v2'), ('somebody/clip', None))
    """
    repository, _, revision = hub_id.partition("@")
    return repository, revision or None


def is_hub_id(name: str, revision: bool = True) -> bool:
    """Whether a name looks like a repository of the hub. With `revision`, it may end in `@` and a revision.

    >>> is_hub_id("somebody/clip@v2"), is_hub_id("somebody/clip@v2", revision=False), is_hub_id("./clip")
    (True, False, False)
    """
    return _HUB_ID.fullmatch(name) is not None and (revision or "@" not in name)


def fetched_before(hub_id: str) -> Path | None:
    """The folder in the local cache that holds the whole checkpoint; None if there is none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, revision = split_revision(hub_id)
    try:
        config = try_to_load_from_cache(repository, "config.json", revision=revision)
    except HFValidationError as error:
        raise UserError(f"backbone '{hub_id}' is no folder, and cannot be a hub id ({first_line(error)})") from error
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    weights = weight_files(folder)
    described = all(any((folder / name).is_file() for name in names) for names in (PREPROCESSING, TOKENIZERS))
    return folder if described and weights and all(file.is_file() for file in weights) else None


def fetch(hub_id: str) -> Path:
    """Fetch the files of a checkpoint, all from one commit, into the local cache, and return their folder."""
    names = {sibling.rfilename for sibling in ask_hub(hub_id).siblings or ()}
    _log.warning("backbone %s is fetched from the hub and kept", hub_id)
    weights = next((name for pair in zip(WHOLE, IN_PARTS, strict=True) for name in pair if name in names), WHOLE[0])
    files = [*_BESIDE, *PREPROCESSING, *TOKENIZERS, weights]
    if weights in IN_PARTS:  # and its parts: model-00001-of-00002.safetensors
        whole = Path(weights.removesuffix(".index.json"))
        files.append(f"{whole.stem}-*{whole.suffix}")
    return snapshot("backbone", hub_id, files)


def snapshot(what: str, hub_id: str, patterns: Sequence[str]) -> Path:
    """The folder in the local cache with the files of a repository that match `patterns`, all from one commit.

    If the hub does not answer within seconds, files that were fetched before are used. Errors call the repository
    `what`.
    """
    from huggingface_hub import HfApi, snapshot_download

    repository, revision = split_revision(hub_id)
    # The cache records the revision that is requested here. If this were the commit, a name such as `main` could not
    # be found later without the hub.
    request: dict[str, Any] = {"revision": revision, "allow_patterns": list(patterns)}
    # The library raises many kinds of errors for the connection, the hub and the cache.
    try:  # a quick test of the connection, since `snapshot_download` itself may wait for half a minute
        HfApi().model_info(repository, revision=revision, timeout=HUB_SECONDS)
    except Exception as error:
        with contextlib.suppress(Exception):
            return Path(snapshot_download(repository, local_files_only=True, **request))
        raise UserError(
            f"{what} '{hub_id}' could not be fetched from the hub, and was not fetched before ({one_line(error)})"
        ) from error
    try:
        return Path(snapshot_download(repository, **request))
    except Exception as error:
        raise UserError(
            f"{what} '{hub_id}' could not be fetched from the hub ({one_line(error)}): try again, and it goes on where "
            "it was"
        ) from error


def one_line(error: Exception) -> str:
    """An error of the hub's library, whose message may have many lines, as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def ask_hub(hub_id: str) -> Any:
    """The hub's description of a checkpoint. If it has none or does not answer, this is an error within seconds."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    repository, revision = split_revision(hub_id)
    try:
        return HfApi().model_info(repository, revision=revision, timeout=HUB_SECONDS)
    except RepositoryNotFoundError as error:
        raise UserError(f"backbone '{hub_id}': the hub has no such model, or only for those who log in") from error
    except RevisionNotFoundError as error:
        raise UserError(f"backbone '{hub_id}': the hub has the model, but no revision '{revision}' of it") from error
    except Exception as error:  # a failing connection makes the library raise errors of any type
        raise UserError(
            f"backbone '{hub_id}' is not on this machine, and the hub cannot be reached ({type(error).__name__}). "
            "Connect once, and it is fetched and kept; or give --backbone a local folder in Hugging Face format; or "
            "'mini', which comes with rebapl and knows only drawings"
        ) from error
