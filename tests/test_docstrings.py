"""Every example in a docstring of the package, its tools and its benchmarks runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import rebapl

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
GPU_ONLY = {"rebapl.repulsion.assignment_kernel"}  # needs Triton, which comes with PyTorch's CUDA builds
MODULES = sorted({module.name for module in pkgutil.walk_packages(rebapl.__path__, "rebapl.")} - GPU_ONLY)


@pytest.mark.parametrize("name", [*MODULES, "rooms", "site_hooks", "speed", "speed_page"])
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"torch": torch}, optionflags=FLAGS)
    assert result.failed == 0
