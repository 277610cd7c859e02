"""Data sets from outside the package are found by name."""

from dataclasses import replace

import pytest

from rebapl.data.catalogue import DATASETS, is_own, load_dataset, register_dataset
from rebapl.data.dataset import Dataset
from rebapl.data.task import load_task
from rebapl.errors import UserError


def mine() -> Dataset:
    return replace(load_dataset("digits"), name="mine")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "known", dict(DATASETS.known))


def test_a_registered_data_set_is_found_by_its_name() -> None:
    with pytest.raises(UserError, match="unknown data set 'mine'"):
        load_dataset("mine")
    register_dataset("mine", mine)
    register_dataset("mine", mine)  # as when its module is imported twice
    assert (load_dataset("mine").name, is_own("mine"), list(DATASETS)[-1]) == ("mine", False, "mine")
    assert load_dataset("mine", template="the {}").template == "the {}"
    assert load_task("mine", shots=1).dataset.name == "mine"
    with pytest.raises(UserError, match="did you mean 'mine'"):
        load_dataset("mime")
    with pytest.raises(UserError, match="is registered: it has no split file"):
        load_dataset("mine", split="other.json")


@pytest.mark.parametrize(
    ("name", "message"),
    [("digits", "known already"), ("eurosat", "known already"), ("mine", "known already"), ("a/b", "must not")],
)
def test_a_name_that_is_taken_or_reads_as_a_path_is_refused(name: str, message: str) -> None:
    register_dataset("mine", mine)
    with pytest.raises(UserError, match=message):
        register_dataset(name, lambda: mine())
