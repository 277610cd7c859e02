"""The examples in the docstrings run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "experiments.config",
        "experiments.config_file",
        "experiments.environment",
        "experiments.run",
        "experiments.scoring",
        "sampling.presets",
        "yaml_files",
    ],
)
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"rebapl.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
