"""Posteriors on the Hugging Face hub: a repository holds the folder of a posterior, and a model card.

The card says what the posterior is, how to use it, its scores, limits and licence. Its template is `model_card.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebapl import __version__
from rebapl.backbones.hub import is_hub_id, one_line
from rebapl.errors import UserError, printable
from rebapl.files import write_atomically
from rebapl.posterior.storage import MANIFEST, SAMPLES, save_posterior
from rebapl.score_columns import columns
from rebapl.wording import number_of

if TYPE_CHECKING:
    from rebapl.posterior.posterior import Posterior

CARD = "README.md"

SCORES = columns("accuracy", "nll", "ece")
"""The scores on the card, and in its metadata."""
TASK = "image-classification"


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
    from jinja2 import Environment, PackageLoader, StrictUndefined

    name = posterior.learner.encoder.name if backbone is None else backbone
    if not is_hub_id(repository, revision=False):
        raise UserError(f"'{repository}' is not the name of a repository: write somebody/name, as in 'somebody/digits'")
    if name != "mini" and not is_hub_id(name, revision=False):
        raise UserError(
            f"others cannot load the backbone '{name}': give the hub id where they find it (backbone='somebody/clip', "
            f"or --backbone somebody/clip)"
        )
    loader = PackageLoader("rebapl", "posterior")
    page = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= {"cell": _cell, "printable": printable, "number_of": number_of}
    card = page.get_template("model_card.md").render(
        posterior=posterior,
        about=posterior.about,
        metadata=_metadata(posterior, repository, name, licence, scores or {}),
        repository=repository,
        backbone=name,
        licence=licence,
        version=__version__,
        facts=facts or {},
        scores=scores or {},
        columns=SCORES,
    )
    save_posterior(posterior, folder, name)
    write_atomically(folder / CARD, card)
    return folder


def upload(folder: Path, repository: str, private: bool) -> str:
    """Upload what `write_for_hub` wrote and return the commit."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        if private and not api.model_info(repository).private:
            raise UserError(f"'{repository}' is there already and is public: make it private on the hub first")
        return api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=[MANIFEST, SAMPLES, CARD],
            commit_message="Posterior",
        ).oid
    except UserError:
        raise
    except Exception as error:  # the library raises many kinds of errors for the connection, the token and the hub
        raise UserError(
            f"nothing could be uploaded to '{repository}' ({one_line(error)}): `hf auth login` stores the token "
            f"that the hub asks for"
        ) from error


def _metadata(
    posterior: Posterior, repository: str, backbone: str, licence: str | None, scores: Mapping[str, Mapping[str, Any]]
) -> str:
    """The metadata of the card for the hub, in YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    data = posterior.about.get("data")
    results = [
        EvalResult(TASK, data, f"{data}: {part}", metric, round(float(of_part[metric]), 4), dataset_config=part)
        for part, of_part in (scores.items() if data else ())
        for metric in SCORES
    ]
    return ModelCardData(
        base_model=None if backbone == "mini" else backbone,
        library_name="rebapl",
        license=licence,
        model_name=repository.partition("/")[2] if results else None,
        eval_results=results or None,
        pipeline_tag=TASK,
        tags=["clip", "prompt-learning", "bayesian", "few-shot", "uncertainty"],
    ).to_yaml()


def _cell(value: object) -> str:
    """The text of a value in a Markdown table."""
    return "not recorded" if value is None else printable(str(value)).replace("|", "\\|")
