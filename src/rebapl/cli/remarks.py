"""What a person should know of a run before it begins and when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rebapl.runs.config import RunConfig

ONLY_DRAWINGS = (
    "warning: the backbone mini knows only drawings. On photos its answers are hardly better than chance; name a CLIP "
    "with --backbone, a hub id or a local folder in Hugging Face format"
)


def backbone_remarks(config: RunConfig) -> list[str]:
    """A warning if somebody's own photos are learned with the backbone that knows only drawings."""
    from rebapl.data.catalogue import is_own

    return [ONLY_DRAWINGS] if is_own(config.data) and config.backbone_name == "mini" else []
