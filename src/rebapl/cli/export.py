"""`rebapl export`: write a posterior for programs that do not use rebapl."""

from __future__ import annotations

import sys
from pathlib import Path

from rebapl.cli import options
from rebapl.wording import number_of


def export(
    run: options.RunArgument,
    *,
    out: Path,
    classes: str | None = None,
    backbone: str | None = None,
) -> None:
    """Write a run's class embeddings, or the whole predictor with all samples, for other programs.

    Parameters:
        run: Folder of a run or a posterior, or hf://USER/NAME@REVISION on the hub.
        out: File to write. Its ending decides what is written: .safetensors or .npy for the class embeddings of a
            method that learns only text, .onnx or .pt2 (torch.export) for the whole predictor.
    """
    from rebapl.files import refuse_unwritable
    from rebapl.posterior import load_posterior
    from rebapl.posterior.export import check_form, write_export

    check_form(out)
    refuse_unwritable(out)
    names = options.parse_class_names(classes)
    posterior = load_posterior(run, backbone).among(names)
    if out.suffix in (".onnx", ".pt2"):
        samples = number_of(len(posterior), "sample")
        print(f"tracing the whole predictor with {samples}, which may take a minute", file=sys.stderr)
    print(write_export(posterior, out))
