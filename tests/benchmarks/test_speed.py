"""The measurements of speed: the plain baseline does the same work, and the page shows what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import speed
import speed_page
from plain_baseline import PlainPosterior, full_length_twin
from rebapl.backbones import DualEncoder, load_backbone
from rebapl.backbones.tower import Block
from rebapl.errors import UserError
from rebapl.learners import Learner, build_learner
from rebapl.randomness import generator
from rebapl.reproduce.timing import random_posterior
from speed import (
    TEMPLATE,
    Bench,
    Case,
    class_names,
    main,
    noise,
    plain_training,
    text_length,
    training_of,
)

METHODS = ["maple", "mmrl", "coop"]


def flat(learner: Learner[Any]) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.parameters()])


@pytest.mark.parametrize("method", METHODS)
def test_the_plain_baseline_has_the_same_losses_and_gradients(encoder: DualEncoder, method: str) -> None:
    learner = build_learner(method, encoder, class_names(5), TEMPLATE, generator(1, "test")).train()
    images, labels = encoder.preprocessing.normalize(noise(encoder, 2)), torch.tensor([0, 3])
    losses, gradients = [], []
    for each in (learner, full_length_twin(learner)):
        losses.append(each.loss(each(images), labels))
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(losses[-1], [*each.parameters()])]))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=0)
    assert (gradients[1] - gradients[0]).norm() < 1e-3 * gradients[0].norm()


@pytest.mark.parametrize("method", METHODS)
def test_the_plain_baseline_gives_the_same_answers(encoder: DualEncoder, method: str) -> None:
    posterior = random_posterior(encoder, class_names(5), TEMPLATE, 3, method)
    views = noise(encoder, 3)
    plain = PlainPosterior(posterior).probabilities(views)
    torch.testing.assert_close(plain, posterior.predict_views(views).probabilities, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("method", "force"), [("maple", "mmd"), ("coop", "energy"), ("mmrl", "sinkhorn")])
def test_both_kinds_of_step_are_repelled_from_as_many_samples(encoder: DualEncoder, method: str, force: str) -> None:
    case = Case(method, classes=3, repulsion=force, images=4, samples=2)
    plain = plain_training(encoder, case)
    before = flat(plain.learner)
    assert plain.step().isfinite()
    assert plain.repulsion is not None
    assert len(plain.repulsion) == 2
    assert not torch.equal(flat(plain.learner), before)
    loop: Any = training_of(encoder, case).loop
    loop.step()
    assert len(loop.samples) == len(loop.repulsion) == 2


def test_the_plain_baseline_reads_every_position_of_full_texts(
    encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    known = Block.__call__
    monkeypatch.setattr(
        Block, "__call__", lambda self, hidden, at=None: (asked.append(at is None), known(self, hidden, at))[1]
    )
    learner = random_posterior(encoder, class_names(5), TEMPLATE, 1).learner
    twin, layers = full_length_twin(learner), len(encoder.vision.layers)
    lengths = [text_length(each.encoder, each.class_names) for each in (learner, twin)]
    assert lengths[0] < lengths[1] == encoder.tokenizer.limit
    asked.clear()
    with torch.no_grad():
        twin(torch.zeros(1, 3, 64, 64))
    assert asked == [True] * 2 * layers


def test_it_measures_what_the_words_say_and_keeps_earlier_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "ANSWER_CLASSES", 2)
    out = tmp_path / "bench.json"
    few = ["--steps", "2", "--warm-up", "0", "--seconds", "0.001", "--images", "2", "--out", str(out)]
    main([*few, "--parts", "steps", "--method", "coop", "--forces", "none,mmd/2", "--classes", "2", "--no-plain"])
    main([*few, "--parts", "steps", "--method", "coop", "--forces", "none", "--classes", "2"])
    main([*few, "--parts", "answers", "--answers", "coop", "--samples", "2"])
    measured = json.loads(out.read_text())
    assert [(row["repulsion"], row["every"], "plain_mean" in row) for row in measured["steps"]] == [
        ("mmd", 2, False),
        (None, 1, True),
    ]
    (answer,) = measured["answers"]
    assert min(answer[name] for name in ("one", "many", "plain_one", "plain_many")) > 0
    steps, answers = speed_page.tables(measured)
    assert [len(steps.rows), len(answers.rows)] == [2, 1]


def test_growth_is_measured_along_four_sizes(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "step", lambda _, case, along: (along, case))
    monkeypatch.setattr(Bench, "answer", lambda _, __, samples, ___, along: (along, samples))
    rows = list(Bench(encoder).growth(Case(), 2))
    assert [row[1] for row in rows[-4:]] == [1, 3, 10, 30]
    sizes = {along: {getattr(case, along.replace("tokens", "words")) for name, case in rows[:-4] if name == along}
             for along, _ in rows[:-4]}  # fmt: skip
    assert sizes == {"classes": {5, 50, 200}, "images": {8, 32, 128}, "samples": {1, 5, 20}, "tokens": {3, 16}}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--classes", "1"], "1 classes cannot be timed"),
        (["--method", "mapl"], "did you mean 'maple'"),
        (["--forces", "mdm"], "did you mean 'mmd'"),
        (["--forces", "mmd/x"], "--forces mmd/x"),
        (["--answers", "coop,mapl"], "did you mean 'maple'"),
    ],
)
def test_bad_words_are_refused_before_anything_is_timed(words: list[str], error: str) -> None:
    with pytest.raises(UserError, match=error):
        main(words)


def test_the_page_shows_the_measurements_beside_it() -> None:
    page = (speed_page.DOCS / "performance.md").read_text(encoding="utf-8")
    assert len(speed_page.PLACE.findall(page)) == 2
    assert speed_page.filled(page) == page


def test_the_figure_has_a_line_for_each_force() -> None:
    measured = json.loads((speed_page.DOCS / "benchmarks/bench-h200.json").read_text())
    classes, *_ = speed_page.growth_figure(measured).axes
    lines = {line.get_label(): line for line in classes.lines}
    assert set(lines) == {"MMD", "MMD, plain", "none", "Wasserstein"}
    assert list(lines["MMD"].get_xdata()) == [5, 50, 200, 1000]
    assert lines["MMD, plain"].get_linestyle() == "--"


@pytest.mark.gpu
@pytest.mark.parametrize("force", ["none", "mmd", "energy", "sinkhorn", "wasserstein"])
@pytest.mark.parametrize("method", METHODS)
def test_fifty_steps_captured_and_compiled_equal_eager_ones(
    monkeypatch: pytest.MonkeyPatch, method: str, force: str
) -> None:
    """In float32, to a twentieth of how far the parameters moved: rounding is carried on from step to step."""
    encoder = load_backbone("mini", "cuda", torch.float32)
    ends = []
    for switch in ("0", "1"):
        monkeypatch.setenv("REBAPL_EAGER", switch)
        training = training_of(encoder, Case(method, classes=5).with_force(force))
        before = flat(training.learner)
        assert training.loop is not None
        for _ in range(50):
            training.loop.step()
        ends.append(flat(training.learner))
    moved = (ends[1] - before).norm()
    assert moved > 0
    assert (ends[0] - ends[1]).norm() < 0.05 * moved


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_answers_on_a_gpu_are_those_of_the_plain_baseline(method: str) -> None:
    """In float32, again and again, so that replayed passes answer too; for one image and for more."""
    encoder = load_backbone("mini", "cuda", torch.float32)
    posterior = random_posterior(encoder, class_names(5), TEMPLATE, 3, method)
    plain = PlainPosterior(posterior)
    for seed in range(5):
        views = torch.randint(256, (9, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
        for some in (views, views[:1]):
            answers = posterior.predict_views(some).probabilities
            torch.testing.assert_close(answers, plain.probabilities(some), rtol=1e-2, atol=1e-4)
