"""Sharing a run: its posterior and a model card with its scores, on the Hugging Face hub or in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rebapl.posterior import load_posterior
from rebapl.posterior.hub import write_for_hub
from rebapl.runs.folder import CONFIG, read_config
from rebapl.runs.results import RESULTS, read_result


def share_run(
    run: Path,
    repository: str,
    *,
    private: bool = False,
    licence: str | None = None,
    backbone: str | None = None,
    folder: Path | None = None,
) -> str:
    """Upload the posterior of a run, or a posterior, with a card, and return the commit; see `Posterior.push_to_hub`.

    With `folder`, what would be uploaded is written there instead, nothing is uploaded, and the path is returned.
    """
    card: dict[str, Any] = {"licence": licence, "backbone": backbone}
    if (run / CONFIG).exists():
        config = read_config(run)
        card["facts"] = {"protocol": config.protocol, "images per class": config.shots}
    if (run / RESULTS).exists():
        card["scores"] = {name: part.as_json() for name, part in read_result(run).parts.items()}
    posterior = load_posterior(run)
    if folder is not None:
        return str(write_for_hub(posterior, folder, repository, **card))
    return posterior.push_to_hub(repository, private=private, **card)
