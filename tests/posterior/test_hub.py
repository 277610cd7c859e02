"""A posterior on its way to the hub and back: only the calls that would go through the network are replaced."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from huggingface_hub import HfApi, ModelCard, constants
from huggingface_hub.errors import LocalTokenNotFoundError
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.posterior import Posterior, load_posterior
from rebapl.posterior.hub import write_for_hub

COMMITS = [digit * 40 for digit in "ab"]
SCORES = {"test": {"accuracy": 81.25, "nll": 0.5, "ece": 3.25, "images": 64}}


class Hub:
    """A hub that cannot be reached; its repositories are those in the local cache."""

    def __init__(self, cache: Path) -> None:
        self.cache, self.private = cache, {}
        self.uploads = 0

    def create_repo(self, repository: str, *, private: bool, exist_ok: bool) -> None:
        assert exist_ok
        self.private.setdefault(repository, private)

    def model_info(self, repository: str, **asked: object) -> Any:
        if "timeout" in asked:
            raise OSError("the network is unreachable")
        return SimpleNamespace(private=self.private[repository])

    def upload_folder(self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], commit_message: str) -> Any:
        commit = COMMITS[self.uploads]
        self.uploads += 1
        repository = self.cache / f"models--{repo_id.replace('/', '--')}"
        shutil.copytree(folder_path, repository / "snapshots" / commit)
        assert {path.name for path in folder_path.iterdir()} <= set(allow_patterns)
        assert commit_message
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs/main").write_text(commit)
        return SimpleNamespace(oid=commit)


@pytest.fixture
def hub(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    there = Hub(hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("create_repo", "model_info", "upload_folder"):
        monkeypatch.setattr(HfApi, name, (lambda call: lambda _, *a, **k: call(*a, **k))(getattr(there, name)))
    return there


def test_what_is_pushed_is_read_back_by_its_revision(
    make: Callable[..., Posterior], encoder: DualEncoder, views: Tensor, hub: Hub
) -> None:
    posteriors = [make("coop"), make("maple", 2)]
    commits = [each.push_to_hub("somebody/digits", backbone="somebody/clip") for each in posteriors]
    assert commits == COMMITS
    for commit, posterior in zip(commits, posteriors, strict=True):
        loaded = load_posterior(f"hf://somebody/digits@{commit}", encoder)
        assert np.array_equal(
            loaded.predict(views).probabilities.numpy(), posterior.predict(views).probabilities.numpy()
        )
    for newest in ("hf://somebody/digits", "hf://somebody/digits@main"):
        assert np.array_equal(
            load_posterior(newest, encoder).predict(views).probabilities.numpy(),
            posteriors[1].predict(views).probabilities.numpy(),
        )
    manifest = hub.cache / "models--somebody--digits/snapshots" / COMMITS[0] / "posterior.json"
    assert '"name": "somebody/clip"' in manifest.read_text()


def test_the_card_says_what_people_and_the_hub_need(make: Callable[..., Posterior], tmp_path: Path) -> None:
    posterior = make("coop")
    about = {"scores": SCORES, "facts": {"images per class": 16}, "licence": "apache-2.0", "backbone": "somebody/clip"}
    folder = write_for_hub(posterior, tmp_path / "p", "somebody/digits", **about)
    card = ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.base_model, card.data.library_name) == (
        "apache-2.0",
        "somebody/clip",
        "rebapl",
    )
    assert card.data.pipeline_tag == "image-classification"
    found = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert found == {"accuracy": 81.25, "nll": 0.5, "ece": 3.25}
    for said in (
        "# digits",
        "This is a Bayesian posterior",
        "3 samples of the parameters that the method `coop`",
        "Predictions are averaged over the samples",
        'load_posterior("hf://somebody/digits")',
        "| images per class | 16 |",
        "    big old tree\n",
        "| test part | images | accuracy ↑ | NLL ↓ | ECE ↓ |",
        "| test | 64 | 81.25 | 0.500 | 3.2 |",
        "Accuracy and ECE are in percent",
        "It always answers with one of the class names",
        "one seed",
        "`apache-2.0`.",
    ):
        assert said in card.text or said in card.content, said


def test_a_card_without_scores_and_licence_says_so(make: Callable[..., Posterior], tmp_path: Path) -> None:
    card = ModelCard.load(write_for_hub(make("coop", 1), tmp_path / "p", "a/b", backbone="mini") / "README.md")
    assert card.data.license is None
    assert card.data.base_model is None
    for said in ("It was not scored.", "has not chosen a licence", "one sample, so there is no uncertainty"):
        assert said in card.text
    assert "1 sample of the parameters that the method `coop`" in card.text
    assert "averaged over the samples" not in card.text
    assert "Bayesian" not in card.text


def test_what_nobody_could_use_is_refused_before_anything_is_sent(make: Callable[..., Posterior], hub: Hub) -> None:
    with pytest.raises(UserError, match="'digits' is not the name of a repository: write somebody/name"):
        make("coop").push_to_hub("digits")
    with pytest.raises(UserError, match="others cannot load the backbone 'small': give the hub id"):
        make("coop").push_to_hub("somebody/digits")
    assert hub.private == {}


def test_private_is_never_sent_to_a_public_repository(make: Callable[..., Posterior], hub: Hub) -> None:
    make("coop").push_to_hub("somebody/open", backbone="mini")
    with pytest.raises(UserError, match=r"^'somebody/open' is there already and is public"):
        make("coop").push_to_hub("somebody/open", backbone="mini", private=True)
    assert hub.uploads == 1
    make("coop").push_to_hub("somebody/closed", backbone="mini", private=True)
    assert hub.private == {"somebody/open": False, "somebody/closed": True}


@pytest.mark.usefixtures("hub")
def test_without_a_token_one_line_says_what_to_do(
    make: Callable[..., Posterior], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LocalTokenNotFoundError("Token is required\nbut no token found.")

    monkeypatch.setattr(HfApi, "create_repo", refuse)
    with pytest.raises(UserError, match=r"nothing could be uploaded to 'somebody/digits'.*hf auth login") as raised:
        make("coop").push_to_hub("somebody/digits", backbone="mini")
    assert len(str(raised.value).splitlines()) == 1
