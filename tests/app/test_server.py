"""The server of `rebapl serve`: the numbers of `rebapl predict`, many clients, limits, and a page that works."""

import asyncio
import base64
import concurrent.futures
import contextlib
import dataclasses
import io
import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from chromium import open_page
from driving import driven
from pages import blocks
from PIL import Image
from small_run import CONFIG
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from typer.testing import CliRunner

import load_serve
from rebapl.app import answering as answering_module
from rebapl.app import server as server_module
from rebapl.app.answering import WAITING, Answering, RefusedError, view_of
from rebapl.app.server import HEADERS, MAX_BYTES, Rate, build_app, server_of
from rebapl.cli.commands import app as commands
from rebapl.errors import UserError
from rebapl.posterior import Posterior, load_posterior, save_posterior
from rebapl.posterior.answers import Question, answer_files
from rebapl.posterior.conformal import Conformal
from rebapl.posterior.prediction import Outside, Prediction, Threshold
from rebapl.runs.run import run as do_run

NAMES = ["cat", "dog", "zero"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run whose prediction sets contain all classes."""
    folder = tmp_path_factory.mktemp("serve")
    do_run(CONFIG, folder / "run", device="cpu", score=False)
    trained = load_posterior(folder / "run")
    names = tuple(trained.class_names)
    every = Conformal(0.9, 1.0, "probabilities", names, images=20, size=float(len(names)))
    save_posterior(dataclasses.replace(trained, conformal=every), folder / "run" / "posterior")
    return folder / "run"


@pytest.fixture(scope="module")
def posterior(run: Path) -> Posterior:
    return load_posterior(run)


@pytest.fixture(scope="module")
def images(run: Path) -> list[Path]:
    """Eight different test images."""
    dataset = CONFIG.task().dataset
    paths = [run.parent / f"{number}.png" for number in range(8)]
    for path, item in zip(paths, dataset.test[::60], strict=False):
        dataset.load(item.key).save(path)
    return paths


@pytest.fixture(scope="module")
def address(posterior: Posterior, images: list[Path]) -> Iterator[str]:
    """A real server on a free port. `/driven` and `/typed` are the page with a script that operates it."""
    app = build_app(Answering(posterior, CONFIG.task()), "<b>the run</b>", ["127.0.0.1"], rate=1000.0)
    page = resources.files("rebapl.app").joinpath("page.html").read_text(encoding="utf-8")
    content = encoded(images[0])
    for path, text in (("/driven", driven(page, content)), ("/typed", driven(page, content, "a<b>\\ndog"))):
        app.router.routes.append(Route(path, lambda _, text=text: HTMLResponse(text, headers=HEADERS)))
    with serving(app) as (_, place):
        yield place


@contextlib.contextmanager
def serving(app: Starlette) -> Iterator[tuple[uvicorn.Server, str]]:
    """A server that runs until the end of the block, and its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = server_of(app)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def post(address: str, body: bytes, **headers: str) -> tuple[int, Any]:
    given = {"Content-Type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
    request = urllib.request.Request(f"{address}/predict", body, given)
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        return error.code, json.loads(text) if text.startswith("{") else text


def ask(address: str, image: Path, **more: Any) -> tuple[int, Any]:
    return post(address, json.dumps({"image": encoded(image), **more}).encode())


def test_the_numbers_are_those_of_predict_to_the_last_digit(address: str, run: Path, images: list[Path]) -> None:
    words = ["predict", str(run), str(images[0]), "--format", "json", "--device", "cpu", "--top", "2", "-q"]
    for more, names in (([], None), (["--classes", ",".join(NAMES)], NAMES)):
        said = json.loads(CliRunner().invoke(commands, [*words, *more], catch_exceptions=False).stdout)
        status, found = ask(address, images[0], class_names=names, top=2)
        assert status == 200
        said["images"][0]["image"] = "image"
        assert {key: found[key] for key in said} == said


def test_eight_clients_at_once_each_get_their_own_answer_whoever_else_asks(
    address: str, posterior: Posterior, images: list[Path]
) -> None:
    wanted = {}
    for names in (None, tuple(NAMES)):
        bound = posterior.among(None if names is None else list(names))
        for image in images:
            ((record,),) = answer_files(bound, [image], Question(sets=names is None))
            wanted[image, names] = {**record, "image": "image"}
    work = [(image, names) for _ in range(3) for image in images for names in (None, tuple(NAMES))]
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda each: ask(address, each[0], class_names=each[1] and list(each[1])), work))
    assert [status for status, _ in found] == [200] * len(work)
    assert [answer["images"][0] for _, answer in found] == [wanted[each] for each in work]


def test_requests_that_wait_are_answered_in_their_order_before_it_stops(
    posterior: Posterior, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, go, answer = list[tuple[Any, ...]](), threading.Event(), Answering._answer
    monkeypatch.setattr(
        Answering, "_answer", lambda self, *image: (go.wait(600), answered.append(image[:2]), answer(self, *image))[2]
    )
    answering = Answering(posterior)
    preprocessing = posterior.learner.encoder.preprocessing
    views = [view_of(image.read_bytes(), preprocessing) for image in images]
    questions = [(view, names) for view in views for names in (None, tuple(NAMES))]
    answers = [answering.ask(*question) for question in questions]
    assert answers.pop(3).cancel(), "a client that has gone"
    go.set()
    answering.stop()
    expected = [question for number, question in enumerate(questions) if number != 3]
    assert [(id(view), names) for view, names in answered] == [(id(view), names) for view, names in expected]
    assert all(each.result()["samples"] == 2 for each in answers)


def test_each_sample_has_an_opinion_and_near_training_images_are_shown(
    address: str, posterior: Posterior, images: list[Path]
) -> None:
    _, found = ask(address, images[0], nearest=True)
    alone = posterior.predict(images[0]).per_sample[:, 0]
    assert [each["probability"] for each in found["opinions"]] == alone.max(-1).values.tolist()
    assert [each["class"] for each in found["opinions"]] == [posterior.class_names[i] for i in alone.argmax(-1)]
    cosines = [each["cosine"] for each in found["nearest"]]
    assert len(cosines) == 4
    assert cosines == sorted(cosines, reverse=True)
    assert all(each["picture"].startswith("data:image/jpeg;base64,") for each in found["nearest"])


def test_a_training_image_is_nearest_to_itself(address: str, run: Path) -> None:
    task = CONFIG.task()
    task.dataset.load(task.train.items[3].key).save(run.parent / "trained.png")
    _, found = ask(address, run.parent / "trained.png", nearest=True)
    assert found["nearest"][0]["class"] == task.train.items[3].class_name
    assert found["nearest"][0]["cosine"] == pytest.approx(1, abs=1e-5)


def large() -> str:
    buffer = io.BytesIO()
    Image.new("1", (10_000, 6_000)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[1]", 400, "not a JSON object"),
        (b"{}", 400, "image is missing"),
        (b'{"image": "%%%"}', 400, "not base64"),
        (b'{"image": "aGVsbG8="}', 400, "in no format of images that is known"),
        (b'{"image": "aGVsbG8=", "clases": []}', 400, "did you mean 'class_names'"),
        (b'{"image": "aGVsbG8=", "class_names": ["a"]}', 400, "it must be at least 2 values"),
        (b'{"image": "aGVsbG8=", "class_names": ["a", ""]}', 400, "class_names.1 is '': it must be at least 1 long"),
        (b'{"image": "aGVsbG8=", "top": true}', 400, "top is True: it must be a whole number"),
        (b" " * (MAX_BYTES + 1), 413, "longer than 16 MiB"),
        (b" " * (17 * 2**20), 413, "longer than 16 MiB"),
        (json.dumps({"image": large()}).encode(), 400, "10000 × 6000 pixels"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_bad_requests_are_refused_with_a_sentence_and_good_ones_still_answered(
    address: str, images: list[Path], body: bytes, status: int, message: str
) -> None:
    found, said = post(address, body)
    assert (found, message in said["error"]) == (status, True), said
    assert ask(address, images[0])[0] == 200


def test_half_an_image_repeated_names_other_types_and_foreign_hosts_are_refused(
    address: str, images: list[Path]
) -> None:
    half = base64.b64encode(images[0].read_bytes()[:100]).decode()
    assert post(address, json.dumps({"image": half}).encode())[0] == 400
    assert "names must differ" in ask(address, images[0], class_names=["a", "a"])[1]["error"]
    assert post(address, b"image=1", Content_Type="application/x-www-form-urlencoded")[0] == 415
    assert post(address, b"{}", Host="evil.example")[0] == 400


def test_a_failure_inside_is_told_and_the_next_question_is_answered(
    posterior: Posterior, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = view_of(images[0].read_bytes(), posterior.learner.encoder.preprocessing)
    answering = Answering(posterior)
    answering.start()
    with monkeypatch.context() as patch:
        patch.setattr(Prediction, "to_dict", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            answering.ask(view).result(timeout=600)
    assert answering.ask(view).result(timeout=600)["samples"] == 2
    answering.stop()


def test_the_latest_class_names_are_kept_and_older_ones_forgotten(
    posterior: Posterior, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering_module, "KEPT", 2)
    view = view_of(images[0].read_bytes(), posterior.learner.encoder.preprocessing)
    bound: list[list[str]] = []
    original = Posterior.bind
    monkeypatch.setattr(
        Posterior, "bind", lambda self, names, *more: bound.append(names) or original(self, names, *more)
    )
    answering = Answering(posterior)
    answering.start()
    lists = [("cat", "dog"), ("one", "two"), ("cat", "dog"), ("cat", "dog", "zero"), ("cat", "dog"), ("one", "two")]
    for names in lists:
        said = answering.ask(view, names).result(timeout=600)
        assert tuple(said["class_names"]) == names
    answering.stop()
    assert bound == [["cat", "dog"], ["one", "two"], ["cat", "dog", "zero"], ["one", "two"]]


def test_too_many_that_wait_and_too_many_a_second_are_refused(
    posterior: Posterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr(Answering, "_answer", lambda *_: go.wait(600))
    answering = Answering(posterior)
    answers = [answering.ask(torch.zeros(0)) for _ in range(WAITING)]
    with pytest.raises(RefusedError, match="64 requests wait already"):
        answering.ask(torch.zeros(0))
    assert answers.pop().cancel(), "a client that has gone leaves its place"
    answering.ask(torch.zeros(0))
    go.set()
    concurrent.futures.wait(answers)
    answering.ask(torch.zeros(0)).result(timeout=600)
    answering.stop()
    limit = Rate(2.0, 4.0)
    assert [limit.take("a", 0.0) for _ in range(5)] == [True] * 4 + [False]
    assert limit.take("b", 0.0), "each address has its own"
    assert [limit.take("a", 0.6) for _ in range(2)] == [True, False]


def test_it_says_when_it_does_not_know(posterior: Posterior, images: list[Path]) -> None:
    never = Threshold("max-probability", -1.0, "probabilities", tuple(posterior.class_names), 0.0, 0.5, 10)
    answering = Answering(dataclasses.replace(posterior, threshold=never))
    answering.start()
    view = view_of(images[0].read_bytes(), posterior.learner.encoder.preprocessing)
    assert answering.ask(view).result(timeout=600)["images"][0]["answer"] is None
    among = answering.ask(view, tuple(NAMES)).result(timeout=600)
    assert among["images"][0]["answer"] in NAMES, "a threshold holds for the class names that it was fitted for"
    answering.stop()


def test_it_says_none_of_these_by_image_features_and_answers_at_the_temperature(
    posterior: Posterior, images: list[Path]
) -> None:
    """The bank has a single, distant image, so that every other image counts as outside."""
    view = view_of(images[0].read_bytes(), posterior.learner.encoder.preprocessing)
    strange = Outside("neighbours", 0.5, 0.05, "probabilities", tuple(posterior.class_names), 19)
    bank = {"features": -posterior.image_features(view[None])}
    answering = Answering(dataclasses.replace(posterior.with_temperature(2), outside=strange, bank=bank))
    answering.start()
    said = answering.ask(view).result(timeout=600)
    assert (said["images"][0]["answer"], said["images"][0]["outside"], said["temperature"]) == (None, True, 2)
    among = answering.ask(view, tuple(NAMES)).result(timeout=600)
    assert (among["images"][0]["answer"] in NAMES, among["images"][0]["outside"]) == (True, None)
    answering.stop()


def test_it_shows_the_prediction_set(posterior: Posterior, images: list[Path]) -> None:
    answering = Answering(posterior)
    answering.start()
    view = view_of(images[0].read_bytes(), posterior.learner.encoder.preprocessing)
    said = answering.ask(view).result(timeout=600)
    assert said["conformal"] == {"level": 0.9, "score": "probability", "quantile": 1.0}
    assert sorted(said["images"][0]["set"]) == sorted(posterior.class_names)
    among = answering.ask(view, tuple(NAMES)).result(timeout=600)
    assert (among["conformal"], among["images"][0]["set"]) == (None, None), "it holds for its own class names"
    answering.stop()


HEAD = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"


def connected(address: str, sent: bytes) -> socket.socket:
    """A client that has sent these bytes and sends no more."""
    client = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
    client.sendall(sent)
    return client


def received(client: socket.socket) -> bytes:
    """Everything that the client receives until the server disconnects."""
    client.settimeout(60)
    parts = []
    while part := client.recv(4096):
        parts.append(part)
    return b"".join(parts)


def test_headers_and_bodies_that_do_not_come_are_not_waited_for(
    posterior: Posterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(server_module, "BODY_SECONDS", 0.2)
    with serving(build_app(Answering(posterior), "run", ["127.0.0.1"])) as (_, address):
        assert received(connected(address, b"")) == b""
        assert received(connected(address, HEAD)) == b""
        assert b"408" in received(connected(address, HEAD + b"Connection: close\r\n\r\n{")).splitlines()[0]


@contextlib.contextmanager
def logged(app: Starlette, caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    """A server as in `serving`, whose log goes to `caplog` as well: uvicorn does not pass it on to the root logger."""
    logger = logging.getLogger("uvicorn")
    with serving(app) as (_, address):
        logger.addHandler(caplog.handler)  # after the server has configured its loggers
        yield address
    logger.removeHandler(caplog.handler)


def test_an_unfinished_upload_does_not_keep_the_server_from_ending(
    posterior: Posterior, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LAST_SECONDS", 0.0)
    reading = threading.Event()
    read = server_module.Bodies.read

    async def heard(self: Any, request: Any) -> bytes:
        reading.set()
        return await read(self, request)

    monkeypatch.setattr(server_module.Bodies, "read", heard)
    with logged(build_app(Answering(posterior), "run", ["127.0.0.1"]), caplog) as address:
        client = connected(address, HEAD + b"\r\n{")
        assert reading.wait(60)
    assert "timeout graceful shutdown exceeded" in caplog.text, "the log was captured"
    assert not [record for record in caplog.records if record.exc_info]
    client.close()


def test_a_client_that_leaves_is_not_in_the_log(
    posterior: Posterior, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = threading.Event()
    read = server_module.Bodies.read

    async def heard(self: Any, request: Any) -> bytes:
        try:
            return await read(self, request)
        finally:
            left.set()

    monkeypatch.setattr(server_module.Bodies, "read", heard)
    with logged(build_app(Answering(posterior), "run", ["127.0.0.1"]), caplog) as address:
        connected(address, HEAD + b"\r\n{").close()
        assert left.wait(60)
    assert not [record for record in caplog.records if record.exc_info]


def test_bodies_share_a_limit_of_memory_and_what_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_BYTES", 100)
    monkeypatch.setattr(server_module, "MAX_BYTES_OF_ALL", 150)

    class Sent:
        def __init__(self, *sizes: int) -> None:
            self.sizes = sizes

        async def stream(self) -> Any:
            for size in self.sizes:
                held.append(bodies.held)
                yield b"x" * size

    async def together() -> bytes:
        stalled, go = asyncio.Event(), asyncio.Event()

        class Stalled(Sent):
            async def stream(self) -> Any:
                yield b"x" * 80
                stalled.set()
                await go.wait()

        first = asyncio.create_task(bodies.read(Stalled()))
        await stalled.wait()
        with pytest.raises(RefusedError):
            await bodies.read(Sent(60, 20))
        assert await bodies.read(Sent(60)) == b"x" * 60
        go.set()
        return await first

    bodies, held = server_module.Bodies(), list[int]()
    assert asyncio.run(together()) == b"x" * 80
    assert bodies.held == 0
    with pytest.raises(RefusedError):
        asyncio.run(bodies.read(Sent(90, 90, 90)))
    assert held[-2:] == [90, 0]


def test_a_client_cannot_choose_its_address_unless_a_proxy_is_in_front(posterior: Posterior) -> None:
    with serving(build_app(Answering(posterior), "run", ["127.0.0.1"], rate=0.1)) as (_, address):
        found = [post(address, b"{}", X_Forwarded_For=f"10.0.0.{number}")[0] for number in range(3)]
    assert found == [400, 429, 429]
    assert not server_of(build_app(Answering(posterior), "run", ["*"])).config.proxy_headers
    assert server_of(build_app(Answering(posterior), "run", ["*"]), behind_proxy=True).config.proxy_headers


def test_a_model_that_fails_at_the_start_ends_the_server_instead_of_letting_requests_wait(
    posterior: Posterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering_module, "quickest_threads", lambda _: 1 / 0)
    answering = Answering(posterior)
    with pytest.raises(ZeroDivisionError):
        answering.start()
    server = server_of(build_app(answering, "run", ["127.0.0.1"]), quiet=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        with pytest.raises(SystemExit):
            server.run(sockets=[listener])


def test_the_number_of_threads_is_the_quicker_one(posterior: Posterior, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    for took, wanted in (([0, 1, 1, 9], 1), ([0, 9, 9, 10], 8)):
        ticks = iter(took)
        assert answering_module.quickest_threads(posterior, lambda ticks=ticks: float(next(ticks))) == wanted
    assert chosen == [1, 8, 8] * 2


def test_the_page_shows_the_answer_to_a_dropped_image(address: str, images: list[Path], tmp_path: Path) -> None:
    _, found = ask(address, images[0], top=5)
    document, console = open_page(f"{address}/driven", tmp_path, "--virtual-time-budget=30000", "--dump-dom")
    assert console == []
    assert f'id="answer">{found["images"][0]["answer"]}</p>' in document
    assert f"{100 * found['images'][0]['top'][0]['probability']:.1f} % (" in document
    assert f"The prediction set has 5 classes: {', '.join(found['images'][0]['set'])}. For 90 % of images" in document
    assert document.count("<tr>") == 1 + 2, "a row for each sample"
    assert document.count("Training image of class") == 4 + 1, "four pictures, and the script that makes them"
    assert "&lt;b&gt;the run&lt;/b&gt;" in document


def test_the_page_answers_among_typed_names(address: str, tmp_path: Path) -> None:
    document, console = open_page(f"{address}/typed", tmp_path, "--virtual-time-budget=30000", "--dump-dom")
    assert console == []
    assert "a&lt;b&gt;" in document.split('id="bars"')[1]
    assert '<p id="set" hidden=""></p>' in document, "the sets are of other class names"


def test_the_command_says_what_is_wrong(run: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(UserError, match=f"cannot listen at 127.0.0.1, port {port}"):
            CliRunner().invoke(commands, ["serve", str(run), "--port", port, "--device", "cpu"], catch_exceptions=False)
    with pytest.raises(UserError, match="no such run"):
        CliRunner().invoke(commands, ["serve", str(run / "nothing")], catch_exceptions=False)


def test_the_example_in_the_documentation_runs(
    address: str,
    images: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code,) = blocks("docs/serve.md")
    assert "http://127.0.0.1:8000" in code
    (tmp_path / "photo.jpg").write_bytes(images[0].read_bytes())
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace("http://127.0.0.1:8000", address), "docs/serve.md", "exec"), {})
    assert capsys.readouterr().out.split()[0] in ("cat", "dog")


def test_the_load_test_counts_what_it_asks(address: str, images: list[Path]) -> None:
    waits, refused = load_serve.load(address, images[0], clients=3, seconds=0.2)
    assert len(waits) >= 3
    assert refused == 0
