"""Reading a posterior from its folder, from the folder of a run, or from the Hugging Face hub."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rebapl.backbones import Dtype, DualEncoder, load_backbone
from rebapl.backbones.hub import snapshot
from rebapl.backbones.model import all_finite
from rebapl.errors import UserError
from rebapl.files import finish_replacement, sha256
from rebapl.learners import METHODS, Learner, build_learner
from rebapl.posterior.posterior import Posterior
from rebapl.posterior.storage import BANK, CHOICES, INSIDE, MANIFEST, SAMPLES, about_learner, read_manifest

_REMOTE = re.compile(r"hf:/+(.+)")  # one slash is enough: a `Path` has no double slashes


def load_posterior(
    source: Path | str,
    encoder: DualEncoder | str | None = None,
    device: str | torch.device = "cpu",
    dtype: Dtype = "auto",
) -> Posterior:
    """Load a posterior from its folder, from the folder of a run, or from the Hugging Face hub.

    `hf://somebody/digits` is a repository of the hub; `@` and a branch, a tag or a commit may follow. A posterior that
    is incomplete or does not fit the backbone is refused. The backbone is loaded by the name in the manifest, on
    `device`, and computes in `dtype` (`auto`: bfloat16 on a GPU that has it, float32 elsewhere). `encoder` is the
    backbone itself, or another name to load it by.
    """
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
    about = about_learner(learner)
    about = {key: entries[key] for key in about} | {"method_settings": about["method_settings"]}
    weights, groups = torch.tensor(manifest.weights), _tensors(samples)
    posterior = Posterior(
        learner,
        _fitted(groups.pop("", {}), learner, len(weights), method, samples),
        weights,
        about,
        earlier_weights=tuple(manifest.earlier_weights),
        bank=groups.pop(BANK, {}),
        **{name: getattr(manifest, name) for name in CHOICES},
    )
    folds = []
    for number in sorted(groups, key=int):
        of_fold, count = built(), len(next(iter(groups[number].values())))
        groups[number].pop("", None)
        stacks = _fitted(groups[number], of_fold, count, method, samples)
        if manifest.conformal is not None:  # its class names may have another order than those of the training
            of_fold = of_fold.bind(manifest.conformal.class_names, manifest.template)
        folds.append(Posterior(of_fold, stacks, torch.full((count,), 1 / count), about))
    return replace(posterior, folds=tuple(folds))


def _find(source: Path | str) -> Path:
    """The folder of a posterior: `source` itself, the folder inside it for a run, or a folder fetched from the hub."""
    if remote := _REMOTE.fullmatch(str(source)):
        return snapshot("posterior", remote[1], [MANIFEST, SAMPLES])
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


def _tensors(path: Path) -> dict[str, dict[str, Tensor]]:
    """The tensors of the file of samples by the part of their names before the colon; "" for the samples themselves."""
    groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
    try:
        for key, stack in load_file(path).items():
            of, _, name = key.rpartition(":")
            # Cloned, so that each tensor is aligned in memory as it was when saved: the alignment decides how sums
            # round.
            groups[of][name] = stack.clone()
    except SafetensorError as error:
        raise UserError(f"{path} cannot be read ({error}): train the posterior again") from error
    return groups


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
