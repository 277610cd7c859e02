"""What all tests share: one thread per process, the reference material where there is some, a skip without a GPU."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start; read when torch is imported
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of them would compile the whole package again

import pytest
import torch

from rebapl.backbones import DualEncoder, load_backbone

torch.set_num_threads(1)

LONGEST = {"test_ray_engine.py", "test_slurm_engine.py", "test_installed_package.py"}
"""These begin, so that no process is left alone with one of them at the end."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Every test begins with one thread, whatever the test before it left: sums split otherwise have other digits."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _signals_arrive() -> Iterator[None]:
    """Ctrl-C and SIGHUP act in every test, also where whatever began the tests lets them be ignored (nohup, &)."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    ignored = [number for number in handlers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, handlers[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def _shared_folder() -> Path:
    return Path(os.environ.get("REBAPL_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material; tests that need it skip where it is absent."""
    folder = _shared_folder()
    if not folder.is_dir():
        pytest.skip("needs the reference material in ../shared (or $REBAPL_SHARED)")
    return folder


@pytest.fixture(scope="session")
def mini() -> DualEncoder:
    """The embedded backbone on the CPU."""
    return load_backbone("mini")


@pytest.fixture(scope="session")
def encoder(mini: DualEncoder) -> DualEncoder:
    """The backbone of tests for which any will do. A folder of tests may have another one."""
    return mini


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of three narrow layers with random weights: it trains many times as fast as `mini`, and learns nothing.

    It is for tests of what is done with a training, whatever comes out of it.
    """
    from checkpoints import TINY_VISION, write_clip  # late: it imports transformers, which takes seconds

    folder = tmp_path_factory.mktemp("backbone") / "nano"
    return write_clip(folder, vision={**TINY_VISION, "patch_size": 16}, width=64)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and nobody to connect to."""
    from huggingface_hub import constants

    def nobody(*_: object, **__: object) -> None:
        raise OSError("the network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
