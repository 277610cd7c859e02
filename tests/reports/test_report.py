"""The report on runs: complete, right, one file, nothing unescaped, and a sentence where something is missing."""

import copy
import dataclasses
import json
import math
import re
import shutil
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from chromium import open_page
from drawn_folder import class_folders
from PIL import Image
from scipy.stats import ttest_1samp
from small_run import CONFIG
from typer.testing import CliRunner

from rebapl.cli.commands import app
from rebapl.errors import UserError
from rebapl.evaluation.intervals import calibration_interval
from rebapl.posterior.conformal import Conformal
from rebapl.posterior.prediction import Outside
from rebapl.posterior.temperature import Temperature
from rebapl.reports.comparison import compare
from rebapl.reports.figures import training_figures
from rebapl.reports.html import DETAILED, report_html, write_report
from rebapl.reports.inspection import Course, InspectedRun, course_of
from rebapl.reports.tables import Cell
from rebapl.runs.config import RunConfig
from rebapl.runs.results import RunResult, read_result, write_result
from rebapl.runs.run import run
from rebapl.sampling.schedule import build_schedule

EVIL = 'a<script>alert("1")<!--&'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: `two` samples, scored; `other`, of another seed and kind; `photos` of a class with an evil name."""
    folder = tmp_path_factory.mktemp("report")
    run(CONFIG, folder / "two", device="cpu")
    run(
        CONFIG.changed(method="zero-shot", inference=None, inference_settings={}, epochs=None),
        folder / "other",
        score=False,
    )
    class_folders(folder / "data", **{EVIL: 8, "plain": 8})
    photos = RunConfig(str(folder / "data"), "zero-shot", protocol="few-shot", backbone="mini", shots=2)
    run(photos, folder / "photos", device="cpu", score=False)
    return folder


@pytest.fixture(scope="module")
def two(folder: Path) -> InspectedRun:
    return InspectedRun(folder / "two", device="cpu")


class Page(HTMLParser):
    """The elements of a page, checked for being closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def words(page: str) -> str:
    """The text of a page without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_the_page_has_every_section_and_the_stored_scores(two: InspectedRun) -> None:
    page = report_html([two])
    text = words(page)
    sections = (
        "What was learned|Scores|Calibration|Risk and coverage|Confusion|Training|How far apart the samples are|"
        "Where samples disagree most|The surest mistakes|Time and memory"
    )
    for title in sections.split("|"):
        assert f">{title}</h2>" in page
    for part in read_result(two.run.folder).parts.values():
        for shown in (f"{part.accuracy:.2f}", f"{part.nll:.3f}", f"{part.ece:.1f}", f"{part.tempered_nll:.3f}"):
            assert shown in text
    assert "memory of the process, at most" in text
    assert "inference.sampler.kind" in text, "every setting is there"
    assert 'class="why"' not in page, "nothing is missing"


def test_the_page_is_one_small_file_that_loads_nothing_and_is_well_formed(two: InspectedRun) -> None:
    text = report_html([two])
    page = Page(text)
    assert len(text.encode()) < 1_000_000
    assert not page.all("script")
    sources = [each.get("src") or "" for each in page.all("img")] + [
        each.get("href") or "" for each in page.all("link")
    ]
    assert all(source.startswith("data:") for source in sources)
    assert "url(" not in text.replace("url(#", ""), "parts of figures name other parts of the page alone"
    assert "http" not in re.sub("http-equiv", "", text)
    assert text == report_html([two]), "the same run gives the same page"
    assert all(each.get("alt") for each in page.all("img"))
    assert all(each.get("aria-label") for each in page.all("svg"))
    assert all(each.get("scope") for each in page.all("th"))
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {each["href"] for each in page.all("a")} <= {f"#{name}" for name in ids}


def test_prediction_sets_are_counted_where_they_were_fitted(two: InspectedRun) -> None:
    assert ">Prediction sets</h2>" not in report_html([two])
    answered = two.parts["base"]
    names, labels = answered.prediction.class_names, answered.labels.tolist()
    conformal = Conformal(0.8, 0.75, "probabilities", tuple(names), images=20, size=1.0)
    fitted = dataclasses.replace(answered, prediction=dataclasses.replace(answered.prediction, conformal=conformal))
    changed = copy.copy(two)
    changed.parts = {**two.parts, "base": fitted}
    text = words(report_html([changed]))
    sets = [record["set"] for record in fitted.prediction.records()]
    held = sum(names[label] in kept for label, kept in zip(labels, sets, strict=True))
    size = sum(map(len, sets)) / len(sets)
    assert re.search(rf"base 80.0 {100 * held / len(sets):.1f} [\d.]+ – [\d.]+ {size:.2f} ", text)
    assert 0 < held < len(sets)
    assert size > 1


def test_the_threshold_of_none_of_these_is_shown(two: InspectedRun) -> None:
    assert "none of these" not in words(report_html([two]))
    outside = Outside("neighbours", 0.51234, 0.1, "probabilities", tuple(two.posterior.class_names), images=10)
    changed = copy.copy(two)
    changed.posterior = dataclasses.replace(two.posterior, outside=outside)
    expected = (
        "none of these where the score ‘neighbours’ is above 0.5123: chosen on 10 images, with at most 10 % false"
    )
    assert expected in words(report_html([changed]))


def test_one_cycle_is_one_cycle() -> None:
    course = Course([0.1, 0.1, 0.1], [True, False, False], [3], [0])
    (schedule,) = training_figures([{"step": 0.0}], course)
    assert schedule.caption.startswith("1 cycle in 3 steps. ")


def test_each_sample_votes_for_its_own_answer(two: InspectedRun) -> None:
    """The most disputed image stands first, with the class that each sample finds likeliest."""
    best = max(
        (answered.prediction[index] for answered in two.parts.values() for index in range(len(answered.labels))),
        key=lambda each: each.mutual_information[0] if each.disagreement[0] > 0 else -1.0,
    )
    first = re.search(r'<ul class="votes">(.*?)</ul>', report_html([two]))
    assert first is not None
    text = words(first[1])
    for number, label in enumerate(best.per_sample[:, 0].argmax(-1).tolist(), 1):
        assert re.search(rf"{best.class_names[label]} . sample {number}\b", text)


def test_a_run_that_is_not_scored_is_scored_for_the_report_alone(folder: Path) -> None:
    seen = InspectedRun(folder / "other", device="cpu")
    text = words(report_html([seen]))
    assert "This run has no stored scores: they are computed for this report." in text
    assert "Nothing was trained: this method learns nothing." in text
    assert "There is one sample, so that there is nothing to compare it with." in text
    assert not (folder / "other" / "results.json").exists()


def test_a_temperature_and_distances_are_those_that_an_evaluation_stored(
    folder: Path, two: InspectedRun, tmp_path: Path
) -> None:
    assert two.temperature == read_result(two.run.folder).parts["base"].temperature
    assert f"The temperature τ = {two.temperature:.3f} was fitted on validation images" in report_html([two])
    shutil.copytree(folder / "two", tmp_path / "run", ignore=shutil.ignore_patterns("results.json"))
    seen = InspectedRun(tmp_path / "run", device="cpu")
    text = words(report_html([seen]))
    assert seen.temperature is None
    assert "with temperature" not in text
    assert "The distances between samples were not measured: `rebapl evaluate RUN` does that." in text
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**content, "resolved": None}))
    with pytest.raises(UserError, match="lacks the resolved settings"):
        InspectedRun(tmp_path / "run")


def test_the_temperature_of_the_posterior_is_shown_with_the_images_it_was_fitted_on(two: InspectedRun) -> None:
    assert two.posterior is not None
    assert "temperature of the probabilities" not in words(report_html([two]))
    names = tuple(two.posterior.class_names)
    for images, origin in ((17, "fitted on 17 images"), (0, "given by hand")):
        seen, fitted = copy.copy(two), Temperature(1.75, two.posterior.average, names, images=images)
        seen.posterior = dataclasses.replace(two.posterior, temperature=fitted)
        text = words(report_html([seen]))
        assert f"temperature temperature of the probabilities: 1.75, {origin}" in text
        assert "was fitted on validation images on top of that of the posterior" in text


@pytest.mark.parametrize("protocol", ["base-to-novel", "selection"])
def test_progress_ends_with_the_last_image(tmp_path: Path, protocol: str) -> None:
    """In a selection the test images are validation images."""
    config = RunConfig("digits", "zero-shot", protocol=protocol, shots=2, test_images=20, backbone="mini")
    out = run(config, tmp_path / "run", device="cpu", score=False)
    steps: list[tuple[int, int]] = []
    report_html([InspectedRun(out, device="cpu", progress=lambda *step: steps.append(step))])
    done, total = steps[-1]
    assert done == total > 0


def test_a_closed_form_learned_at_once(tmp_path: Path) -> None:
    config = RunConfig("digits", "gda", "laplace", shots=2, test_images=20, backbone="mini")
    text = words(report_html([InspectedRun(run(config, tmp_path / "run", device="cpu"), device="cpu")]))
    assert "30 samples of the head, learned from 2 images of each of" in text
    assert "the Gaussian at its end (Laplace)" in text
    assert "All was learned at once: there are no steps to show." in text


def test_what_people_named_is_escaped(folder: Path) -> None:
    page = report_html([InspectedRun(folder / "photos", device="cpu")])
    assert "<script" not in page
    assert "a&lt;script&gt;alert(" in page
    assert str(folder) not in page, "a page that is shared does not tell where files lay"
    Page(page)


def test_moved_data_and_a_missing_posterior_are_said_in_a_sentence(
    folder: Path, two: InspectedRun, tmp_path: Path
) -> None:
    (folder / "data").rename(folder / "elsewhere")
    try:
        text = words(report_html([InspectedRun(folder / "photos", device="cpu")]))
    finally:
        (folder / "elsewhere").rename(folder / "data")
    assert "The data of this run cannot be read: " in text
    shutil.copytree(two.run.folder, tmp_path / "half", ignore=shutil.ignore_patterns("posterior", "log.csv"))
    (tmp_path / "half" / "environment.json").write_text("{")
    text = words(report_html([InspectedRun(tmp_path / "half", device="cpu")]))
    assert "The posterior cannot be loaded: " in text
    assert "The environment cannot be read: " in text
    assert "There is no log of the training." in text
    stored = read_result(two.run.folder).parts["base"]
    assert f"{stored.accuracy:.2f}" in text
    assert "as stored in the run; intervals need its test images" in text


def test_an_image_that_is_lost_costs_the_answers_and_nothing_else(folder: Path) -> None:
    lost = folder / "data" / "plain"
    lost.rename(folder / "kept")
    shutil.copytree(folder / "kept", lost)
    try:
        for file in lost.iterdir():
            file.write_bytes(b"no image")
        text = words(report_html([InspectedRun(folder / "photos", device="cpu")]))
    finally:
        shutil.rmtree(lost)
        (folder / "kept").rename(lost)
    assert "The test images cannot be predicted: " in text
    assert "cannot be read as an image" in text


def test_scores_that_no_longer_hold_are_pointed_out(two: InspectedRun, tmp_path: Path) -> None:
    shutil.copytree(two.run.folder, tmp_path / "run")
    content = json.loads((tmp_path / "run" / "results.json").read_text())
    content["parts"]["novel"]["accuracy"] = 1.0
    (tmp_path / "run" / "results.json").write_text(json.dumps(content))
    assert "The stored accuracy on novel is 1.00 %" in words(
        report_html([InspectedRun(tmp_path / "run", device="cpu")])
    )


def test_a_file_that_is_not_the_one_that_was_written_is_pointed_out(two: InspectedRun, tmp_path: Path) -> None:
    assert two.remarks == []
    for name, place in (("results.json", b'"accuracy": '), ("log.csv", b"\n")):
        shutil.copytree(two.run.folder, tmp_path / name)
        file = tmp_path / name / name
        content = bytearray(file.read_bytes())
        content[content.index(place) + len(place)] ^= 1  # one bit of a digit, which makes another digit of it
        file.write_bytes(content)
        assert InspectedRun(tmp_path / name).remarks == [
            f"{name} has changed since this run wrote it: its checksum is another one."
        ]


def test_paired_differences_over_images_have_the_standard_error_of_paired_means(
    folder: Path, two: InspectedRun
) -> None:
    """1000 draws: the error is within 2.3 % in two of three cases, and 12 % is five times that."""
    other = InspectedRun(folder / "other", device="cpu")
    table = compare([two, other]).table
    assert table is not None
    found = next(row for row in table.rows if row[1] == "base")[table.columns.index("Δ NLL")]
    assert isinstance(found, Cell)
    nll = [
        -each.prediction.probabilities.gather(1, each.labels[:, None])[:, 0].log().double()
        for each in (other.parts["base"], two.parts["base"])
    ]
    difference = nll[0] - nll[1]
    assert found.value == pytest.approx(difference.mean().item(), abs=1e-6)
    assert found.interval is not None
    low, high = found.interval
    error = difference.std(correction=0).item() / len(difference) ** 0.5
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.12)
    assert (high + low) / 2 == pytest.approx(found.value, abs=1e-6)
    page = words(report_html([two, other]))
    part = two.parts["base"]
    ends = calibration_interval(part.prediction.probabilities.amax(-1), part.right)
    assert f"{part.scores['ece']:.1f} {ends.low:.1f} – {ends.high:.1f}" in page
    assert f"{found.value:+.3f} {low:+.3f} to {high:+.3f}" in page
    assert "Differences to “maple · ensemble" in page


def test_over_several_seeds_the_interval_is_students_over_seeds(folder: Path, two: InspectedRun) -> None:
    other = InspectedRun(folder / "other", device="cpu")
    again = [_with_seed(each, 2, turn) for each, turn in ((two, False), (other, True))]
    table = compare([two, other, *again]).table
    assert table is not None
    row = next(row for row in table.rows if row[1] == "base")
    pairs = [(other.parts["base"], two.parts["base"]), (again[1].parts["base"], again[0].parts["base"])]
    deltas = [100 * (ours.right.double().mean() - theirs.right.double().mean()).item() for ours, theirs in pairs]
    error = abs(deltas[0] - deltas[1]) / 2  # the standard error of two is half their distance
    half = math.tan(0.475 * math.pi) * error  # with two, Student's distribution is Cauchy's: t = tan(π·(0.975 − 0.5))
    cell = row[2]
    assert isinstance(cell, Cell)
    assert cell.value == pytest.approx(sum(deltas) / 2)
    assert cell.interval == pytest.approx((sum(deltas) / 2 - half, sum(deltas) / 2 + half))
    assert row[-1] == "2 seeds"


def _with_seed(seen: InspectedRun, seed: int, wrong: bool) -> InspectedRun:
    """As if the run had another seed, and perhaps as if all its answers on base classes were others."""
    changed = copy.copy(seen)
    changed.run = dataclasses.replace(
        seen.run,
        folder=seen.run.folder.with_name(f"{seen.run.folder.name}-{seed}"),
        config={**seen.run.config, "seed": seed},
        resolved={**seen.run.resolved, "seed": seed},
    )
    base = seen.parts["base"]
    turned = dataclasses.replace(base, labels=(base.labels + 1) % 5) if wrong else base
    changed.parts = {**seen.parts, "base": turned}
    return changed


def test_many_runs_are_compared_by_their_stored_scores_without_answering_again(folder: Path, tmp_path: Path) -> None:
    runs = []
    for seed in range(1, DETAILED + 2):
        for kind in ("ours", "theirs"):
            run = tmp_path / f"{kind}-{seed}"
            shutil.copytree(folder / "two", run, ignore=shutil.ignore_patterns("posterior"))
            config = json.loads((run / "config.json").read_text())
            config["seed"] = config["resolved"]["seed"] = seed
            config["resolved"]["shots"] = config["shots"] = 1 + (kind == "theirs")
            (run / "config.json").write_text(json.dumps(config))
            results = json.loads((run / "results.json").read_text())
            results["parts"]["base"]["accuracy"] = 50.0 + seed * (kind == "theirs")
            (run / "results.json").write_text(json.dumps(results))
            runs.append(InspectedRun(run, device="cpu"))
    page = report_html(runs)
    assert not any("parts" in vars(each) for each in runs), "nothing is predicted"
    text = words(page)
    deltas = range(1, DETAILED + 2)
    low, high = ttest_1samp(list(deltas), 0).confidence_interval(0.95)
    assert f"base {statistics.fmean(deltas):+.2f} {low:+.2f} to {high:+.2f}" in text
    assert f"{DETAILED + 1} seeds" in text
    assert "because there are more than 10 of them" in text
    assert "results.json has changed since this run wrote it" in text
    assert "<img" not in page
    Page(page)


def test_a_score_that_one_of_many_runs_has_not_stored_is_not_compared(folder: Path, tmp_path: Path) -> None:
    """As in results that were written before Brier scores were."""
    runs = []
    for seed in (1, 2):
        for shots in (1, 2):
            run = tmp_path / f"{shots}-{seed}"
            shutil.copytree(folder / "two", run, ignore=shutil.ignore_patterns("posterior"))
            config = json.loads((run / "config.json").read_text())
            for settings in (config, config["resolved"]):
                settings.update(seed=seed, shots=shots)
            (run / "config.json").write_text(json.dumps(config))
            if (seed, shots) == (2, 2):
                results = json.loads((run / "results.json").read_text())
                del results["parts"]["base"]["brier"]
                (run / "results.json").write_text(json.dumps(results))
            runs.append(InspectedRun(run, device="cpu"))
    table = compare(runs, stored=True).table
    assert table is not None
    base, novel = ([str(cell) for cell in row[2:6]] for row in table.rows[:2])
    assert (base, novel) == (["0.00", "0.000", "0.0", "–"], ["0.00", "0.000", "0.0", "0.000"])


def test_a_run_that_learned_from_every_image_shows_its_stored_scores(tmp_path: Path) -> None:
    """As `rebapl learn` leaves it: with several samples, and with no test images."""
    class_folders(tmp_path / "data", red=6, blue=6)
    config = CONFIG.changed(data=str(tmp_path / "data"), protocol="few-shot", fold="all", test_images=None)
    run(config, tmp_path / "run", device="cpu", score=False)
    scores = {"accuracy": 91.25, "nll": 0.3, "ece": 2.0, "images": 12}
    result = RunResult(parts={"test": scores}, protocols={"few-shot": ["test"]}, run=config.hash())
    write_result(tmp_path / "run", result)
    page = report_html([InspectedRun(tmp_path / "run", device="cpu")])
    text = words(page)
    assert ">Training</h2>" in page
    assert "Calibration" not in text, "sections on answers are left out, and the contents do not name them"
    assert "This run learned from every image, so that there are no test images to answer." in text
    assert "91.25" in text


def test_runs_on_other_images_are_left_out_of_the_comparison(folder: Path, two: InspectedRun) -> None:
    found = compare([two, InspectedRun(folder / "photos", device="cpu")])
    assert found.table is None
    assert "has no test images and seed in common with" in found.left_out[0]


def test_the_schedule_is_the_one_that_was_followed(two: InspectedRun) -> None:
    assert two.course is not None
    assert two.posterior is not None
    assert len(two.course.samples) == len(two.posterior)
    logged = {int(row["step"]): row["lr"] for row in two.log}
    assert logged
    assert {step: two.course.lr[step] for step in logged} == pytest.approx(logged)


@pytest.mark.parametrize("method", ["maple", "mmrl"])
def test_the_course_is_that_of_the_schedule_also_where_another_optimiser_burns_in(method: str) -> None:
    inference = RunConfig("digits", method, "rebapl", backbone="mini").resolved().training.inference
    assert inference is not None
    weight = torch.nn.Parameter(torch.zeros(1))
    schedule = build_schedule(inference, [weight], 8, 8 // min(8, inference.batch), torch.Generator())
    weight.grad = torch.zeros(1)
    lr, exploring, samples = [], [], []
    while not schedule.done:
        lr.append(schedule.lr)
        exploring.append(schedule.exploring)
        schedule.current.step()
        schedule.step()
        samples += [schedule.steps] * schedule.at_sample
    course = course_of(inference, 8, [])
    assert (course.exploring, course.samples) == (exploring, samples)
    assert course.lr == pytest.approx(lr)


def test_the_command_writes_the_file_and_refuses_what_is_no_run(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    done = CliRunner().invoke(app, ["report", str(folder / "photos"), "--out", str(out), "--device", "cpu", "-q"])
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("<!doctype html>")
    refused = {
        "is not a run": [str(folder / "two"), str(folder / "data")],
        "is a folder: name a file in it": [str(folder / "two"), "--out", str(tmp_path)],
        "named twice": [str(folder / "two"), f"{folder}/data/../two"],
    }
    for message, given in refused.items():
        with pytest.raises(UserError, match=message):
            CliRunner().invoke(app, ["report", *given], catch_exceptions=False)


def test_it_opens_in_a_browser_light_and_dark_without_a_word_on_the_console(two: InspectedRun, tmp_path: Path) -> None:
    page = write_report([two], tmp_path / "page.html")
    for scheme, number in (("light", 1), ("dark", 0)):
        flags = (f"--blink-settings=preferredColorScheme={number}", "--window-size=1100,1400")
        _, console = open_page(page, tmp_path / scheme, *flags, f"--screenshot={tmp_path / f'{scheme}.png'}")
        assert console == []
    light, dark = (
        torch.tensor(list(Image.open(tmp_path / f"{scheme}.png").convert("L").resize((11, 14)).tobytes()))
        .float()
        .mean()
        for scheme in ("light", "dark")
    )
    assert light > 200
    assert dark < 60


def test_nothing_is_wider_than_a_phone(two: InspectedRun, folder: Path, tmp_path: Path) -> None:
    """The page is put into a frame of 360 pixels, and a script outside of it measures it."""
    page = report_html([two, InspectedRun(folder / "photos", device="cpu")])
    page = (
        re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
        .replace("&", "&amp;")
        .replace('"', "&quot;")
    )
    measure = (
        "const d=document.querySelector('iframe').contentDocument.documentElement;"
        "document.title=d.scrollWidth+' of '+d.clientWidth"
    )
    frame = f'<iframe srcdoc="{page}" width="360" height="800" onload="{measure}" style="border:0"></iframe>'
    (tmp_path / "phone.html").write_text(f"<!doctype html><title>?</title>{frame}", encoding="utf-8")
    document, _ = open_page(tmp_path / "phone.html", tmp_path, "--dump-dom")
    assert "<title>360 of 360</title>" in document
