"""Many runs: one after the other, or in several processes side by side, on one device or several.

Runs are independent, so where they happen changes nothing but the time. On one GPU, small runs leave most of it idle,
and a handful of processes share it well.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from rebapl.errors import UserError
from rebapl.runs.folder import RunConfig, best_device, finish_run, is_finished, run_folder

Finished = Callable[[int, int, str], None]
"""Called as runs end with how many have, how many there are, and the folder's name of the last."""


def run_all(
    configs: Sequence[RunConfig],
    runs: Path,
    *,
    root: Path | None = None,
    devices: Sequence[str] | None = None,
    jobs: int = 1,
    progress: Finished | None = None,
) -> list[Path]:
    """The folders of all these runs, each trained and scored unless it was; `jobs` at a time on each device.

    `devices` None is the GPU if there is one. A run that fails does not stop the others: what failed is said at the
    end, and calling this again does only what is missing.
    """
    if jobs < 1:
        raise UserError(f"jobs = {jobs}: at least one run at a time is needed")
    places = [best_device(device) for device in devices] if devices else [best_device()]
    folders = [run_folder(config, runs) for config in configs]
    pairs = zip(folders, configs, strict=True)
    missing = [(folder, config) for folder, config in pairs if not is_finished(config, folder)]
    done = len(folders) - len(missing)
    failures: list[tuple[Path, str]] = []

    def ended(folder: Path, failure: BaseException | None) -> None:
        nonlocal done
        done += 1
        if failure is not None:
            failures.append((folder, str(failure).splitlines()[0] if str(failure) else repr(failure)))
        if progress is not None:
            progress(done, len(folders), folder.name)

    workers = min(jobs * len(places), len(missing))
    if workers <= 1:
        for folder, config in missing:
            ended(folder, _attempt(config, runs, root, places[0]))
    else:
        _spread(missing, runs, root, places, workers, ended)
    if failures:
        lines = "\n".join(f"  {folder.name}: {why}" for folder, why in failures)
        raise UserError(f"{len(failures)} of {len(folders)} runs failed; the others are kept in {runs}:\n{lines}")
    return folders


def _attempt(config: RunConfig, runs: Path, root: Path | None, device: str) -> Exception | None:
    try:
        finish_run(config, runs, root=root, device=device)
    except Exception as error:
        return error
    return None


def _spread(
    missing: Sequence[tuple[Path, RunConfig]],
    runs: Path,
    root: Path | None,
    places: Sequence[str],
    workers: int,
    ended: Callable[[Path, BaseException | None], None],
) -> None:
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU of its parent
    turns = context.Queue()
    for place in range(workers):
        turns.put(places[place % len(places)])
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(workers, context, _settle, (turns, threads)) as pool:
        waiting = {pool.submit(_run_here, config, runs, root): folder for folder, config in missing}
        try:
            for future in as_completed(waiting):
                ended(waiting[future], future.exception())
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()  # what it was at goes on from its checkpoint the next time
            raise


_here: dict[str, str] = {}


def _settle(turns: Any, threads: int) -> None:
    """In a new process: take a device, and leave it to the parent to be interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _here["device"] = turns.get()
    torch.set_num_threads(threads)


def _run_here(config: RunConfig, runs: Path, root: Path | None) -> None:
    finish_run(config, runs, root=root, device=_here["device"])
