"""What a person should know of a run: that its backbone knows only drawings, or that it has one sample."""

from __future__ import annotations

from pathlib import Path

ONLY_DRAWINGS = (
    "warning: the backbone mini knows only drawings. On photos its answers are hardly better than chance; name a CLIP "
    "with --backbone, a hub id or a local folder in Hugging Face format"
)


def one_sample(run: Path) -> str:
    """What a run with one sample cannot say, and what can be done about it."""
    from rebapl.runs.folder import HELD_OUT

    measures = (
        f"How well its probabilities tell unfamiliar images: rebapl evaluate {run} --outside FOLDER. When to say "
        f'"I don\'t know": rebapl evaluate {run} --fit-threshold coverage=0.9. '
    )
    return (
        "this run has one sample, so it has no uncertainty of its own: mutual information and disagreement are 0. "
        f"{'' if (run / HELD_OUT).exists() else measures}For more, take --inference rebapl or ensemble"
    )
