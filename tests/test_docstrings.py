"""Every example in a docstring of the package runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import rebapl

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
GPU_ONLY = {"rebapl.repulsion.assignment_kernel"}  # needs Triton, which comes with PyTorch's CUDA builds
MODULES = sorted({module.name for module in pkgutil.walk_packages(rebapl.__path__, "rebapl.")} - GPU_ONLY)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"torch": torch}, optionflags=FLAGS)
    assert result.failed == 0


def test_there_are_examples() -> None:
    found = doctest.DocTestFinder()
    count = sum(len(test.examples) for name in MODULES for test in found.find(importlib.import_module(name)))
    assert count > 100
