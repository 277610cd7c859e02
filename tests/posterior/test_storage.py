"""A posterior on disk: the same after loading, and refused if anything about it is wrong."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_clip
import torch
from safetensors.torch import load_file, save, save_file

from rebapl.backbones import DualEncoder
from rebapl.errors import UserError
from rebapl.files import content_sha256, sha256
from rebapl.learners import METHODS, build_learner
from rebapl.learners.coop import CoOp
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.posterior.conformal import choose_cross_conformal


@pytest.mark.parametrize("method", METHODS)
def test_saved_and_loaded_predicts_the_same_bit_for_bit(
    make: Any, encoder: DualEncoder, views: torch.Tensor, tmp_path: Path, method: str
) -> None:
    posterior = make(method, 1 if method == "zero-shot" else 3)
    if len(posterior) > 1:
        posterior = posterior.with_weights(torch.tensor([0.1, 0.2, 0.7]))
    posterior = posterior.fit_threshold(views, torch.tensor([0, 1, 2, 3, 0, 1, 2]), coverage=0.5, by="entropy")
    posterior = posterior.fit_conformal(views, torch.tensor([0, 1, 2, 3, 0, 1, 2]), level=0.8)
    folder = save_posterior(posterior, tmp_path / "posterior")
    assert {path.name for path in folder.iterdir()} == {"posterior.json", "samples.safetensors"}
    loaded = load_posterior(folder, encoder)
    assert loaded.threshold == posterior.threshold
    assert loaded.conformal == posterior.conformal
    assert dict(loaded.about) == json.loads(json.dumps(dict(posterior.about)))
    for names in (None, ["green fish", "car"]):
        ours, theirs = posterior.predict(views, class_names=names), loaded.predict(views, class_names=names)
        assert torch.equal(ours.probabilities, theirs.probabilities)
        assert torch.equal(ours.per_sample, theirs.per_sample)


def test_a_data_sets_own_names_may_repeat(encoder: DualEncoder, views: torch.Tensor, tmp_path: Path) -> None:
    names = ["missile", "dog", "missile"]
    learner = build_learner("coop", encoder, names, "a {}.", torch.Generator().manual_seed(0)).eval()
    sample = {name: x.detach() for name, x in learner.named_parameters()}
    folder = save_posterior(Posterior.of(learner, [sample]), tmp_path / "posterior")
    probabilities = load_posterior(folder, encoder).predict(views).probabilities
    assert probabilities.shape == (7, 3)
    torch.testing.assert_close(probabilities[:, 0], probabilities[:, 2])


def test_every_setting_is_saved_whatever_the_defaults_become(
    make: Any, encoder: DualEncoder, views: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = make("maple", 2, settings={"tokens": 3})
    folder = save_posterior(posterior, tmp_path / "p")
    manifest = json.loads((folder / "posterior.json").read_text())
    assert manifest["format"] == 3
    assert manifest["method_settings"] == {"tokens": 3, "depth": "9/12", "init": "a photo of a"}
    config = METHODS["maple"].config

    class Changed(config):  # type: ignore[misc, valid-type]
        depth: Any = 1
        init: str | None = "a drawing of"

    monkeypatch.setitem(METHODS.known, "maple", dataclasses.replace(METHODS["maple"], config=Changed))
    fresh = build_learner("maple", encoder, ["a", "b"], None, torch.Generator(), {})
    assert fresh.config.depth == 1, "the default has changed"
    assert torch.equal(
        load_posterior(folder, encoder).predict_views(views).probabilities, posterior.predict_views(views).probabilities
    )


def test_a_posterior_made_by_hand_says_of_itself_what_its_learner_knows(
    encoder: DualEncoder, views: torch.Tensor, tmp_path: Path
) -> None:
    learner = build_learner("coop", encoder, ["cat", "dog"], "a {}.", torch.Generator().manual_seed(0), {"init": None})
    sample = {name: x.detach() for name, x in learner.named_parameters()}
    posterior = Posterior.of(learner, [sample, sample])
    loaded = load_posterior(save_posterior(posterior, tmp_path / "p"), encoder)
    assert loaded.about == {
        "method": "coop",
        "method_settings": learner.config.plain(),
        "inference": {"name": "custom"},
        "crop_scale": None,
        "seed": None,
        "data": None,
        "class_names": ["cat", "dog"],
        "template": "a {}.",
    }
    assert torch.equal(loaded.predict_views(views).probabilities, posterior.predict_views(views).probabilities)


def test_a_learner_that_is_not_registered_is_sampled_but_not_saved(
    encoder: DualEncoder, views: torch.Tensor, tmp_path: Path
) -> None:
    class Mine(CoOp):
        pass

    learner = Mine(encoder, METHODS["coop"].config()).bind(["cat", "dog"])
    learner.reset(torch.Generator().manual_seed(0))
    posterior = Posterior.of(learner, [{name: x.detach() for name, x in learner.named_parameters()}])
    assert posterior.predict(views).probabilities.numpy().shape == (7, 2)
    assert repr(posterior).startswith("Posterior(Mine · custom, 1 sample, 2 classes")
    with pytest.raises(UserError, match=r"Mine is not registered.*decorate the class with @rebapl.register"):
        save_posterior(posterior, tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_the_backbone_is_found_by_its_name(make: Any, mini: DualEncoder, tmp_path: Path) -> None:
    posterior = make("maple", 2, mini)
    views = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    loaded = load_posterior(save_posterior(posterior, tmp_path / "p"))
    assert loaded.learner.encoder is not mini
    assert torch.equal(loaded.predict_views(views).probabilities, posterior.predict_views(views).probabilities)


def test_only_learned_parameters_are_stored(make: Any, tmp_path: Path) -> None:
    posterior = make("coop")
    folder = save_posterior(posterior, tmp_path / "p")
    assert load_file(folder / "samples.safetensors").keys() == dict(posterior.learner.named_parameters()).keys()
    assert (folder / "samples.safetensors").stat().st_size < 4 * 3 * 4 * 64 + 500


def test_the_file_of_samples_is_that_of_safetensors(make: Any, tmp_path: Path) -> None:
    posterior = make("mmrl")
    folder, content = save_posterior(posterior, tmp_path / "p"), save(dict(posterior.samples))
    assert (folder / "samples.safetensors").read_bytes() == content
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    kept = json.loads((folder / "posterior.json").read_text())
    assert kept["samples_sha256"] == hashlib.sha256(content).hexdigest()


def test_one_file_holds_all_tensors(make: Any, encoder: DualEncoder, views: torch.Tensor, tmp_path: Path) -> None:
    """The samples, those of folds, which may share memory with them and each other, and what "none of these" needs."""
    plain, labels = make("coop"), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    posterior = plain.fit_outside(views, "mahalanobis", 0.5, (views, labels))
    predictions = [plain.predict(views[:3]), plain.predict(views[3:])]
    sets = choose_cross_conformal(predictions, [labels[:3], labels[3:]], level=0.5)
    posterior = dataclasses.replace(posterior, conformal=sets, folds=(plain, plain))
    folder = save_posterior(posterior, tmp_path / "posterior")
    assert {path.name for path in folder.iterdir()} == {"posterior.json", "samples.safetensors"}
    tensors = load_file(folder / "samples.safetensors")
    assert tensors.keys() == {"context", "outside:means", "outside:root", "0:context", "1:context"}
    assert torch.equal(tensors["0:context"], plain.samples["context"])
    loaded = load_posterior(folder, encoder)
    assert loaded.samples.keys() == {"context"}
    assert all(torch.equal(loaded.bank[name], tensor) for name, tensor in posterior.bank.items())
    ours, theirs = posterior.predict(views), loaded.predict(views)
    assert torch.equal(ours.sets(), theirs.sets())
    assert torch.equal(ours.none_of_these(), theirs.none_of_these())
    unequal = plain.with_weights([0.2, 0.3, 0.5])
    with pytest.raises(UserError, match="samples of a fold must have equal weights"):
        save_posterior(dataclasses.replace(posterior, folds=(plain, unequal)), folder)


def test_a_class_bound_later_is_not_what_was_learned_with(make: Any, encoder: DualEncoder, tmp_path: Path) -> None:
    posterior = make("mmrl")
    folder = save_posterior(posterior.bind(["green fish", "car"]), tmp_path / "p")
    assert load_posterior(folder, encoder).class_names == posterior.class_names


@pytest.mark.parametrize("bound", [{"template": "a photo of a {}."}, {"transfer": True}])
def test_what_is_fitted_for_texts_bound_later_is_not_stored(
    make: Any, encoder: DualEncoder, views: torch.Tensor, tmp_path: Path, bound: dict
) -> None:
    posterior = make("coop").bind(make("coop").class_names, **bound)
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    posterior = posterior.fit_threshold(views, labels, coverage=0.5).fit_conformal(views, labels, level=0.5)
    loaded = load_posterior(save_posterior(posterior, tmp_path / "p"), encoder)
    assert (loaded.threshold, loaded.conformal) == (None, None)


@pytest.fixture
def saved(make: Any, tmp_path: Path, views: torch.Tensor) -> Path:
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    posterior = make("coop").fit_threshold(views, labels, coverage=0.5).fit_conformal(views, labels, level=0.5)
    return save_posterior(posterior, tmp_path / "posterior")


def edit(folder: Path, change: Callable[[dict], Any], sign: bool = True) -> None:
    """Change the manifest; with `sign`, its checksum too, so that the checks after the checksum are reached."""
    path = folder / "posterior.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    if sign:
        manifest["sha256"] = content_sha256(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "text", ['{"a":' * 100_000 + "1" + "}" * 100_000, '{"format": ' + "9" * 5000 + "}", "[" * 9999]
)
def test_a_manifest_that_no_reader_bears_is_refused_in_one_line(saved: Path, encoder: DualEncoder, text: str) -> None:
    (saved / "posterior.json").write_text(text)
    with pytest.raises(UserError, match="is damaged") as refused:
        load_posterior(saved, encoder)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_manifest_is_not_asked_to_hold_a_thousand_million_tokens(saved: Path, encoder: DualEncoder) -> None:
    edit(saved, lambda manifest: manifest["method_settings"].update(tokens=10**9, init=None))
    with pytest.raises(UserError, match=r"tokens is 1000000000: it must be .*512"):
        load_posterior(saved, encoder)


@pytest.mark.parametrize("name", ["posterior.json", "samples.safetensors"])
def test_a_pipe_is_not_waited_for(saved: Path, encoder: DualEncoder, name: str) -> None:
    (saved / name).unlink()
    os.mkfifo(saved / name)
    with pytest.raises(UserError, match=r"no plain file|it has no samples.safetensors"):
        load_posterior(saved, encoder)


def test_laying_the_manifest_out_otherwise_is_no_edit(saved: Path, encoder: DualEncoder) -> None:
    edit(saved, lambda _: None, sign=False)
    assert len(load_posterior(saved, encoder)) == 3


@pytest.mark.parametrize("key", ["class_names", "weights", "seed", "method_settings", "threshold", "versions"])
def test_an_edited_manifest_is_refused(saved: Path, encoder: DualEncoder, key: str) -> None:
    edit(saved, lambda manifest: manifest.update({key: {"x": 1}}), sign=False)
    with pytest.raises(UserError, match=r"checksum differs.*edited or damaged"):
        load_posterior(saved, encoder)


@pytest.mark.parametrize(
    "key",
    "backbone weights earlier_weights threshold conformal temperature outside method method_settings inference "
    "crop_scale seed data class_names template samples_sha256 versions".split(),
)
def test_missing_and_mistyped_entries_are_named(saved: Path, encoder: DualEncoder, key: str) -> None:
    kept = (saved / "posterior.json").read_text()
    edit(saved, lambda manifest: manifest.pop(key))
    with pytest.raises(UserError, match=f": {key} is missing.*; train the posterior again"):
        load_posterior(saved, encoder)
    (saved / "posterior.json").write_text(kept)
    edit(saved, lambda manifest: manifest.update({key: True}))
    with pytest.raises(UserError, match=f": {key} is True"):
        load_posterior(saved, encoder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 4}, "has format 4, .* reads 3: install the version that wrote it"),
        ({"format": 2}, "has format 2.*train the posterior again"),
        ({"outside_sha256": None}, "outside_sha256: there is no such"),
        ({"format": True}, "has format True"),
        ({"format": None}, "has format None"),
        ({"weights": [0.5, 0.5, 0.5]}, "sum to one"),
        ({"weights": [1.5, -0.5, 0.0]}, "not negative"),
        ({"weights": [float("nan"), 0.5, 0.5]}, "finite"),
        ({"weights": []}, "weights: .* sum to one"),
        ({"weights": ["a", "b", "c"]}, "weights is 'a': it must be a number"),
        ({"weights": [0.5, 0.5]}, "does not hold 2 samples of method 'coop'"),
        ({"class_names": []}, "class_names is"),
        ({"class_names": [1, 2]}, "class_names is 1: it must be text"),
        ({"backbone": {"name": "small"}}, "backbone.sha256 is missing"),
        ({"backbone": {"name": "small", "sha256": "0" * 64}}, "trained on backbone 'small' .000000000000"),
        ({"method": "cop"}, "unknown method 'cop'.*install the package or import the module that registers"),
        ({"method_settings": {"tokenz": 1}}, "tokenz"),
        ({"method_settings": {"tokens": "four"}}, "cannot be used by this version"),
        ({"template": "no place"}, "template"),
        ({"inference": {"average": "median"}}, "inference.average is 'median'.*train the posterior again"),
        ({"inference": {"average": 3}}, "inference.average is 3"),
        ({"class_names": ["\ud800"]}, "class name 0 .* is not valid Unicode"),
        ({"method": "cocoop", "method_settings": {}}, "'expand.bias' has shape"),
        ({"threshold": {"by": "entropy"}}, "threshold.value is missing"),
        ({"samples_sha256": "0" * 64}, "truncated or edited"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    saved: Path, encoder: DualEncoder, change: dict, message: str
) -> None:
    edit(saved, lambda manifest: manifest.update(change))
    with pytest.raises(UserError, match=message):
        load_posterior(saved, encoder)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("threshold", {"by": "entropie"}),
        ("threshold", {"value": "low"}),
        ("threshold", {"value": float("nan")}),
        ("threshold", {"coverage": 2.0}),
        ("threshold", {"images": None}),
        ("threshold", {"class_names": 3}),
        ("threshold", {"extra": 1}),
        ("conformal", {"level": float("nan")}),
        ("conformal", {"level": 1.5}),
        ("conformal", {"quantile": None}),
    ],
)
def test_a_threshold_or_sets_that_make_no_sense_are_refused(
    saved: Path, encoder: DualEncoder, part: str, change: dict
) -> None:
    edit(saved, lambda manifest: manifest[part].update(change))
    with pytest.raises(UserError, match=f"does not describe a posterior: {part}"):
        load_posterior(saved, encoder)


@pytest.mark.parametrize("kept", [0, 10, 200, -1, None], ids=lambda kept: kept if kept is not None else "a bit")
def test_truncated_samples_and_one_changed_bit_are_refused(saved: Path, encoder: DualEncoder, kept: int | None) -> None:
    path = saved / "samples.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if kept is None else content[:kept])
    with pytest.raises(UserError, match="truncated or edited"):
        load_posterior(saved, encoder)


def resign(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(samples_sha256=sha256(folder / "samples.safetensors")))


@pytest.mark.parametrize("kind", ["nan", "inf", "half", "garbage", "extra"])
def test_samples_that_cannot_be_used_are_refused(saved: Path, encoder: DualEncoder, kind: str) -> None:
    path = saved / "samples.safetensors"
    stacks = load_file(path)
    context = stacks["context"].clone()
    if kind in ("nan", "inf"):
        context[1, 0, 0] = float(kind)
    if kind == "half":
        context = context.half()
    extra = {"more": torch.zeros(3)} if kind == "extra" else {}
    save_file({"context": context, **extra}, path)
    if kind == "garbage":
        path.write_bytes(b"x" * 100)
    resign(saved)
    message = {"garbage": "cannot be read", "extra": "'more' has shape"}.get(kind, "finite numbers in float32")
    with pytest.raises(UserError, match=message):
        load_posterior(saved, encoder)


def test_missing_files_are_named(saved: Path, encoder: DualEncoder, tmp_path: Path) -> None:
    (saved / "samples.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no samples.safetensors; train it again"):
        load_posterior(saved, encoder)
    (saved / "posterior.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        load_posterior(saved, encoder)
    with pytest.raises(UserError, match=r"there is no such run or posterior"):
        load_posterior(tmp_path / "nothing", encoder)
    with pytest.raises(UserError, match="is a file: give the folder of a posterior"):
        load_posterior(saved / "posterior.json", encoder)
    (tmp_path / "odd" / "posterior.json").mkdir(parents=True)
    with pytest.raises(UserError, match=r"posterior.json cannot be read"):
        load_posterior(tmp_path / "odd", encoder)


def test_another_backbone_is_refused(saved: Path, mini: DualEncoder) -> None:
    with pytest.raises(UserError, match=r"'mini' is another .*give the backbone it was trained on"):
        load_posterior(saved, mini)
    assert small_clip.small_encoder().fingerprint != mini.fingerprint


def test_saving_replaces_whole_or_not_at_all(
    make: Any, saved: Path, encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rebapl.posterior.storage.write_json", fail)
        with pytest.raises(UserError, match="no space"):
            save_posterior(make("maple"), saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert [path.name for path in saved.parent.iterdir()] == ["posterior"]
    replace, moves = Path.replace, []

    def fail_second(path: Path, target: Path) -> Path:
        moves.append(path)
        if len(moves) == 4:  # manifest, new folder beside its place, old one away, new one into its place
            raise OSError("interrupted")
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail_second)
        with pytest.raises(UserError, match="interrupted"):
            save_posterior(make("maple"), saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert [path.name for path in saved.parent.iterdir()] == ["posterior"]
    save_posterior(make("maple"), saved)
    assert load_posterior(saved, encoder).about["method"] == "maple"


def test_new_weights_beside_the_same_samples_are_one_rename(
    make: Any, encoder: DualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = make("maple", 2)
    folder = save_posterior(posterior, tmp_path / "posterior")
    with monkeypatch.context() as patch:
        patch.delattr("rebapl.posterior.storage.folder_written_whole")  # which would need two
        save_posterior(posterior.with_weights([0.25, 0.75]), folder)
    assert load_posterior(folder, encoder).weights.tolist() == [0.25, 0.75]


def test_what_should_not_be_saved_is_refused(make: Any, tmp_path: Path) -> None:
    posterior = make("coop")
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(UserError, match="exists and is not a posterior"):
        save_posterior(posterior, tmp_path)
    with pytest.raises(UserError, match="exists and is not a posterior"):
        save_posterior(posterior, tmp_path / "thesis.tex")
    broken = {name: stack / 0 for name, stack in posterior.samples.items()}
    with pytest.raises(UserError, match="'context' hold numbers that are not finite"):
        save_posterior(Posterior(posterior.learner, broken, posterior.weights, posterior.about), tmp_path / "p")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
