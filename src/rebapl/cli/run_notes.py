"""What a person should know of a run before it begins and when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rebapl.runs.config import RunConfig

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


def half_remarks(config: RunConfig, root: Path | None) -> list[str]:
    """A line that says which classes of somebody's own photos are learned, if not all of them are."""
    from rebapl.data.catalogue import is_own
    from rebapl.wording import few

    if not is_own(config.data) or config.protocol not in ("base-to-novel", "selection"):
        return []
    task = config.task(root)
    trained, names = task.train.class_names, task.dataset.class_names
    return [
        f"warning: learning {len(trained)} of {len(names)} classes ({few(trained)}), because the protocol "
        f"{config.protocol} keeps the others to test with. To learn all of them: rebapl learn {config.data}"
    ]


def backbone_remarks(config: RunConfig) -> list[str]:
    """A warning if somebody's own photos are learned with the backbone that knows only drawings."""
    from rebapl.data.catalogue import is_own

    return [ONLY_DRAWINGS] if is_own(config.data) and config.backbone_name == "mini" else []
