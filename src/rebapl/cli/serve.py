"""`rebapl serve`: a web page and a JSON API that answer with a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli import options
from rebapl.errors import UserError


def serve(
    run: options.RunArgument,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    rate: Annotated[float, typer.Option(min=0.1)] = 20.0,
    behind_proxy: bool = False,
    root: Path | None = None,
    backbone: str | None = None,
    device: options.OneDevice = None,
    quiet: options.QuietOption = False,
) -> None:
    """Serve a web page and a JSON API that answer with a run (needs the extra `app`).

    Parameters:
        run: Folder of a trained run, or of a posterior.
        host: The address to listen at. Only this machine can reach 127.0.0.1.
        port: The port to listen at; 0 takes any free one.
        rate: Largest number of requests a second from one address.
        behind_proxy: A web server on this machine forwards the requests: take the addresses of clients from its header
            X-Forwarded-For.
    """
    try:
        from rebapl.app.server import build_app, server_of
    except ImportError as error:
        raise UserError(f"`rebapl serve` needs {error.name}: pip install 'rebapl[app]'") from error
    import socket

    from rebapl.app.answering import Answering
    from rebapl.cli.run_notes import notes_of
    from rebapl.data.task import Task
    from rebapl.posterior import load_posterior
    from rebapl.runs.folder import CONFIG, read_config
    from rebapl.runs.machine import best_device

    posterior = load_posterior(run, backbone, best_device(device))
    task: Task | None = None
    if (run / CONFIG).exists():
        try:
            task = read_config(run).task(root)
        except (UserError, OSError) as error:
            print(f"no training images are shown beside answers: {error}", file=sys.stderr)
    for note in notes_of(run, posterior):
        print(note, file=sys.stderr)
    answering = Answering(posterior, task)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise UserError(
                f"cannot listen at {host}, port {port} ({error.strerror}): choose another --host or --port"
            ) from error
        local = host in ("127.0.0.1", "localhost", "::1")
        app = build_app(answering, run.name, ["127.0.0.1", "localhost", "[::1]"] if local else ["*"], rate)
        print(f"serving {run} at http://{host}:{listener.getsockname()[1]} (Ctrl-C ends it)", flush=True)
        server_of(app, quiet, behind_proxy).run(sockets=[listener])
