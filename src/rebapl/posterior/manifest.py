"""The file `posterior.json`: what is needed to use `samples.safetensors`, with checksums of that file and of itself.

Format 2 holds every setting of the method and of the inference. So if a default changes later, a posterior still
predicts the same. Format 1, of earlier versions, held only the method's settings that differed from its defaults.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rebapl import __version__
from rebapl.errors import UserError
from rebapl.learners import Learner, resolve_method
from rebapl.posterior.prediction import UNCERTAINTIES, Conformal, Threshold, check_average, check_weights

if TYPE_CHECKING:
    from rebapl.posterior.posterior import Posterior

FORMAT = 2
EARLIER_FORMATS = (1,)
ABOUT = ("method", "method_settings", "inference", "crop_scale", "seed", "data", "class_names", "template")
MANIFEST = "posterior.json"
SAMPLES = "samples.safetensors"

_TYPES: dict[str, tuple[type, ...]] = {
    "backbone": (dict,),
    "weights": (list,),
    "threshold": (dict, type(None)),
    "method": (str,),
    "method_settings": (dict,),
    "inference": (dict,),
    "crop_scale": (list, type(None)),
    "seed": (int, type(None)),
    "data": (str, type(None)),
    "class_names": (list,),
    "template": (str,),
    "samples_sha256": (str,),
    "versions": (dict,),
}
_NAMES = {dict: "an object", list: "a list", str: "text", int: "a whole number", type(None): "null"}


@dataclass(frozen=True)
class EarlierWeights:
    """Sample weights that others have replaced: by what, and when (UTC, ISO 8601)."""

    weights: tuple[float, ...]
    replaced_by: str
    replaced_at: str


def about_learner(learner: Learner) -> dict[str, Any]:
    """What a learner says of itself, for a posterior whose samples were made by hand."""
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


def build_manifest(posterior: Posterior, backbone: str | None = None) -> dict[str, Any]:
    """The content of `posterior.json`, without the checksums that `signed` fills in.

    `backbone` replaces the name of the backbone, if it is given.
    """
    learner, threshold, conformal = posterior.learner, posterior.threshold, posterior.conformal
    if learner.method is None:
        raise UserError(
            f"{type(learner).__name__} is not registered, so nobody could find it when the posterior is read: decorate "
            'the class with @rebapl.register("NAME", SettingsClass) and make the posterior again'
        )
    about = {**about_learner(learner), **posterior.about, "method": learner.method}
    about["method_settings"] = resolve_method(learner.method, about["method_settings"]).plain()
    if learner.transfer or learner.template != about["template"]:
        threshold = conformal = None  # chosen for texts that are not those they would be read back with
    return {
        "format": FORMAT,
        "backbone": {"name": backbone or learner.encoder.name, "sha256": learner.encoder.fingerprint},
        "weights": posterior.weights.tolist(),
        "earlier_weights": [asdict(each) for each in posterior.earlier_weights],
        "threshold": None if threshold is None else asdict(threshold),
        "conformal": None if conformal is None else asdict(conformal),
        **{key: about[key] for key in ABOUT},
        "samples_sha256": "",
        "versions": {
            "rebapl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "safetensors": version("safetensors"),
        },
    }


def signed(manifest: Mapping[str, Any], samples_sha256: str) -> dict[str, Any]:
    """A manifest with the checksum of the samples' file, and that of itself."""
    whole = {**manifest, "samples_sha256": samples_sha256}
    return {**whole, "sha256": content_sha256(whole)}


def content_sha256(manifest: Mapping[str, Any]) -> str:
    """The checksum of everything in a manifest but the checksum itself. The layout of the file does not matter."""
    rest = json.loads(json.dumps({key: value for key, value in manifest.items() if key != "sha256"}))
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def check_manifest(manifest: Mapping[str, Any], path: Path) -> None:
    """Refuse a manifest that has another format, was edited, or has anything missing or of the wrong type."""
    _check_format(manifest, path)
    if content_sha256(manifest) != manifest.get("sha256"):
        raise UserError(
            f"{path} is not as it was written (its checksum differs): it was edited or damaged; restore the file, or "
            "train the posterior again"
        )
    for key, types in _TYPES.items():
        if key == "crop_scale" and manifest["format"] == 1:
            continue
        if key not in manifest:
            raise _broken(path, f"it has no '{key}'")
        if not isinstance(manifest[key], types) or isinstance(manifest[key], bool):
            raise _broken(path, f"'{key}' is {manifest[key]!r} and not {' or '.join(_NAMES[kind] for kind in types)}")
    for key in ("name", "sha256"):
        if not isinstance(manifest["backbone"].get(key), str):
            raise _broken(path, f"'backbone' has no {key}")
    for key, kinds in (("class_names", str), ("weights", float)):
        if not manifest[key] or not all(isinstance(value, kinds) for value in manifest[key]):
            raise _broken(path, f"'{key}' is {manifest[key]!r}")
    try:
        check_weights(torch.tensor(manifest["weights"], dtype=torch.float32))
        check_average(manifest["inference"].get("average", "probabilities"))
    except UserError as error:
        raise _broken(path, str(error)) from error


def read_threshold(given: Mapping[str, Any] | None, path: Path) -> Threshold | None:
    """The threshold of a manifest, if one was chosen."""
    if given is None:
        return None
    try:
        threshold = Threshold(**{**given, "class_names": tuple(given["class_names"])})
        numbers = (threshold.value, threshold.risk, threshold.coverage, threshold.images)
        if threshold.by not in UNCERTAINTIES or not all(isinstance(number, int | float) for number in numbers):
            raise TypeError(f"by {threshold.by!r}, numbers {numbers}")
    except (TypeError, KeyError) as error:
        raise _broken(path, f"'threshold' cannot be used ({error})") from error
    return threshold


def read_conformal(given: Mapping[str, Any] | None, path: Path) -> Conformal | None:
    """The prediction sets of a manifest, if some were fitted; manifests of earlier versions have none."""
    if given is None:
        return None
    try:
        conformal = Conformal(**{**given, "class_names": tuple(given["class_names"])})
        numbers = (conformal.level, conformal.quantile, conformal.images, conformal.size)
        if not all(isinstance(number, int | float) for number in numbers):
            raise TypeError(f"numbers {numbers}")
    except (TypeError, KeyError) as error:
        raise _broken(path, f"'conformal' cannot be used ({error})") from error
    return conformal


def read_earlier_weights(manifest: Mapping[str, Any], path: Path) -> tuple[EarlierWeights, ...]:
    """The weights that were replaced, which manifests of earlier versions did not keep."""
    try:
        given = manifest.get("earlier_weights", [])
        return tuple(EarlierWeights(**{**each, "weights": tuple(each["weights"])}) for each in given)
    except (TypeError, KeyError) as error:
        raise _broken(path, f"'earlier_weights' cannot be used ({error})") from error


def _check_format(manifest: Mapping[str, Any], path: Path) -> None:
    given = manifest.get("format")
    if given in (FORMAT, *EARLIER_FORMATS) and not isinstance(given, bool):
        return
    versions = manifest.get("versions")
    writer = versions.get("rebapl", "unknown") if isinstance(versions, dict) else "unknown"
    if isinstance(given, int) and given > FORMAT:
        raise UserError(
            f"{path} has format {given}, and this version of rebapl reads {FORMAT}: it was written by a newer one "
            f"({writer}); install that"
        )
    raise UserError(
        f"{path} has format {given!r}, and this version of rebapl reads {FORMAT}: install the version that wrote it "
        f"({writer}), or train the posterior again"
    )


def _broken(path: Path, what: str) -> UserError:
    return UserError(f"{path} does not describe a posterior: {what}; train the posterior again")
