"""A posterior on disk: a folder with `posterior.json` and `samples.safetensors`. `rebapl.posterior.loading` reads it.

The first file, the manifest, has everything that is needed to use the second: backbone, method, class names, every
setting of the method and of the inference, versions, and the checksums of both files. So if a default changes later, a
posterior still predicts the same. The second file has the learned parameters, and the tensors with which "none of
these" and prediction sets compare images. The backbone is not stored, and nothing is stored as a pickle.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import AfterValidator, ConfigDict, Field
from safetensors.torch import save

from rebapl import __version__
from rebapl.backbones.model import all_finite
from rebapl.errors import UserError
from rebapl.files import content_sha256, folder_written_whole, read_json, sha256, write_json
from rebapl.learners import METHODS, Learner
from rebapl.posterior.conformal import Conformal
from rebapl.posterior.fitting import EarlierWeights
from rebapl.posterior.prediction import Average, Outside, Threshold
from rebapl.posterior.temperature import Temperature
from rebapl.settings import Settings

if TYPE_CHECKING:
    from rebapl.posterior.posterior import Posterior

FORMAT = 3
MANIFEST, SAMPLES = "posterior.json", "samples.safetensors"
BANK = "outside"
"""In the file of samples, `outside:NAME` is a tensor that "none of these" compares images with, and `K:NAME` has the
samples of fold K (0, 1 …), by which prediction sets compare images. The posterior's own samples have plain names."""
INSIDE = "posterior"
"""The name of the posterior's folder inside the folder of a run."""
ESTIMATE = "estimate"
"""The name of the folder inside a run's folder in which `rebapl learn` measures the run. While it exists, nothing is
fitted yet."""

CHOICES = ("threshold", "conformal", "temperature", "outside")
"""The choices made on held-out images, by their names in the manifest and in the posterior."""

WEIGHT_TOLERANCE = 1e-4
"""The largest difference allowed between one and the sum of the weights."""


def check_weights(weights: list[float]) -> list[float]:
    """Refuse weights of samples that are not finite, are negative somewhere, or do not sum to one."""
    total = sum(weights)
    if not abs(total - 1) <= WEIGHT_TOLERANCE or min(weights) < 0:
        raise UserError(f"weights must be finite, not negative, and sum to one; got {weights}, sum {total:g}")
    return weights


class Backbone(Settings):
    """The name that the backbone is loaded by, and the checksum of its weights."""

    name: str
    sha256: str


class HowSampled(Settings):
    """The settings of the inference that a prediction uses; all other settings are stored unchecked."""

    model_config = ConfigDict(extra="allow")
    average: Average = "probabilities"
    views: int = Field(default=1, ge=1)


class Manifest(Settings):
    """The content of `posterior.json`, besides its format and its own checksum."""

    backbone: Backbone
    weights: Annotated[list[float], AfterValidator(check_weights)]
    earlier_weights: list[EarlierWeights]
    threshold: Threshold | None
    conformal: Conformal | None
    temperature: Temperature | None
    outside: Outside | None
    method: str
    method_settings: dict[str, Any]
    inference: HowSampled
    crop_scale: list[float] | None
    seed: int | None
    data: str | None
    class_names: Annotated[list[str], Field(min_length=1)]
    template: str
    samples_sha256: str
    versions: dict[str, str]


def save_posterior(posterior: Posterior, folder: Path | str, backbone: str | None = None) -> Path:
    """Write a posterior to a folder, whole or not at all. An older posterior in that folder is replaced.

    If the folder holds the same samples already, because only weights, a temperature, a threshold or prediction sets
    are new, only `posterior.json` is written. `backbone` is the name to load the backbone by later, if it differs from
    the name that it was loaded by.
    """
    folder = Path(folder)
    if folder.exists() and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not a posterior: choose another folder")
    for name, stack in posterior.samples.items():
        if not all_finite(stack):
            raise UserError(f"samples of '{name}' hold numbers that are not finite: nothing is saved")
    content = _content(posterior)
    checksum = hashlib.sha256(content).hexdigest()
    manifest = _manifest(posterior, checksum, backbone)
    if (folder / SAMPLES).is_file() and sha256(folder / SAMPLES) == checksum:
        write_json(folder / MANIFEST, manifest)
        return folder
    with folder_written_whole(folder) as temporary:
        (temporary / SAMPLES).write_bytes(content)
        (temporary / SAMPLES).chmod(0o644)
        write_json(temporary / MANIFEST, manifest)
    return folder


def read_manifest(folder: Path) -> Manifest:
    """Read `posterior.json`. It is refused if it has another format, if it was edited, or if an entry is wrong."""
    path = folder / MANIFEST
    content = read_json(path, "a posterior")
    written_as = content.get("format")
    if written_as != FORMAT or isinstance(written_as, bool):
        versions = content.get("versions")
        writer = versions.get("rebapl", "unknown") if isinstance(versions, dict) else "unknown"
        raise UserError(
            f"{path} has format {written_as!r}, and this version of rebapl reads {FORMAT}: install the version that "
            f"wrote it ({writer}), or train the posterior again"
        )
    if content_sha256(content) != content.get("sha256"):
        raise UserError(
            f"{path} is not as it was written (its checksum differs): it was edited or damaged; restore the file, or "
            "train the posterior again"
        )
    try:
        return Manifest(**{key: value for key, value in content.items() if key not in ("format", "sha256")})
    except UserError as error:
        raise UserError(f"{path} does not describe a posterior: {error}; train the posterior again") from error


def about_learner(learner: Learner) -> dict[str, Any]:
    """The entries of `Posterior.about`, and of the manifest, for samples of this learner that were made by hand."""
    return {
        "method": learner.method,
        "method_settings": learner.config.plain(),
        "inference": {"name": "custom"},
        "crop_scale": None,
        "seed": None,
        "data": None,
        "class_names": learner.class_names,
        "template": learner.template,
    }


def _manifest(posterior: Posterior, samples_sha256: str, backbone: str | None = None) -> dict[str, Any]:
    """The manifest of a posterior, with the checksums of the other file and of itself."""
    learner = posterior.learner
    if learner.method is None:
        raise UserError(
            f"{type(learner).__name__} is not registered, so nobody could find it when the posterior is read: decorate "
            'the class with @rebapl.register("NAME", SettingsClass) and make the posterior again'
        )
    about = {**posterior.about, "method": learner.method}
    about["method_settings"] = METHODS.find(learner.method).settings(about["method_settings"]).plain()
    chosen = {
        name: asdict(choice) if (choice := getattr(posterior, name)) is not None and _keeps_choices(posterior) else None
        for name in CHOICES
    }
    packages = ("torch", "transformers", "safetensors")
    content = {
        "format": FORMAT,
        "backbone": {"name": backbone or learner.encoder.name, "sha256": learner.encoder.fingerprint},
        "weights": posterior.weights.tolist(),
        "earlier_weights": [asdict(each) for each in posterior.earlier_weights],
        **chosen,
        **{key: about[key] for key in about_learner(learner)},
        "versions": {
            "rebapl": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "samples_sha256": samples_sha256,
    }
    return {**content, "sha256": content_sha256(content)}


def _keeps_choices(posterior: Posterior) -> bool:
    """Whether the choices made on held-out images hold for the template with which the posterior is loaded later."""
    learner = posterior.learner
    return not learner.transfer and learner.template == posterior.about["template"]


def _content(posterior: Posterior) -> bytes:
    """The content of the file of samples; see `BANK` for the names of the tensors in it."""
    tensors = dict(posterior.samples)
    if _keeps_choices(posterior):
        tensors |= {f"{BANK}:{name}": tensor for name, tensor in posterior.bank.items()}
        for number, fold in enumerate(posterior.folds):
            if not torch.equal(fold.weights, torch.full_like(fold.weights, 1 / len(fold))):
                raise UserError(
                    "the samples of a fold must have equal weights to be saved: use its with_uniform_weights()"
                )
            # A fold of a method without parameters has its weights, so that it counts.
            stacks = fold.samples or {"": fold.weights}
            tensors |= {f"{number}:{name}": stack for name, stack in stacks.items()}
    # Cloned, because tensors that share memory, such as the same samples of two folds, are refused.
    layout = torch.contiguous_format
    return save({name: tensor.detach().cpu().clone(memory_format=layout) for name, tensor in tensors.items()})
