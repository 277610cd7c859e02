"""`rebapl bench`: the plain baseline does the same work, and what was measured is shown and read again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.backbones.block import Block
from rebapl.cli.commands import app
from rebapl.errors import UserError
from rebapl.learners import Learner
from rebapl.reproduce import bench
from rebapl.reproduce.bench import Bench, Effort, cases
from rebapl.reproduce.bench_inputs import bench_chain, class_names, random_vit_b16
from rebapl.reproduce.bench_records import AnswerTimes, Case, Measured, StepTimes
from rebapl.reproduce.bench_tables import bench_tables, growth_figure
from rebapl.reproduce.plain_baseline import PlainPosterior, PlainTraining, full_length_twin
from rebapl.reproduce.timing import random_posterior

LEAST = Effort(("mmd",), (2,), (1, 2), ("coop",), images=2, warm_up=0, steps=2, repeats=1, seconds=1)
ROWS = cases("maple", ["mmd", "energy"], [5, 50], 1)


def flat(learner: Learner[Any]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in learner.parameters()])


def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warm-up, two steps in a row, two classes."""
    monkeypatch.setattr(bench, "ANSWER_CLASSES", 2)
    monkeypatch.setattr(bench, "FIRST_ROUND", 0)
    monkeypatch.setattr(bench, "ROUND", 2)


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_backbone("mini")


@pytest.mark.parametrize(
    ("method", "distance"),
    [("maple", None), ("maple", "mmd"), ("maple", "wasserstein"), ("coop", "energy"), ("mmrl", "sinkhorn")],
)
def test_the_plain_baseline_does_the_same_steps(encoder: DualEncoder, method: str, distance: str | None) -> None:
    """Loss and parameters after three steps, in which norms are measured, relative to how far these moved."""
    case = Case(method, classes=3, repulsion=distance, images=4, samples=2)
    chain, learner = bench_chain(encoder, case)
    plain = PlainTraining(*bench_chain(encoder, case))
    before = flat(learner)
    for _ in range(3):
        chain.step()
        objective = plain.step()
    assert (chain.repulsion is None) == (distance is None)
    if chain.repulsion is not None and plain.repulsion is not None:
        assert len(chain.repulsion) == 2
        ours, theirs = chain.repulsion.state["norm"], plain.repulsion.state["norm"]
        assert ours > 0
        torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-6)
    after, same = flat(learner), flat(plain.learner)
    moved = (after - before).norm()
    assert moved > 0
    assert (after - same).norm() < 1e-3 * moved
    assert objective.isfinite()


@pytest.mark.parametrize("method", ["maple", "mmrl", "coop"])
def test_the_plain_baseline_gives_the_same_answers(encoder: DualEncoder, method: str) -> None:
    posterior = random_posterior(encoder, class_names(5), bench.TEMPLATE, 3, method)
    views = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = PlainPosterior(posterior).probabilities(views)
    torch.testing.assert_close(found, posterior.predict_views(views).probabilities, rtol=1e-3, atol=1e-5)


def test_the_plain_baseline_reads_texts_of_full_length(encoder: DualEncoder) -> None:
    learner = random_posterior(encoder, class_names(5), bench.TEMPLATE, 1).learner
    twin = full_length_twin(learner)
    lengths = [bench.text_length(each.encoder, each.class_names) for each in (learner, twin)]
    assert lengths[0] < lengths[1] == encoder.tokenizer.limit


def test_the_plain_baseline_computes_every_position(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    known = Block.__call__
    monkeypatch.setattr(
        Block, "__call__", lambda self, hidden, at=None: (asked.append(at is None), known(self, hidden, at))[1]
    )
    learner = random_posterior(encoder, class_names(5), bench.TEMPLATE, 1).learner
    images, layers = torch.zeros(1, 3, 64, 64), len(encoder.vision.layers)
    with torch.no_grad():
        learner(images)
        assert asked == [*[True] * (layers - 1), False] * 2
        asked.clear()
        full_length_twin(learner)(images)
    assert asked == [True] * 2 * layers


def test_class_names_are_different_and_as_many_as_there_can_be() -> None:
    assert len(set(class_names(2000))) == 2000
    for count in (1, 10**6):
        with pytest.raises(UserError, match=f"{count} classes cannot be timed"):
            class_names(count)


def test_it_measures_what_it_says(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    short(monkeypatch)
    timed = Bench(encoder, LEAST, said.append)
    (step,) = timed.steps([Case(classes=2, images=2)])
    assert step.median > 0
    assert step.mean > 0
    assert step.plain_median is not None
    assert step.plain_median > 0
    assert step.peak is None
    first, second = timed.answers(["coop"], [1, 2])
    assert (first.samples, second.samples) == (1, 2)
    assert first.one > 0
    assert first.many > 0
    assert said[0] == "a training step, maple, 2 classes, mmd"
    assert len(said) == 6
    alone = Bench(encoder, replace(LEAST, plain=False), said.append)
    assert next(iter(alone.steps([Case(classes=2, repulsion=None)]))).plain_mean is None


def made_up() -> Measured:
    about = {
        "device": "cuda (a card)",
        "threads": 2,
        "backbone": "random",
        "dtype": "bfloat16",
        "captured": True,
        "versions": {"torch": "2.11", "rebapl": "0.1"},
        **dict.fromkeys(("steps", "warm_up", "plain_steps", "plain_warm_up", "repeats", "seconds"), 3),
    }
    growing = [
        StepTimes(
            replace(case, classes=count), count / 5, count / 4, 2**20, 9, 2.0 * count, 2.1 * count, 2**21, 77, along
        )
        for case in (Case(), Case(repulsion=None), Case(repulsion="wasserstein"))
        for along in ("classes", "images", "samples", "tokens")
        for count in (5, 50)
    ]
    steps = [StepTimes(case, 2.0, 2.5, 2**20, 9, 20.0, 25.0, 3 * 2**20, 77) for case in ROWS]
    answers = [AnswerTimes("maple", 50, count, 64, 4.0 * count, 10.0 * count, 40.0, 40.0) for count in (1, 10)]
    along = [replace(each, along="samples") for each in answers]
    return Measured(about, [*steps, *growing], [*answers, *along])


def test_the_tables_have_the_times_and_their_ratios() -> None:
    steps, answers = bench_tables(made_up())
    assert len(steps.rows) == len(ROWS)
    assert [str(cell) for cell in steps.rows[0]] == ["5", "none", "2.00", "2.50", "20.00", "25.00", "10.0", "1", "3"]
    assert [str(cell) for cell in answers.rows[1]] == ["maple", "10", "40.00", "40.00", "1.0", "640", "1600", "0.4"]
    below = " ".join(steps.remarks())
    for word in ("cuda (a card)", "bfloat16", "2.11", "random weights", "captured", "9 tokens", "77"):
        assert word in below


def test_a_measurement_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(made_up().plain()))
    assert Measured.read(path) == made_up()
    path.write_text(json.dumps({"about": {}, "steps": [{"median": 1}], "answers": []}))
    with pytest.raises(UserError, match="no measurement that rebapl bench wrote"):
        Measured.read(path)


def test_measurements_of_one_machine_are_joined() -> None:
    whole = made_up()
    steps, answers = replace(whole, answers=[]), replace(whole, steps=[])
    assert Measured.joined([steps, answers]) == whole
    other = replace(answers, about={**whole.about, "dtype": "float32"})
    with pytest.raises(UserError, match="they differ in dtype"):
        Measured.joined([steps, other])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--classes", "5,x"], "--classes 5,x: write whole numbers"),
        (["--samples", "0"], "--samples 0: write whole numbers"),
        (["--classes", "1"], "1 classes cannot be timed"),
        (["--method", "mapl"], "did you mean 'maple'"),
        (["--distances", "mdm"], "did you mean 'mmd'"),
        (["--method", "zero-shot"], "learns nothing"),
        (["--answers", "coop,mapl"], "did you mean 'maple'"),
        (["--what", ""], "nothing to time"),
        (["--what", "steps,answer"], "did you mean 'answers'"),
        (["--export", "times.csv"], "ending of --export"),
        (["--export", "times.png"], "plots are of growth"),
        (["--export", "/dev/null/times.md"], "--export /dev/null/times.md cannot be written"),
        (["--from", "missing.json"], "missing.json: there is no such file"),
        (["--from", "bench.json", "--quick", "--what", "steps"], "so --what, --quick would have no effect"),
    ],
)
def test_bad_input_is_refused_before_anything_is_timed(words: list[str], error: str) -> None:
    result = CliRunner().invoke(app, ["bench", *words])
    assert isinstance(result.exception, UserError)
    assert error in str(result.exception)
    assert "timing" not in result.stderr


def test_the_command_writes_figures_and_tables(
    tmp_path: Path, encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "bench_encoder", lambda *_: encoder)
    monkeypatch.setattr(bench, "cases", lambda method, _, classes, batch: [Case(method, classes[0], None, batch=batch)])
    short(monkeypatch)
    monkeypatch.setattr(Effort, "usual", classmethod(lambda *_: LEAST))
    files = [tmp_path / "bench.json", tmp_path / "bench.md"]
    words = [word for file in files for word in ("--export", str(file))]
    result = CliRunner().invoke(app, ["bench", "--batch", "2", *words])
    assert result.exception is None
    assert "timing answers of coop, 2 samples" in result.stderr
    assert sorted(tmp_path.iterdir()) == files
    measured = Measured.read(files[0])
    assert {each.case.batch for each in measured.steps} == {2}
    assert measured.about["backbone"] == "mini"
    text = files[1].read_text()
    for table in bench_tables(measured):
        assert table.to_markdown() in text
        assert table.title in result.stdout


def test_what_was_measured_before_an_interruption_is_kept(
    tmp_path: Path, encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "bench_encoder", lambda *_: encoder)
    monkeypatch.setattr(bench, "cases", lambda *_: [Case("coop", 2, None)])
    short(monkeypatch)
    monkeypatch.setattr(Effort, "usual", classmethod(lambda *_: LEAST))

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Bench, "answers", interrupted)
    earlier = tmp_path / "bench.json"
    earlier.write_text("an earlier one")
    result = CliRunner().invoke(app, ["bench", "--export", str(earlier)])
    assert result.exit_code == 130
    assert earlier.read_text() == "an earlier one"
    assert "what was measured until now is in" in result.stderr
    measured = Measured.read(tmp_path / "bench.unfinished.json")
    assert [each.case.method for each in measured.steps] == ["coop"]
    assert not measured.answers


def test_a_measurement_is_shown_again_and_drawn(tmp_path: Path) -> None:
    source, picture, text = (tmp_path / name for name in ("bench.json", "growth.png", "bench.md"))
    source.write_text(json.dumps(made_up().plain()))
    result = CliRunner().invoke(app, ["bench", "--from", str(source), "--export", str(picture), "--export", str(text)])
    assert result.exception is None
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert bench_tables(made_up())[0].to_markdown() in text.read_text()
    figure = growth_figure(made_up())
    classes, *_ = figure.axes
    assert classes.get_xlabel() == "classes"
    lines = {line.get_label(): line for line in classes.lines}
    assert set(lines) == {f"{name}{plain}" for name in ("MMD", "none", "Wasserstein") for plain in ("", ", plain")}
    assert list(lines["MMD"].get_ydata()) == [1.0, 10.0]
    assert lines["MMD, plain"].get_linestyle() == "--"
    some = [each for each in made_up().steps if each.along in ("", "classes")]
    assert [axes.get_xlabel() for axes in growth_figure(replace(made_up(), steps=some, answers=())).axes] == [
        "classes", "", "",
    ]  # fmt: skip
    with pytest.raises(UserError, match="--what growth"):
        growth_figure(replace(made_up(), steps=()))


def test_all_numbers_are_printed_as_json(tmp_path: Path) -> None:
    source, text = tmp_path / "bench.json", tmp_path / "bench.md"
    source.write_text(json.dumps(made_up().plain()))
    result = CliRunner().invoke(app, ["bench", "--from", str(source), "--json", "--export", str(text)])
    assert json.loads(result.stdout) == json.loads(source.read_text())
    assert f"written: {text}" in result.stderr.replace("\n", "")


def test_random_weights_have_the_shape_of_vit_b16(encoder: DualEncoder) -> None:
    random = random_vit_b16(encoder)
    assert (random.vision.width, len(random.vision.layers), random.text.width, len(random.text.layers)) == (
        768,
        12,
        512,
        12,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("distance", [None, "mmd", "energy", "sinkhorn", "wasserstein"])
@pytest.mark.parametrize("method", ["maple", "mmrl", "coop"])
def test_fifty_steps_captured_and_compiled_equal_eager_ones(
    monkeypatch: pytest.MonkeyPatch, method: str, distance: str | None
) -> None:
    """In float32, to a twentieth of how far the parameters moved: rounding is carried on from step to step."""
    encoder = load_backbone("mini", "cuda", torch.float32)
    found = []
    for switch in ("0", "1"):
        monkeypatch.setenv("REBAPL_EAGER", switch)
        chain, learner = bench_chain(encoder, Case(method, classes=5, repulsion=distance))
        assert (chain.capturing is None) == (switch == "1")
        before = flat(learner)
        for _ in range(50):
            chain.step()
        found.append(flat(learner))
    moved = (found[1] - before).norm()
    assert moved > 0
    assert (found[0] - found[1]).norm() < 0.05 * moved


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["maple", "mmrl", "coop"])
def test_answers_on_a_gpu_are_those_of_the_plain_baseline(method: str) -> None:
    """In float32, again and again, so that replayed passes answer too; for one image and for more."""
    encoder = load_backbone("mini", "cuda", torch.float32)
    posterior = random_posterior(encoder, class_names(5), bench.TEMPLATE, 3, method)
    plain = PlainPosterior(posterior)
    for seed in range(5):
        views = torch.randint(256, (9, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
        for some in (views, views[:1]):
            found = posterior.predict_views(some).probabilities
            torch.testing.assert_close(found, plain.probabilities(some), rtol=1e-2, atol=1e-4)
