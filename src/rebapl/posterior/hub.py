"""Posteriors on the Hugging Face hub: a repository holds the folder of a posterior, and a model card.

The card says what the posterior is, how to use it, its scores, its limits and its licence; `model_card.md` is its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebapl import __version__
from rebapl.backbones.hub import is_hub_id
from rebapl.errors import UserError, printable
from rebapl.files import write_atomically
from rebapl.posterior.storage import BANK, FOLDS, MANIFEST, SAMPLES, one_line, save_posterior
from rebapl.wording import number_of

if TYPE_CHECKING:
    from rebapl.posterior.posterior import Posterior

CARD = "README.md"

SCORES = {"accuracy": "accuracy (%) ↑", "nll": "NLL ↓", "ece": "ECE (%) ↓"}
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
    name = posterior.learner.encoder.name if backbone is None else backbone
    if not is_hub_id(repository, revision=False):
        raise UserError(f"'{repository}' is no name of a repository: write somebody/name, as in 'somebody/digits'")
    if name != "mini" and not is_hub_id(name, revision=False):
        raise UserError(
            f"others cannot load the backbone '{name}': give the hub id where they find it (backbone='somebody/clip', "
            f"or --backbone somebody/clip)"
        )
    text = model_card(posterior, repository, backbone=name, licence=licence, scores=scores or {}, facts=facts or {})
    save_posterior(posterior, folder, name)
    write_atomically(folder / CARD, text)
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
            allow_patterns=[MANIFEST, SAMPLES, BANK, FOLDS, CARD],
            commit_message="Posterior",
        ).oid
    except UserError:
        raise
    except Exception as error:  # whatever the connection, the token or the hub makes the library raise
        raise UserError(
            f"nothing could be uploaded to '{repository}' ({one_line(error)}): `hf auth login` stores the token "
            f"that the hub asks for"
        ) from error


def model_card(
    posterior: Posterior,
    repository: str,
    *,
    backbone: str,
    licence: str | None,
    scores: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, object],
) -> str:
    """The text of the card: metadata in YAML, which the hub reads, and Markdown for people."""
    about, count = posterior.about, len(posterior)
    training = {
        "data": about.get("data"),
        **facts,
        "seed": about.get("seed"),
        "template": about["template"],
        "classes": len(about["class_names"]),
    }
    scored = [(name, found["images"], *(f"{found[key]:.4g}" for key in SCORES)) for name, found in scores.items()]
    template = resources.files("rebapl.posterior").joinpath("model_card.md").read_text(encoding="utf-8")
    return template.format(
        metadata=_metadata(posterior, repository, backbone, licence, scores),
        title=repository.partition("/")[2],
        repository=repository,
        backbone=backbone,
        samples=number_of(count, "sample"),
        method=about["method"],
        inference=about["inference"]["name"],
        version=__version__,
        training=_table(("setting", "value"), training.items()),
        class_names="\n".join(f"    {printable(name)}" for name in about["class_names"]),
        scores=_table(("test part", "images", *SCORES.values()), scored) if scored else "It was not scored.",
        limits="\n".join(f"- {limit}" for limit in _limits(posterior)),
        licence="Its author has not chosen a licence." if licence is None else f"`{licence}`.",
    )


def _metadata(
    posterior: Posterior, repository: str, backbone: str, licence: str | None, scores: Mapping[str, Mapping[str, Any]]
) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    data = posterior.about.get("data")
    results = [
        EvalResult(TASK, data, f"{data}: {part}", metric, round(float(found[metric]), 4), dataset_config=part)
        for part, found in (scores.items() if data else ())
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


def _limits(posterior: Posterior) -> list[str]:
    """What a person should know before trusting an answer."""
    held = {"I don't know": posterior.threshold, "none of these": posterior.outside}
    words = " or ".join(f"'{words}'" for words, threshold in held.items() if threshold is not None)
    limits = [
        "It always answers with one of the class names that it is given, also for an image of something else"
        + (f", unless the threshold that it holds says {words}." if words else "."),
        "It was trained on few images, and its scores hold for images like those that it was tested on.",
        "What the backbone has learned from its own training data, wrong or unfair, is still there.",
    ]
    if posterior.conformal is not None:
        sets = posterior.conformal
        limits.append(
            f"Its prediction sets of level {sets.level:g} hold the right class of {100 * sets.promised:.3g} % or more "
            f"of images like the {sets.images} that they were fitted on, and promise nothing for other images."
        )
    if posterior.about.get("seed") is not None:
        limits.append("It is one run with one seed; other seeds give somewhat other scores.")
    if len(posterior) == 1:
        limits.append("It has one sample, so there is no uncertainty between samples.")
    return limits


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """A table in Markdown. A value that is None was not recorded."""
    lines = [[*map(_cell, row)] for row in (head, ("---",) * len(head), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return "not recorded" if value is None else printable(str(value)).replace("|", "\\|")
