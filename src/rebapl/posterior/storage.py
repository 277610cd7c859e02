"""A posterior on disk: a folder with `posterior.json` and `samples.safetensors`, and the one way to load it.

The first file, the manifest, has everything that is needed to use the second: backbone, method, class names, every
setting of the method and of the inference, versions, and the checksums of both files. So if a default changes later, a
posterior still predicts the same. Only learnable parameters are stored, never the backbone, and never as a pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import re
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import AfterValidator, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from rebapl import __version__
from rebapl.backbones import Dtype, DualEncoder, load_backbone
from rebapl.backbones.hub import HUB_SECONDS
from rebapl.backbones.model import all_finite
from rebapl.errors import UserError
from rebapl.files import content_sha256, finish_replacement, folder_written_whole, read_json, sha256, write_json
from rebapl.learners import METHODS, Learner, build_learner
from rebapl.posterior.fitting import EarlierWeights
from rebapl.posterior.prediction import Average, Conformal, Outside, Threshold
from rebapl.posterior.temperature import Temperature
from rebapl.settings import Settings

if TYPE_CHECKING:
    from rebapl.posterior.posterior import Posterior

FORMAT = 2
MANIFEST, SAMPLES = "posterior.json", "samples.safetensors"
BANK = "outside.safetensors"
"""The tensors that "none of these" compares images with; the file exists only if its score uses image features."""
FOLDS = "folds.safetensors"
"""The samples of the posterior's folds. The file exists only if prediction sets compare images by folds."""
INSIDE = "posterior"
"""The name of the posterior's folder inside the folder of a run."""
ESTIMATE = "estimate"
"""The name of the folder inside a run's folder in which `rebapl learn` measures the run. While it exists, nothing is
fitted yet."""

_REMOTE = re.compile(r"hf:/+([^@]+)(?:@(.+))?")  # one slash is enough: a `Path` has no double slashes

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
    """The content of `posterior.json`."""

    model_config = ConfigDict(extra="ignore")
    backbone: Backbone
    weights: Annotated[list[float], AfterValidator(check_weights)]
    earlier_weights: list[EarlierWeights] = []
    threshold: Threshold | None
    conformal: Conformal | None = None
    temperature: Temperature | None = None
    outside: Outside | None = None
    outside_sha256: str | None = None
    folds_sha256: str | None = None
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
    samples = {name: stack.detach().cpu().contiguous() for name, stack in posterior.samples.items()}
    for name, stack in samples.items():
        if not all_finite(stack):
            raise UserError(f"samples of '{name}' hold numbers that are not finite: nothing is saved")
    further = _further_files(posterior)
    same = all(_content(folder / name) == further.get(name) for name in (BANK, FOLDS))
    old = _content(folder / SAMPLES) if same else None
    if old is not None and old == save(samples):
        write_json(folder / MANIFEST, _manifest(posterior, sha256(folder / SAMPLES), backbone))
        return folder
    with folder_written_whole(folder) as temporary:
        path = temporary / SAMPLES
        try:
            save_file(samples, path)  # straight to the disk, without a copy of all samples in memory
        except SafetensorError:  # hides the system's error, such as a full disk; writing the bytes raises it as OSError
            path.write_bytes(save(samples))
        path.chmod(0o644)  # safetensors makes the file readable for its owner alone
        for name, content in further.items():
            (temporary / name).write_bytes(content)
        write_json(temporary / MANIFEST, _manifest(posterior, sha256(path), backbone))
    return folder


def read_posterior(
    source: Path | str, encoder: DualEncoder | str | None, device: str | torch.device, dtype: Dtype
) -> dict[str, Any]:
    """The arguments of `Posterior` for a stored posterior; see `load_posterior`."""
    folder = _find(source)
    manifest = read_manifest(folder)
    path, samples = folder / MANIFEST, folder / SAMPLES
    if not samples.is_file():
        raise UserError(f"{folder} is not a whole posterior: it has no {SAMPLES}; train it again")
    if sha256(samples) != manifest.samples_sha256:
        raise UserError(f"{samples} is not the file that {MANIFEST} describes (truncated or edited): train it again")
    name, expected = manifest.backbone.name, manifest.backbone.sha256
    if not isinstance(encoder, DualEncoder):
        encoder = load_backbone(encoder or name, device, dtype)
    if encoder.fingerprint != expected:
        raise UserError(
            f"{folder} was trained on backbone '{name}' ({expected[:12]}…), and '{encoder.name}' is another "
            f"({encoder.fingerprint[:12]}…): give the backbone it was trained on"
        )
    method, entries = manifest.method, manifest.model_dump(exclude_unset=True)

    def built() -> Learner:
        names, template = manifest.class_names, manifest.template
        return build_learner(method, encoder, names, template, None, manifest.method_settings).eval()

    try:
        learner = built()
    except (UserError, TypeError) as error:  # settings that this version does not have, or of another type
        advice = f"install the one that wrote it ({manifest.versions.get('rebapl')})"
        if method not in METHODS:
            advice = "install the package or import the module that registers this method"
        raise UserError(
            f"{path} cannot be used by this version of rebapl ({error}): {advice}, or train the posterior again"
        ) from error
    weights, about = torch.tensor(manifest.weights), about_learner(learner)
    stacks = _fitted(_tensors(samples), learner, len(weights), method, samples)
    about = {key: entries[key] for key in about} | {"method_settings": about["method_settings"]}
    folds: dict[str, dict[str, Tensor]] = {}
    for name, stack in _further_tensors(folder / FOLDS, manifest.folds_sha256, "prediction sets").items():
        number, _, parameter = name.partition(":")
        folds.setdefault(number, {})[parameter] = stack
    fold_arguments = []
    for number in sorted(folds, key=int):
        of_fold, count = built(), len(next(iter(folds[number].values())))
        folds[number].pop("", None)
        fold_stacks = _fitted(folds[number], of_fold, count, method, folder / FOLDS)
        if manifest.conformal is not None:  # its class names may have another order than those of the training
            of_fold = of_fold.bind(manifest.conformal.class_names, manifest.template)
        uniform = torch.full((count,), 1 / count)
        fold_arguments.append({"learner": of_fold, "samples": fold_stacks, "weights": uniform, "about": about})
    return {
        "learner": learner,
        "samples": stacks,
        "weights": weights,
        "about": about,
        "earlier_weights": tuple(manifest.earlier_weights),
        "bank": _further_tensors(folder / BANK, manifest.outside_sha256, "'none of these'"),
        "folds": fold_arguments,
        **{name: getattr(manifest, name) for name in CHOICES},
    }


def _find(source: Path | str) -> Path:
    """The folder of a posterior: `source` itself, the folder inside it for a run, or a folder fetched from the hub."""
    if remote := _REMOTE.fullmatch(str(source)):
        return _fetch(*remote.groups())
    folder = Path(source).expanduser()
    if folder.is_file():
        raise UserError(f"{folder} is a file: give the folder of a posterior, which holds {MANIFEST} and {SAMPLES}")
    for candidate in (folder, folder / INSIDE):
        finish_replacement(candidate)
    if (folder / INSIDE).is_dir():
        return folder / INSIDE
    if not folder.exists():
        raise UserError(f"{source}: there is no such run or posterior")
    if not (folder / MANIFEST).exists():
        raise UserError(
            f"{source} is not a posterior: it has no {MANIFEST}. If it is a run, it is not trained yet: give the "
            "command that began it again, and it goes on where it was"
        )
    return folder


def _fetch(name: str, revision: str | None = None) -> Path:
    """A folder with the files of a posterior in a repository of the hub. `revision` is a branch, a tag or a commit.

    If the hub does not answer, files that were fetched before are used.
    """
    from huggingface_hub import HfApi, snapshot_download

    request: dict[str, Any] = {"revision": revision, "allow_patterns": [MANIFEST, SAMPLES, BANK, FOLDS]}
    try:
        try:  # a quick test of the connection, since `snapshot_download` itself may wait for half a minute
            HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
        except Exception:
            with contextlib.suppress(Exception):
                return Path(snapshot_download(name, local_files_only=True, **request))
            raise
        # The requested revision, not the commit it stands for: the cache finds the files by it when the hub is away.
        return Path(snapshot_download(name, **request))
    except Exception as error:  # the library raises many kinds of errors for the connection, the hub and the cache
        part = "" if revision is None else f"revision '{revision}' of "
        raise UserError(
            f"posterior '{name}': {part}it could not be fetched from the hub, and was not fetched before "
            f"({one_line(error)})"
        ) from error


def one_line(error: Exception) -> str:
    """An error of the hub's library, whose message may have many lines, as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


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
        return Manifest(**content)
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
    """The manifest of a posterior, with the checksums of the other files and of itself."""
    learner = posterior.learner
    if learner.method is None:
        raise UserError(
            f"{type(learner).__name__} is not registered, so nobody could find it when the posterior is read: decorate "
            'the class with @rebapl.register("NAME", SettingsClass) and make the posterior again'
        )
    defaults = about_learner(learner)
    about = {**defaults, **posterior.about, "method": learner.method}
    about["method_settings"] = METHODS.find(learner.method).settings(about["method_settings"]).plain()
    chosen = {
        name: asdict(choice) if (choice := getattr(posterior, name)) is not None and _keeps_choices(posterior) else None
        for name in CHOICES
    }
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in _further_files(posterior).items()}
    packages = ("torch", "transformers", "safetensors")
    content = {
        "format": FORMAT,
        "backbone": {"name": backbone or learner.encoder.name, "sha256": learner.encoder.fingerprint},
        "weights": posterior.weights.tolist(),
        "earlier_weights": [asdict(each) for each in posterior.earlier_weights],
        **chosen,
        "outside_sha256": checksums.get(BANK),
        "folds_sha256": checksums.get(FOLDS),
        **{key: about[key] for key in defaults},
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
    return not learner.transfer and learner.template == posterior.about.get("template", learner.template)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _further_files(posterior: Posterior) -> dict[str, bytes]:
    """The contents of `BANK` and `FOLDS`, by name, with which "none of these" and prediction sets compare images.

    In `FOLDS`, a stack has the name `NUMBER:PARAMETER`; the samples of a fold have equal weights. A fold of a method
    without parameters has its weights as `NUMBER:`, so that it counts.
    """
    if not _keeps_choices(posterior):
        return {}
    numbered = enumerate(posterior.folds)
    of_folds = ((number, fold.samples or {"": fold.weights}) for number, fold in numbered)
    folds = {f"{number}:{name}": stack for number, stacks in of_folds for name, stack in stacks.items()}
    if any(not torch.equal(fold.weights, torch.full_like(fold.weights, 1 / len(fold))) for fold in posterior.folds):
        raise UserError("the samples of a fold must have equal weights to be saved: use its with_uniform_weights()")
    return {
        name: save({key: stack.detach().cpu().contiguous() for key, stack in tensors.items()})
        for name, tensors in {BANK: posterior.bank, FOLDS: folds}.items()
        if tensors
    }


def _further_tensors(path: Path, checksum: str | None, what: str) -> dict[str, Tensor]:
    """The tensors of `BANK` or `FOLDS`, which must have the manifest's checksum; empty if the manifest has none."""
    if checksum is None:
        return {}
    if not path.is_file() or sha256(path) != checksum:
        raise UserError(f"{path} is not there, or is not the file that {MANIFEST} describes: fit {what} again")
    return _tensors(path)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        # Cloned, so that each tensor is aligned in memory as it was when saved: the alignment decides how sums round.
        return {name: stack.clone() for name, stack in load_file(path).items()}
    except SafetensorError as error:
        raise UserError(f"{path} cannot be read ({error}): train the posterior again") from error


def _fitted(stacked: dict[str, Tensor], learner: Learner, count: int, method: str, path: Path) -> dict[str, Tensor]:
    """The stacks of `count` samples, which must be finite and fit the learner's parameters.

    The learner takes the shapes of the samples, and the values of the first.
    """
    learner.shape_like({name: stack.shape[1:] for name, stack in stacked.items()})
    expected = {name: (count, *value.shape) for name, value in learner.named_parameters()}
    for name in sorted(expected.keys() | stacked.keys()):
        stack = stacked.get(name, torch.empty(0))
        if tuple(stack.shape) != expected.get(name) or stack.dtype != torch.float32 or not all_finite(stack):
            raise UserError(
                f"{path} does not hold {count} samples of method '{method}': '{name}' has shape {tuple(stack.shape)}, "
                f"and finite numbers in float32 of shape {expected.get(name, 'none')} are needed; train the posterior "
                "again"
            )
    learner.load_state_dict({name: stack[0] for name, stack in stacked.items()}, strict=False)
    return stacked
