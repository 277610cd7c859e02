"""Notes on a run for the person who uses it: its backbone knows only drawings, or it has only one sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rebapl.posterior import Posterior

ONLY_DRAWINGS = (
    "warning: the backbone mini knows only drawings. On photos its answers are hardly better than chance; name a CLIP "
    "with --backbone, a hub id or a local folder in Hugging Face format"
)


def one_sample(run: Path | None = None) -> str:
    """A note on what one sample cannot tell, and what to do about it. For a `run` it names commands that measure it."""
    measures = (
        f"How well its probabilities tell unfamiliar images: rebapl evaluate {run} --outside FOLDER. When to say "
        f'"I don\'t know": rebapl evaluate {run} --fit-threshold coverage=0.9. '
    )
    return (
        "this run has one sample, so it has no uncertainty of its own: mutual information and disagreement are 0. "
        f"{'' if run is None else measures}For more, take --inference rebapl or ensemble"
    )


def notes_of(run: Path, posterior: Posterior) -> list[str]:
    """Notes that a person should read before the answers of a run, or of a posterior from elsewhere."""
    from rebapl.posterior.storage import ESTIMATE

    notes = []
    if (run / ESTIMATE).is_dir():
        notes.append(
            f'warning: {run} is not measured yet, so it has no temperature and never says "I don\'t know": the command '
            "`rebapl learn` that began it finishes that"
        )
    if len(posterior) == 1:
        from rebapl.data.folds import ALL
        from rebapl.runs.folder import CONFIG, read_config

        by_itself = (run / CONFIG).exists() and read_config(run).fold != ALL and posterior.threshold is None
        notes.append(one_sample(run if by_itself else None))
    return notes
