"""Export of a posterior to programs that do not use rebapl. The ending of the file decides its format.

`.safetensors` and `.npy` hold a matrix with an embedding per class, for pipelines that compute

    softmax(logit_scale · image_features @ text_features.T)

with the frozen model. If a temperature was fitted, this logit_scale is divided by it, which is exact for one sample.
For several samples, whose probabilities are averaged first, the file has the temperature and the scale apart. Only
posteriors that predict in this way can be written in these formats; `class_embeddings` checks it. `.onnx` and `.pt2`
hold the whole predictor: the image tower and all samples in one graph.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rebapl import __version__
from rebapl.errors import UserError
from rebapl.files import write_atomically, write_json
from rebapl.posterior.per_sample import encode_classes, points_at, unstacked
from rebapl.posterior.prediction import averaged

if TYPE_CHECKING:
    from rebapl.posterior.posterior import Posterior

TOLERANCE = 1e-4
"""The largest difference allowed between the posterior's cosines and those computed from its class embeddings."""

INPUT, OUTPUTS = "pixels", ("probabilities", "per_sample")
"""Preprocessed images (N, 3, H, W), float32; probabilities of all samples together (N, C) and of each (S, N, C)."""


def write_export(posterior: Posterior, path: Path) -> Path:
    """Write a posterior, with the class names that it is bound to, in the format that the ending of `path` names."""
    check_form(path)
    if posterior.learner.encoder.dtype != torch.float32:
        raise UserError("a posterior is exported in float32: load it on the CPU, or with dtype=torch.float32")
    if posterior.views > 1:
        raise UserError(
            f"this posterior answers from {posterior.views} views of each image, and an exported one sees one: export "
            "posterior.with_views(1), or set the number back with `rebapl evaluate RUN --views 1`"
        )
    FORMS[path.suffix](posterior.to("cpu"), path)
    return path


def class_embeddings(posterior: Posterior) -> Tensor:
    """The text features (S, C, e) of every sample, if its logits are logit_scale · image_features @ text.T + bias.

    This is checked on two images of noise. A posterior that predicts otherwise is refused with a `UserError`.
    """
    encoder, stream = posterior.learner.encoder, torch.Generator().manual_seed(0)
    side = encoder.preprocessing.crop
    views = torch.randint(256, (2, 3, side, side), dtype=torch.uint8, generator=stream)
    with torch.no_grad():
        image = encoder.image_features(encoder.preprocessing.normalize(views))
    logits, expected = posterior.sample_logits(views), torch.empty(0)
    try:
        (text,) = posterior.passes.clouds(views, "text")
        expected = encoder.logits(image, text)
    except (UserError, RuntimeError):  # the method has no text features of its own, or different ones for each image
        pass
    if expected.shape != logits.shape or bool((expected - logits).abs().max() > TOLERANCE * encoder.logit_scale):
        raise UserError(
            f"a posterior of '{posterior.learner.method}' with its settings is no matrix of class embeddings: it also "
            "changes how images are seen, has other texts for every image, adds something to the products with them, "
            "or averages over several texts. Write it as .onnx or .pt2; coop, proda, zero-shot, linear and lp++ can be "
            "written as .safetensors or .npy"
        )
    return text


def check_form(path: Path) -> None:
    """Refuse a file whose ending is not in `FORMS`, and a format that needs a package that is not installed."""
    if path.suffix not in FORMS:
        raise UserError(f"{path}: the ending says what is written, and it is one of {', '.join(FORMS)}")
    if path.suffix == ".onnx" and not all(find_spec(name) for name in ("onnx", "onnxscript")):
        raise UserError(f"{path}: to write .onnx, onnx and onnxscript are needed: pip install 'rebapl[onnx]'")


class Predictor(nn.Module):
    """A posterior as one module: preprocessed images (N, 3, H, W) → the probabilities (N, C) and (S, N, C).

    The texts are encoded here, once. In `forward`, the text tower runs only where a text depends on the image.
    """

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.learner, self.average = posterior.learner, posterior.average
        self.model = posterior.learner.encoder.model  # registers the backbone's weights as parameters of this module
        self.samples, self.weights = unstacked(posterior.samples, len(posterior)), posterior.weights
        self.temperature = posterior.temperature_for()
        with torch.no_grad():
            self.classes = encode_classes(self.learner, self.samples)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        frozen = self.learner.frozen(pixels)
        logits = [
            points_at(self.learner, sample, frozen, classes, ("logits",))["logits"]
            for sample, classes in zip(self.samples, self.classes, strict=True)
        ]
        return averaged(torch.stack(logits), self.weights, self.average, self.temperature)


def _write_safetensors(posterior: Posterior, path: Path) -> None:
    from safetensors.torch import save

    samples = class_embeddings(posterior)
    tensors = {
        "text_features": _mean(samples, posterior.weights),
        "sample_text_features": samples.contiguous(),
        "weights": posterior.weights,
        **{name: torch.tensor(value) for name, value in _scales(posterior).items()},
    }
    write_atomically(path, save(tensors, _as_texts(_about(posterior))))


def _write_npy(posterior: Posterior, path: Path) -> None:
    content = io.BytesIO()
    np.save(content, _mean(class_embeddings(posterior), posterior.weights).numpy())
    write_atomically(path, content.getvalue())
    write_json(path.with_suffix(".json"), {**_about(posterior), **_scales(posterior)})


def _scales(posterior: Posterior) -> dict[str, float]:
    """The numbers by which products of features become logits and probabilities.

    `logit_scale`, at the temperature, is for one matrix; `sample_logit_scale` and `temperature` are for all samples.
    """
    encoder, temperature = posterior.learner.encoder, posterior.temperature_for()
    return {
        "logit_scale": encoder.logit_scale / temperature,
        "sample_logit_scale": encoder.logit_scale,
        "logit_bias": encoder.logit_bias,
        "temperature": temperature,
    }


def _write_pt2(posterior: Posterior, path: Path) -> None:
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(_program(posterior), content, extra_files=_as_texts(_about(posterior)))
    write_atomically(path, content.getvalue())


def _write_onnx(posterior: Posterior, path: Path) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports missing packages that are not needed here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the exporter's own code
        written = torch.onnx.export(_program(posterior), dynamo=True, output_names=list(OUTPUTS), verbose=False)
    assert written is not None
    written.model.metadata_props.update(_as_texts(_about(posterior)))
    write_atomically(path, written.model_proto.SerializeToString())


def _program(posterior: Posterior) -> torch.export.ExportedProgram:
    """The graph of the predictor, for any number of images."""
    side = posterior.learner.encoder.preprocessing.crop
    shapes = {INPUT: {0: torch.export.Dim("images")}}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                Predictor(posterior).eval(), (torch.zeros(2, 3, side, side),), dynamic_shapes=shapes
            )
    except Exception as error:  # torch raises many kinds of errors when it cannot make a graph
        raise UserError(
            f"a posterior of '{posterior.learner.method}' with its settings is no graph for any number of images "
            f"({type(error).__name__}). Methods that have other texts for every image cannot be exported: cocoop, app, "
            "vamp, and bpl with conditional=true"
        ) from error


def _mean(samples: Tensor, weights: Tensor) -> Tensor:
    """The direction of the weighted mean (C, e) of text features (S, C, e), with the weighted mean of their lengths.

    Text features of prompts have length 1. A linear head has its weight vectors here, which may have any length.
    """
    lengths = torch.einsum("s,sc->c", weights, samples.norm(dim=-1))
    return lengths[:, None] * F.normalize(torch.einsum("s,sce->ce", weights, samples), dim=-1)


def _about(posterior: Posterior) -> dict[str, Any]:
    """The facts that a program needs to use the numbers in the file."""
    learner = posterior.learner
    preprocessing = learner.encoder.preprocessing
    return {
        "class_names": posterior.class_names,
        "method": learner.method,
        "samples": len(posterior),
        "average": posterior.average,
        "temperature": posterior.temperature_for(),
        "backbone_sha256": learner.encoder.fingerprint,
        "preprocessing": {**vars(preprocessing), "resample": int(preprocessing.resample)},
        "rebapl": __version__,
    }


def _as_texts(about: dict[str, Any]) -> dict[str, str]:
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}


FORMS: dict[str, Callable[[Posterior, Path], None]] = {
    ".safetensors": _write_safetensors,
    ".npy": _write_npy,
    ".onnx": _write_onnx,
    ".pt2": _write_pt2,
}
"""The functions that write a posterior, by the ending of the file."""
