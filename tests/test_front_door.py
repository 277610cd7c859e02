"""`import rebapl`: the public names, and how quickly."""

import subprocess
import sys

import pytest

import rebapl

PUBLIC = """
    Learner register Recipe Settings preset Inference Chain SGHMC SGLD CyclicalSchedule Repulsion register_distance
    register_preset register_dataset register_tracker fit evaluate load_task load_backbone Posterior load_posterior
    save_posterior
""".split()


def test_dir_shows_the_public_names() -> None:
    assert dir(rebapl) == sorted([*PUBLIC, "__version__"])
    assert sorted(rebapl.__all__) == dir(rebapl)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_has_documentation(name: str) -> None:
    thing = getattr(rebapl, name)
    assert thing.__doc__
    assert thing.__name__ == name
    assert f"`{name}`" in (rebapl.__doc__ or ""), "the package's own documentation names it"


def test_others_are_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'rebapl' has no attribute 'posteriors'"):
        _ = rebapl.posteriors


def test_importing_it_loads_nothing_large() -> None:
    program = "import sys, rebapl; dir(rebapl); print([m for m in ('torch', 'pydantic', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_prediction_waits_for_no_part_of_scipy() -> None:
    """They take half as long to import as torch, and are imported where they are needed."""
    program = "import sys, rebapl.runs.run, rebapl.runs.shards, rebapl.repulsion, rebapl.reports.results; "
    program += "print([m for m in ('special', 'optimize', 'stats', 'ndimage') if f'scipy.{m}' in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
