"""Do a thousand tiny runs with the local engine, and a thousand with Ray: `make soak`.

Each run must be done exactly once, and the memory of the process that hands them out must not grow. The numbers are
written to `docs/benchmarks/soak.json`.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rebapl.files import write_json
from rebapl.runs.clusters import RayEngine
from rebapl.runs.config import RunConfig
from rebapl.runs.engine import Engine, LocalEngine
from rebapl.runs.jobs import Outcome
from rebapl.runs.run import Job

OUT = Path(__file__).parents[1] / "docs" / "benchmarks" / "soak.json"
GROWTH_MIB = 32.0
"""The largest growth of the memory of this process after the first fifth of the runs, in MiB."""


def tiny(seed: int) -> RunConfig:
    """A run of one step and two scored images."""
    settings = {"batch": 1, "epochs": 1}
    return RunConfig("digits", backbone="mini", shots=1, seed=seed, test_images=1, inference_settings=settings)


def resident() -> float:
    """The resident memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def soak(name: str, engine: Engine[Any], count: int, runs: Path) -> dict[str, Any]:
    """Do `count` runs on an engine, and return the record of it."""
    jobs = [Job.of(tiny(seed), runs) for seed in range(1, count + 1)]
    ends: Counter[Path] = Counter()
    memory: list[float] = []
    outcomes: list[Outcome] = []
    begin = time.monotonic()
    for outcome in engine.run(jobs):
        outcomes.append(outcome)
        ends[outcome.folder] += 1
        if len(outcomes) % max(1, count // 20) == 0:
            memory.append(round(resident(), 1))
            print(f"{name}: {len(outcomes)} of {count}, {memory[-1]} MiB", flush=True)
    early = memory[len(memory) // 5]
    return {
        "engine": name,
        "runs": count,
        "done": sum(outcome.state == "done" for outcome in outcomes),
        "tried_again": sum(outcome.attempts > 1 for outcome in outcomes),
        "reported_once": all(number == 1 for number in ends.values()) and len(ends) == count,
        "results": sum((job.folder / "results.json").is_file() for job in jobs),
        "left_behind": sum(len(list(job.folder.glob(".*.tmp"))) for job in jobs) + len(list(runs.glob(".*.lock"))),
        "seconds": round(time.monotonic() - begin),
        "driver_mib": memory,
        "growth_mib": round(memory[-1] - early, 1),
    }


def check(record: dict[str, Any]) -> None:
    """Stop with an error if a run was lost or done twice, or if the memory grew too much."""
    count = record["runs"]
    if not (record["done"] == record["results"] == count and record["reported_once"] and not record["left_behind"]):
        raise SystemExit(f"not every run was done exactly once: {record}")
    if record["growth_mib"] > GROWTH_MIB:
        raise SystemExit(f"the memory of the driver grew by {record['growth_mib']} MiB: {record}")


def main() -> None:
    """Read the options, soak both engines and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="runs on each engine")
    parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    engines: dict[str, Engine[Any]] = {"local": LocalEngine(["cpu"], 2), "ray": RayEngine(gpus=0)}
    records = []
    for name in options.engines:
        with tempfile.TemporaryDirectory() as folder:
            records.append(soak(name, engines[name], options.runs, Path(folder)))
        check(records[-1])
        write_json(
            options.out, {"python": platform.python_version(), "machine": platform.machine(), "engines": records}
        )


if __name__ == "__main__":
    main()
