"""Posteriors on the Hugging Face hub: a repository holds the folder of a posterior, and a model card."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebapl.backbones.hub import HUB_SECONDS, is_hub_id
from rebapl.errors import UserError
from rebapl.files import write_atomically
from rebapl.posterior.card import model_card
from rebapl.posterior.manifest import MANIFEST, SAMPLES
from rebapl.posterior.storage import write_folder

if TYPE_CHECKING:
    from rebapl.posterior.posterior import Posterior

CARD = "README.md"


def find_folder(folder_or_hub_id: Path | str, revision: str | None = None) -> Path:
    """The local folder of that path, or a folder with the files of that repository of the hub, fetched if need be.

    Without a connection, the files that were fetched before are used.
    """
    folder, name = Path(folder_or_hub_id).expanduser(), str(folder_or_hub_id)
    if folder.exists() or not is_hub_id(name, revision=False):
        if revision is not None:
            raise UserError(f"revision '{revision}' was given, and {folder} is no hub id such as 'somebody/digits'")
        return folder
    return fetch(name, revision)


def fetch(name: str, revision: str | None = None) -> Path:
    """A folder with the files of a repository of the hub; see `find_folder`."""
    try:
        return _from_hub(name, revision)
    except Exception as error:  # whatever the connection, the hub or the cache makes the library raise
        part = "" if revision is None else f"revision '{revision}' of "
        raise UserError(
            f"posterior '{name}' is neither a local folder, nor could {part}it be fetched from the hub "
            f"({_in_one_line(error)})"
        ) from error


def push(posterior: Posterior, repository: str, private: bool = False, **card: Any) -> str:
    """Upload a posterior with its card and return the commit; see `Posterior.push_to_hub`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_for_hub(posterior, Path(temporary) / "posterior", repository, **card)
        return _upload(folder, repository, private)


def write_for_hub(
    posterior: Posterior,
    folder: Path,
    repository: str,
    *,
    licence: str | None = None,
    backbone: str | None = None,
    scores: Mapping[str, Mapping[str, Any]] | None = None,
    facts: Mapping[str, object] | None = None,
) -> Path:
    """Write the folder that is uploaded: the posterior, and its card as `README.md`. See `Posterior.push_to_hub`."""
    name = posterior.learner.encoder.name if backbone is None else backbone
    if not is_hub_id(repository, revision=False):
        raise UserError(f"'{repository}' is no name of a repository: write somebody/name, as in 'somebody/digits'")
    if name != "mini" and not is_hub_id(name, revision=False):
        raise UserError(
            f"others cannot load the backbone '{name}': give the hub id where they find it (backbone='somebody/clip', "
            f"or --backbone somebody/clip)"
        )
    text = model_card(posterior, repository, backbone=name, licence=licence, scores=scores or {}, facts=facts or {})
    write_folder(posterior, folder, name)
    write_atomically(folder / CARD, text)
    return folder


def _upload(folder: Path, repository: str, private: bool) -> str:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        if private and not api.model_info(repository).private:
            raise UserError(f"'{repository}' is there already and is public: make it private on the hub first")
        return api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=[MANIFEST, SAMPLES, CARD], commit_message="Posterior"
        ).oid
    except UserError:
        raise
    except Exception as error:  # whatever the connection, the token or the hub makes the library raise
        raise UserError(
            f"nothing could be uploaded to '{repository}' ({_in_one_line(error)}): `hf auth login` stores the token "
            f"that the hub asks for"
        ) from error


def _from_hub(name: str, revision: str | None) -> Path:
    """The folder with the two files of a repository. If the hub does not answer, files fetched before are used."""
    from huggingface_hub import HfApi, snapshot_download

    files = [MANIFEST, SAMPLES]
    try:  # asked once: `snapshot_download` itself may ask for half a minute
        commit = HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS).sha
    except Exception:
        try:
            return Path(snapshot_download(name, revision=revision, allow_patterns=files, local_files_only=True))
        except Exception:
            pass
        raise
    return Path(snapshot_download(name, revision=commit, allow_patterns=files))


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
