"""Sets of text templates, and the features of class names in several of them.

CLIP's authors wrote 80 templates for ImageNet (`imagenet_templates.txt`) and chose 7 that do almost as well. PromptSRC
uses the first 60.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.data.dataset import check_template
from rebapl.errors import UserError, unknown

_IMAGENET = tuple(files(__package__).joinpath("imagenet_templates.txt").read_text(encoding="utf-8").splitlines())

TEMPLATE_SETS: dict[str, tuple[str, ...]] = {
    "imagenet-7": (
        "itap of a {}.",
        "a bad photo of the {}.",
        "a origami {}.",
        "a photo of the large {}.",
        "a {} in a video game.",
        "art of the {}.",
        "a photo of the small {}.",
    ),
    "imagenet-60": _IMAGENET[:60],
    "imagenet-80": _IMAGENET,
}


def read_templates(given: str | Sequence[str]) -> tuple[str, ...]:
    """The templates of the named set `given`, or the templates `given` themselves; each must have `{}` once.

    >>> read_templates("a drawing of a {}."), len(read_templates("imagenet-7"))
    (('a drawing of a {}.',), 7)
    """
    if isinstance(given, str) and "{}" not in given:
        if given not in TEMPLATE_SETS:
            raise unknown("set of templates", given, TEMPLATE_SETS, more=", or templates with '{}' for the class name")
        return TEMPLATE_SETS[given]
    templates = (given,) if isinstance(given, str) else tuple(given)
    if not templates:
        raise UserError("templates: at least one is needed")
    for template in templates:
        check_template(template)
    return templates


def _checked(given: str | tuple[str, ...]) -> str | tuple[str, ...]:
    read_templates(given)
    return given


Templates = Annotated[str | Annotated[tuple[str, ...], Field(strict=False)], AfterValidator(_checked)]
"""A setting: the name of a set, one template or several."""


@torch.no_grad()
def mean_features(
    encoder: DualEncoder,
    class_names: Sequence[str],
    given: str | Sequence[str],
    normalised: bool,
    own: str | None = None,
) -> Tensor:
    """The normalised mean (C, e) over templates of the frozen text features, which may be `normalised` before as well.

    `given` is as in `read_templates`, and `own` is one more template. A template of a named set is left out if the
    backbone cannot read every name in it, because its vocabulary or its number of positions is too small.
    """
    templates = read_templates(given)
    optional = isinstance(given, str) and given in TEMPLATE_SETS
    total = torch.zeros(len(class_names), encoder.joint_width, device=encoder.device)
    # Only its message: the error itself would keep its callers' frames, and in them a whole backward graph, alive until
    # the next garbage collection. Until then no pass with the same parameters can be recorded as a CUDA graph.
    refusal = ""
    for template in dict.fromkeys([*templates, *([] if own is None else [own])]):
        try:
            text = encoder.tokenize([[template.replace("{}", name)] for name in class_names])
        except UserError as error:
            if not optional or template == own:
                raise
            refusal = str(error)
            continue
        features = encoder.text.features(encoder.embed_text(text))
        total += F.normalize(features, dim=-1) if normalised else features
    if refusal and not total.any():
        raise UserError(refusal)
    return F.normalize(total, dim=-1)
