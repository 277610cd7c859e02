from pathlib import Path

import checkpoints
import pytest
from transformers.utils import logging

logging.disable_progress_bar()


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="session")
def old_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the hub has it: vocab.json and merges.txt, and a config that says eos_token_id = 2."""
    return checkpoints.write_clip(tmp_path_factory.mktemp("old_clip"), eos_token_id=2, own_tokenizer=True)


@pytest.fixture(scope="session")
def siglip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_siglip(tmp_path_factory.mktemp("siglip"))
