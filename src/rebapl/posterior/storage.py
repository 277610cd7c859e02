"""A posterior on disk: a folder with `posterior.json` and `samples.safetensors`.

The first file says what is needed to use the second: backbone, method, class names, settings, versions and checksums.
Only learnable parameters are stored, never the backbone, and never as a pickle.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from rebapl.backbones import Dtype, DualEncoder, load_backbone
from rebapl.errors import UserError
from rebapl.files import finish_replacement, folder_written_whole, read_json, sha256, write_json
from rebapl.learners import METHODS, Learner, build_learner
from rebapl.learners.registry import earlier_settings
from rebapl.numbers import all_finite
from rebapl.posterior.manifest import (
    ABOUT,
    MANIFEST,
    SAMPLES,
    EarlierWeights,
    build_manifest,
    check_manifest,
    read_conformal,
    read_earlier_weights,
    read_threshold,
    signed,
)
from rebapl.posterior.prediction import Conformal, Threshold

if TYPE_CHECKING:
    from rebapl.posterior.posterior import Posterior


def write_folder(posterior: Posterior, folder: Path | str, backbone: str | None = None) -> Path:
    """Write a posterior, see `save_posterior`. `backbone` is stored as the name of its backbone, if it is given."""
    folder = Path(folder)
    if folder.exists() and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not a posterior: choose another folder")
    samples = {name: stack.detach().cpu().contiguous() for name, stack in posterior.samples.items()}
    for name, stack in samples.items():
        if not all_finite(stack):
            raise UserError(f"samples of '{name}' hold numbers that are not finite: nothing is saved")
    manifest = build_manifest(posterior, backbone)
    if (folder / SAMPLES).is_file() and (folder / SAMPLES).read_bytes() == save(samples):
        write_json(folder / MANIFEST, signed(manifest, sha256(folder / SAMPLES)))
        return folder
    with folder_written_whole(folder) as temporary:
        path = temporary / SAMPLES
        try:
            save_file(samples, path)
        except SafetensorError:  # it does not say in a form of its own what the system refused, and this does
            path.write_bytes(save(samples))
        path.chmod(0o644)  # the library lets nobody else read it
        write_json(temporary / MANIFEST, signed(manifest, sha256(path)))
    return folder


def is_stored(posterior: Posterior, folder: Path) -> bool:
    """Whether a folder holds what `write_folder` wrote of this posterior, and nobody changed it since.

    It compares what `posterior.json` says, weights and thresholds among it, not the samples, which nobody changes.
    """
    if not (folder / MANIFEST).is_file():
        return False
    stored = read_json(folder / MANIFEST, "a posterior")
    own = signed(build_manifest(posterior), str(stored.get("samples_sha256")))
    return bool(own["sha256"] == stored.get("sha256"))


class Parts(NamedTuple):
    """What is read from a folder, as `Posterior` takes it."""

    learner: Learner
    samples: dict[str, Tensor]
    weights: Tensor
    about: dict[str, Any]
    threshold: Threshold | None
    earlier_weights: tuple[EarlierWeights, ...]
    conformal: Conformal | None


def read_folder(folder: Path, encoder: DualEncoder | None, device: str | torch.device, dtype: Dtype) -> Parts:
    """Read what `write_folder` wrote, see `load_posterior`."""
    finish_replacement(folder)
    path, samples = folder / MANIFEST, folder / SAMPLES
    if folder.is_file():
        raise UserError(f"{folder} is a file: give the folder of a posterior, which holds {MANIFEST} and {SAMPLES}")
    manifest = read_json(path, "a posterior")
    check_manifest(manifest, path)
    if not samples.is_file():
        raise UserError(f"{folder} is not a whole posterior: it has no {SAMPLES}; train it again")
    if sha256(samples) != manifest["samples_sha256"]:
        raise UserError(f"{samples} is not the file that {MANIFEST} describes (truncated or edited): train it again")
    name, expected = manifest["backbone"]["name"], manifest["backbone"]["sha256"]
    encoder = encoder or load_backbone(name, device, dtype)
    if encoder.fingerprint != expected:
        raise UserError(
            f"{folder} was trained on backbone '{name}' ({expected[:12]}…), and '{encoder.name}' is another "
            f"({encoder.fingerprint[:12]}…): give the backbone it was trained on"
        )
    about: dict[str, Any] = {key: manifest.get(key) for key in ABOUT}
    method, settings = manifest["method"], manifest["method_settings"]
    if manifest["format"] == 1:
        settings = earlier_settings(method, settings)
    try:
        learner = build_learner(
            method, encoder, about["class_names"], about["template"], torch.Generator(), settings
        ).eval()
    except (UserError, TypeError) as error:  # settings that this version does not know, or of another type
        wrote = f"install the one that wrote it ({manifest['versions'].get('rebapl')})"
        if method not in METHODS:
            wrote = "install the package or import the module that registers this method"
        raise UserError(
            f"{path} cannot be used by this version of rebapl ({error}): {wrote}, or train the posterior again"
        ) from error
    about["method_settings"] = learner.config.plain()
    weights = torch.tensor(manifest["weights"])
    stacked = _read_samples(samples, learner, len(weights), method)
    threshold = read_threshold(manifest["threshold"], path)
    conformal = read_conformal(manifest.get("conformal"), path)
    return Parts(learner, stacked, weights, about, threshold, read_earlier_weights(manifest, path), conformal)


def _read_samples(path: Path, learner: Learner, count: int, method: str) -> dict[str, Tensor]:
    """Read the stacks of `count` samples. They must be finite and fit the learner's parameters."""
    try:
        # Cloned, so that they lie in memory as those saved did: where a tensor begins decides how sums are rounded.
        stacked = {name: stack.clone() for name, stack in load_file(path).items()}
    except SafetensorError as error:
        raise UserError(f"{path} cannot be read ({error}): train the posterior again") from error
    expected = {name: (count, *value.shape) for name, value in learner.named_parameters()}
    found = {name: tuple(value.shape) for name, value in stacked.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{path} does not hold {count} samples of method '{method}': '{name}' has shape "
                f"{found.get(name, 'none')} and should have {expected.get(name, 'none')}; train the posterior again"
            )
        if stacked[name].dtype != torch.float32 or not all_finite(stacked[name]):
            raise UserError(
                f"{path} is damaged: '{name}' is not float32 or holds numbers that are not finite; train the "
                "posterior again"
            )
    return stacked
