"""The examples in the docstrings run."""

import doctest
import importlib
import pkgutil

import pytest

import rebapl.repulsion

MODULES = [m.name for m in pkgutil.iter_modules(rebapl.repulsion.__path__, "rebapl.repulsion.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    import torch

    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
