"""`rebapl share`: upload a trained run to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rebapl.cli import options

ESTIMATED = "held-out images, each by a training without it"
"""The name, on the card, of the part on which `rebapl learn` has measured its result."""


def share(
    run: options.RunArgument,
    *,
    to: Annotated[str, typer.Option(metavar="USER/NAME")],
    private: bool = False,
    licence: str | None = None,
    backbone: str | None = None,
    dry_run: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None,
) -> None:
    """Upload a run's samples to the Hugging Face hub, with a model card that states its scores, limits and licence.

    The backbone and the images are not uploaded; the class names are.

    Parameters:
        run: Folder of a trained run, or of a posterior.
        to: The repository. It is created if it does not exist.
        private: Create the repository so that only you and your team see it.
        licence: Your licence, by its name on the hub, such as apache-2.0.
        backbone: Hub id under which others find the backbone, if you used a folder.
        dry_run: Upload nothing, but write the files to this folder.
    """
    from rebapl.data.folds import ALL
    from rebapl.posterior import load_posterior
    from rebapl.posterior.hub import write_for_hub
    from rebapl.runs.folder import CONFIG, read_config
    from rebapl.runs.results import RESULTS, read_result

    posterior = load_posterior(run)
    card: dict[str, Any] = {"licence": licence, "backbone": backbone}
    if (run / CONFIG).exists():
        config = read_config(run)
        learned = config.fold == ALL  # `rebapl learn` takes fewer images of a class that has fewer
        shots = f"at most {config.shots}" if learned else config.shots
        card["facts"] = {"protocol": "every class" if learned else config.protocol, "images per class": shots}
        if (run / RESULTS).exists():
            parts = {ESTIMATED if learned else name: part for name, part in read_result(run).parts.items()}
            card["scores"] = {name: part.as_json() for name, part in parts.items()}
    if dry_run is not None:
        print(f"what would be uploaded to {to}: {write_for_hub(posterior, dry_run, to, **card)}")
    else:
        commit = posterior.push_to_hub(to, private=private, **card)
        print(f"uploaded to {to}, commit {commit}; use it with: rebapl predict hf://{to}@{commit} IMAGES")
