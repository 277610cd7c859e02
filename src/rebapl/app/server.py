"""The web server: the page, `POST /predict` and `GET /toy`, with limits on size, type and rate."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from rebapl import __version__
from rebapl.app.answering import Answering, TooBusyError, Upload, check_class_names, view_of
from rebapl.errors import UserError
from rebapl.reproduce.toy import one_chain

MAX_BYTES = 16 * 1024 * 1024
"""The largest body of a request; an image in it is a quarter smaller, since base64 makes it longer."""

RATE = 20.0
"""Requests a second that one address may make in the long run; at once it may make twice as many."""

ADDRESSES = 10_000
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Handler = Callable[[Request], Awaitable[Response]]


class RefusedError(Exception):
    """A request that is refused: the status of the response, and the sentence in it."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Rate:
    """How many requests each address may make now: a bucket that fills with `rate` a second up to `burst`."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str, now: float) -> bool:
        """Whether one more request is allowed; if so, it is counted."""
        left, before = self._buckets.pop(address, (self.burst, now))
        left = min(self.burst, left + (now - before) * self.rate)
        allowed = left >= 1
        self._buckets[address] = (left - 1 if allowed else left, now)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        return allowed


def build_app(answering: Answering, title: str, hosts: list[str], rate: float = RATE) -> Starlette:
    """The application. It answers only to the names in `hosts`, so that no other web page can reach it by a name."""
    limit, encoder = Rate(rate, max(1.0, 2 * rate)), answering.posterior.learner.encoder
    page = resources.files("rebapl.app").joinpath("page.html").read_text(encoding="utf-8")
    toy_turn = threading.Lock()

    def guarded(handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            address = request.client.host if request.client else ""
            try:
                if not limit.take(address, time.monotonic()):
                    raise RefusedError(429, f"more than {rate:g} requests a second: wait a moment")
                response = await handler(request)
            except RefusedError as refused:
                response = JSONResponse({"error": str(refused)}, refused.status)
            except TooBusyError as busy:
                response = JSONResponse({"error": str(busy)}, 503)
            except UserError as error:
                response = JSONResponse({"error": str(error)}, 400)
            except Exception:
                logging.getLogger("uvicorn.error").exception("a request failed")
                response = JSONResponse({"error": "the server failed on this request; its log says why"}, 500)
            if response.status_code in (429, 503):
                response.headers["Retry-After"] = "1"
            response.headers.update(HEADERS)
            return response

        return handle

    async def index(_: Request) -> Response:
        return HTMLResponse(page)

    async def about(_: Request) -> Response:
        posterior = answering.posterior
        said = {
            "run": title,
            "class_names": list(posterior.class_names),
            "samples": len(posterior),
            "threshold": posterior.threshold is not None,
            "set_level": None if posterior.conformal is None else posterior.conformal.level,
            "answered_together": {str(count): times for count, times in sorted(answering.together.items())},
            "version": __version__,
        }
        return JSONResponse(said)

    async def predict(request: Request) -> Response:
        given = await _json(request)
        unknown = given.keys() - {"image", "class_names", "top", "nearest"}
        if unknown:
            raise UserError(f"unknown field {sorted(unknown)[0]!r}: accepted are image, class_names, top, nearest")
        top, nearest = given.get("top", 3), given.get("nearest", False)
        if type(top) is not int or top < 1 or type(nearest) is not bool:
            raise UserError("top is a whole number of at least 1, and nearest is true or false")
        names = check_class_names(given.get("class_names"))
        view = await asyncio.to_thread(view_of, _bytes(given.get("image")), encoder.preprocessing)
        future = answering.ask(Upload(view, names, top, nearest))
        return JSONResponse(await asyncio.wrap_future(future))

    async def toy(request: Request) -> Response:
        query = request.query_params
        strength = _number(query.get("strength", "50"), "strength", 0, 2000)
        temperature = _number(query.get("temperature", "1"), "temperature", 0, 5)
        cycles = int(_number(query.get("cycles", "6"), "cycles", 1, 12))
        seed = int(_number(query.get("seed", "1"), "seed", 0, 1e6))

        def work() -> dict[str, Any]:
            with toy_turn:  # one at a time: it computes for about a second
                return one_chain(strength, temperature, cycles, seed)

        return JSONResponse(await asyncio.to_thread(work))

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        answering.start()
        yield
        await asyncio.to_thread(answering.stop)

    app = Starlette(
        routes=[
            Route("/", guarded(index)),
            Route("/about", guarded(about)),
            Route("/predict", guarded(predict), methods=["POST"]),
            Route("/toy", guarded(toy)),
        ],
        lifespan=life,
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return app


async def _json(request: Request) -> dict[str, Any]:
    """The JSON object in the body of a request, which is read only as far as is allowed."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "send JSON, with Content-Type: application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BYTES:
            raise RefusedError(413, f"the body is longer than {MAX_BYTES // 2**20} MiB")
    try:
        given = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise UserError("the body is not JSON") from error
    if not isinstance(given, dict):
        raise UserError('the body is not a JSON object, such as {"image": "…"}')
    return given


def _bytes(text: object) -> bytes:
    if not isinstance(text, str) or not text:
        raise UserError("image is missing: give the content of the file in base64")
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserError("image is not base64") from error


def _number(text: str, name: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise UserError(f"{name} is a number from {low:g} to {high:g}")
    return value
