"""Zero-shot CLIP: hand-written templates, nothing learned.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021. It uses the data set's
template, or an ensemble of templates: the text feature of a class is then the normalised mean of its normalised
features in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import model_validator
from torch import Tensor

from rebapl.learners.base import TextLearner
from rebapl.learners.registry import register
from rebapl.learners.templates import Templates, mean_features
from rebapl.settings import SettingError, Settings


class ZeroShotConfig(Settings):
    """`templates` are those of an ensemble: a named set (imagenet-7, imagenet-80), one template, or several.

    `with_own` adds the data set's own template to them. The published ensembles have it (with_own=True) for all data
    sets except ImageNet.
    """

    templates: Templates | None = None
    with_own: bool = True

    @model_validator(mode="after")
    def _something_is_left(self) -> ZeroShotConfig:
        if self.templates is None and not self.with_own:
            raise SettingError(("with_own",), "= false leaves no template at all: give templates, or leave it out")
        return self


@register("zero-shot", ZeroShotConfig)
class ZeroShot(TextLearner):
    config: ZeroShotConfig
    repels_in = None

    @classmethod
    def reads_template(cls, config: Settings) -> bool:
        return isinstance(config, ZeroShotConfig) and (config.templates is None or config.with_own)

    def prepare_text(self) -> None:
        templates = self.template if self.config.templates is None else self.config.templates
        own = self.template if self.config.with_own else None
        self.text_features = mean_features(self.encoder, self.class_names, templates, normalised=True, own=own)

    def reset(self, generator: torch.Generator) -> None:
        """Nothing to draw."""

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.text_features}
