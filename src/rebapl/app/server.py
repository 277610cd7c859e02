"""The web server: the page and `POST /predict`, with limits on size, type, rate and time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Annotated

import uvicorn
from pydantic import Field, StringConstraints
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from rebapl import __version__
from rebapl.app.answering import Answering, RefusedError, view_of
from rebapl.errors import UserError
from rebapl.settings import Settings

MAX_BYTES = 16 * 1024 * 1024
"""The largest request body, in bytes. Base64 makes an image longer, so the largest image is a quarter smaller."""

MAX_BYTES_OF_ALL = 4 * MAX_BYTES
"""The largest total size, in bytes, of request bodies being received at one time. Further requests are refused until
some have arrived."""

HEADER_SECONDS, BODY_SECONDS, LAST_SECONDS = 10.0, 30.0, 5.0
"""The most seconds that a client may take to send the headers and the body of a request, and that the server waits for
unfinished requests when it is ended."""

CONNECTIONS = 256
"""The largest number of clients that are connected at the same time."""

DECODED_AT_ONCE = 2
"""The largest number of images that are decoded at the same time. A large one takes 150 MB."""

RATE = 20.0
"""Requests per second that one address may make on average. In a burst it may make twice this number at once."""

ADDRESSES = 10_000
"""The number of addresses, the latest ones, whose requests are counted."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

MAX_CLASSES, MAX_LETTERS = 200, 200
"""The largest number of class names in a request, and of characters in each."""

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_LETTERS)]
Handler = Callable[[Request], Awaitable[Response]]


class PredictRequest(Settings):
    """The body of a request: the content of an image file in base64, and what the answer is to contain.

    docs/serve.md describes the fields.
    """

    image: str
    class_names: Annotated[list[Name], Field(min_length=2, max_length=MAX_CLASSES)] | None = None
    top: Annotated[int, Field(ge=1)] = 3
    nearest: bool = False

    def content(self) -> bytes:
        """The bytes of the image file. The text may also be a data URL, as browsers make it."""
        text = self.image.partition(",")[2] if self.image.startswith("data:") else self.image
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:
            raise UserError("image is not base64") from error


class Rate:
    """A limit on the requests of each address: a bucket that refills at `rate` per second, up to `burst`."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str, now: float) -> bool:
        """Count one more request at the time `now`, in seconds, if it is allowed. Return whether it is."""
        left, before = self._buckets.pop(address, (self.burst, now))
        left = min(self.burst, left + (now - before) * self.rate)
        allowed = left >= 1
        self._buckets[address] = (left - 1 if allowed else left, now)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        return allowed


class Impatient(H11Protocol):
    """Uvicorn's HTTP protocol, which disconnects if the headers of a request do not arrive within `HEADER_SECONDS`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._wait_for_headers()

    def on_response_complete(self) -> None:
        """A response was sent, and the next request may follow."""
        super().on_response_complete()
        self._wait_for_headers()

    def _wait_for_headers(self) -> None:
        before = self.cycle

        def hang_up() -> None:
            if self.cycle is before and not self.transport.is_closing():
                self.transport.close()

        self.loop.call_later(HEADER_SECONDS, hang_up)


def server_of(app: Starlette, quiet: bool = False, behind_proxy: bool = False) -> uvicorn.Server:
    """The server of an application. Only with `behind_proxy` does X-Forwarded-For from this machine name the client."""
    config = uvicorn.Config(
        app,
        http=Impatient,
        log_level="error" if quiet else "warning",
        server_header=False,
        lifespan="on",
        proxy_headers=behind_proxy,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=int(LAST_SECONDS),
    )
    return uvicorn.Server(config)


class Bodies:
    """Reads the bodies of requests. Each has a limit on size and time, and all together have a limit on memory."""

    def __init__(self) -> None:
        self.held = 0

    async def read(self, request: Request) -> bytes:
        """The body of a request. A body that is too large is received to its end but not stored, and then refused."""
        body, size = bytearray(), 0

        async def receive() -> None:
            nonlocal size
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BYTES:
                    self.held -= len(body)
                    body.clear()
                    if size > 4 * MAX_BYTES:
                        return
                    continue
                if self.held + len(chunk) > MAX_BYTES_OF_ALL:
                    raise RefusedError(503, "too many images are on their way: try again in a moment")
                self.held += len(chunk)
                body.extend(chunk)

        try:
            await asyncio.wait_for(receive(), BODY_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            raise RefusedError(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None
        finally:
            self.held -= len(body)
        if size > MAX_BYTES:
            raise RefusedError(413, f"the body is longer than {MAX_BYTES // 2**20} MiB")
        return bytes(body)


def build_app(answering: Answering, title: str, hosts: list[str], rate: float = RATE) -> Starlette:
    """The application. It accepts only the host names in `hosts`, so that other web pages cannot reach it by a name."""
    limit, encoder = Rate(rate, max(1.0, 2 * rate)), answering.posterior.learner.encoder
    page = resources.files("rebapl.app").joinpath("page.html").read_text(encoding="utf-8")
    bodies, decoding = Bodies(), asyncio.Semaphore(DECODED_AT_ONCE)

    def guarded(handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            address = request.client.host if request.client else ""
            try:
                if not limit.take(address, time.monotonic()):
                    raise RefusedError(429, f"more than {rate:g} requests a second: wait a moment")
                response = await handler(request)
            except RefusedError as refused:
                response = JSONResponse({"error": str(refused)}, refused.status)
            except UserError as error:
                response = JSONResponse({"error": str(error)}, 400)
            except ClientDisconnect:
                return Response(status_code=400)  # which nobody receives
            except asyncio.CancelledError:  # the server was ended, and this request took longer than `LAST_SECONDS`
                response = JSONResponse({"error": "the server is ending: try again later"}, 503)
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
        content = {
            "run": title,
            "class_names": list(posterior.class_names),
            "samples": len(posterior),
            "threshold": posterior.threshold is not None,
            "temperature": posterior.temperature_for(),
            "outside": posterior.outside is not None,
            "set_level": None if posterior.conformal is None else posterior.conformal.level,
            "version": __version__,
        }
        return JSONResponse(content)

    async def predict(request: Request) -> Response:
        question = await _read(request, bodies)
        async with decoding:
            view = await asyncio.to_thread(view_of, question.content(), encoder.preprocessing)
        future = answering.ask(view, question.class_names, question.top, question.nearest)
        return JSONResponse(await asyncio.wrap_future(future))

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(answering.start)
        yield
        await asyncio.to_thread(answering.stop)

    app = Starlette(
        routes=[
            Route("/", guarded(index)),
            Route("/about", guarded(about)),
            Route("/predict", guarded(predict), methods=["POST"]),
        ],
        lifespan=life,
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return app


async def _read(request: Request, bodies: Bodies) -> PredictRequest:
    """The checked content of the body of a request."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "send JSON, with Content-Type: application/json")
    body = await bodies.read(request)
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError("the body is not JSON") from error
    if not isinstance(content, dict):
        raise UserError('the body is not a JSON object, such as {"image": "…"}')
    return PredictRequest(**content)
