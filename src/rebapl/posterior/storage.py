"""A posterior on disk: a folder with `posterior.json` and `samples.safetensors`.

The first says what it takes to use the second: backbone, method, class names, settings, versions, checksum. Only
learnable parameters are stored, never the backbone, never a pickle.
"""

from __future__ import annotations

import platform
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file

from rebapl import __version__
from rebapl.backbones import DualEncoder, load_backbone
from rebapl.errors import UserError
from rebapl.files import folder_written_whole, read_json, sha256, write_json
from rebapl.learners import build_learner
from rebapl.posterior.posterior import Posterior

FORMAT = 1
ABOUT = ("method", "method_settings", "inference", "seed", "data", "class_names", "template")
MANIFEST = "posterior.json"
SAMPLES = "samples.safetensors"


def save_posterior(posterior: Posterior, folder: Path | str) -> Path:
    """Write the folder, whole or not at all; an older one in its place is replaced."""
    folder = Path(folder)
    learner = posterior.learner
    with folder_written_whole(folder) as temporary:
        save_file(
            {name: stack.contiguous().cpu() for name, stack in posterior.samples.items()}, temporary / SAMPLES
        )
        manifest = {
            "format": FORMAT,
            "backbone": {"name": learner.encoder.name, "sha256": learner.encoder.fingerprint},
            "weights": posterior.weights.tolist(),
            **{key: posterior.about[key] for key in ABOUT},
            "samples_sha256": sha256(temporary / SAMPLES),
            "versions": {
                "rebapl": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "safetensors": safetensors.__version__,
            },
        }
        write_json(temporary / MANIFEST, manifest)
    return folder


def load_posterior(
    folder: Path | str, encoder: DualEncoder | None = None, device: str | torch.device = "cpu"
) -> Posterior:
    """Read a folder that `save_posterior` wrote, after checking that it is whole and fits the backbone.

    The backbone is loaded by the name in the manifest unless `encoder` is given.
    """
    folder = Path(folder)
    manifest = read_json(folder / MANIFEST, "a posterior")
    if manifest.get("format") != FORMAT:
        raise UserError(
            f"{folder / MANIFEST} has format {manifest.get('format')}, and this version of rebapl reads {FORMAT}: "
            f"install the version that wrote it ({manifest.get('versions', {}).get('rebapl', 'unknown')})"
        )
    samples = folder / SAMPLES
    if not samples.is_file():
        raise UserError(f"{folder} is not a whole posterior: it has no {SAMPLES}; train it again")
    if sha256(samples) != manifest.get("samples_sha256"):
        raise UserError(
            f"{samples} is not the file that {MANIFEST} describes (truncated or edited): train it again"
        )
    try:
        expected = manifest["backbone"]["sha256"]
        encoder = encoder or load_backbone(manifest["backbone"]["name"], device)
        if encoder.fingerprint != expected:
            raise UserError(
                f"{folder} was trained on backbone '{manifest['backbone']['name']}' ({expected[:12]}…), and "
                f"'{encoder.name}' is another ({encoder.fingerprint[:12]}…): give the backbone it was trained on"
            )
        learner = build_learner(
            manifest["method"],
            encoder,
            manifest["class_names"],
            manifest["template"],
            torch.Generator(),
            manifest["method_settings"],
        )
        weights = torch.tensor(manifest["weights"])
        about = {key: manifest[key] for key in ABOUT}
    except KeyError as error:
        raise UserError(
            f"{folder / MANIFEST} has no {error}: it was edited; train the posterior again"
        ) from error
    stacked = load_file(samples)
    expected_shapes = {name: (len(weights), *value.shape) for name, value in learner.named_parameters()}
    if {name: tuple(value.shape) for name, value in stacked.items()} != expected_shapes:
        raise UserError(
            f"{samples} does not hold the parameters of method '{manifest['method']}': train it again"
        )
    return Posterior(learner.eval(), stacked, weights, about)
