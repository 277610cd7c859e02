"""Independent cycles that are sampled separately give the same run, bit for bit, as when sampled together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_jobs import tiny

from rebapl.errors import UserError
from rebapl.interruption import Interrupted
from rebapl.runs.config import RunConfig
from rebapl.runs.engine import LocalEngine
from rebapl.runs.folder import cycle_file
from rebapl.runs.run import Job, cycle_jobs, run

COLD = {"restart": "cold", "cycles": 3, "batch": 2, "sampler.samples_per_cycle": 2}


def config(inference: str, **settings: Any) -> RunConfig:
    return tiny(method="vpt", inference=inference, epochs=3, inference_settings={"batch": 2, **settings})


CASES = {
    "ensemble": config("ensemble"),
    "chains": config("ensemble", cycles=2, chains=2),
    "csghmc": config("csghmc", **COLD),
    "mass matrix": config("csghmc", **COLD, **{"sampler.mass_matrix": "diagonal"}).changed(epochs=15),
    "promptsrc": config("ensemble").changed(method="promptsrc"),  # with an average over epochs
}


def bytes_of(out: Path) -> tuple[bytes, bytes]:
    return (out / "posterior/samples.safetensors").read_bytes(), (out / "log.csv").read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_joined_cycles_equal_those_of_one_run(name: str, tmp_path: Path) -> None:
    """Some of the cycles, or all of them, are sampled separately and in another order."""
    whole, some, every = tmp_path / "whole", tmp_path / "some", tmp_path / "every"
    case = CASES[name]
    run(case, whole, device="cpu", score=False)
    run(case, some, cycle=1, device="cpu")
    assert cycle_file(some, 1).exists()
    steps: list[int] = []
    run(case, some, device="cpu", progress=lambda done, *_: steps.append(done), score=False)
    assert len(steps) < steps[-1], "a cycle was not sampled again"
    for job in reversed(cycle_jobs(Job.of(case, tmp_path, out=every))):
        assert job.cycle is not None
        run(case, every, cycle=job.cycle, device="cpu")
    run(case, every, device="cpu", score=False)
    assert bytes_of(some) == bytes_of(whole)
    assert bytes_of(every) == bytes_of(whole)
    assert sorted(path.name for path in every.glob("[!.]*")) == [
        "config.json",
        "environment.json",
        "log.csv",
        "posterior",
    ]


def test_a_cycle_that_is_interrupted_goes_on_and_a_damaged_one_is_sampled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES["csghmc"]

    def stop(done: int, total: int, _loss: float) -> None:
        assert total == 6
        if done == 3:
            raise KeyboardInterrupt

    run(case, tmp_path / "whole", device="cpu", score=False)
    with pytest.raises(Interrupted, match="step 9 of 18 is kept"):
        run(case, tmp_path / "run", cycle=1, device="cpu", progress=stop)
    seen: list[int] = []
    run(case, tmp_path / "run", cycle=1, device="cpu", progress=lambda done, *_: seen.append(done))
    assert seen[0] == 4
    run(case, tmp_path / "run", cycle=0, device="cpu")
    path = cycle_file(tmp_path / "run", 0)
    path.write_bytes(path.read_bytes()[:-1])
    run(case, tmp_path / "run", device="cpu", score=False)
    assert "this cycle is sampled again" in caplog.text
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")


def test_cycles_are_jobs_of_any_engine(tmp_path: Path) -> None:
    job = Job.of(CASES["ensemble"], tmp_path, score=False)
    parts = cycle_jobs(job)
    assert [Job.from_json(part.as_json()) for part in parts] == parts
    outcomes = list(LocalEngine(["cpu"]).run(parts))
    assert [outcome.state for outcome in outcomes] == ["done"] * 3
    assert [outcome.attempts for outcome in LocalEngine(["cpu"]).run(parts)] == [0] * 3
    assert sorted(path.name for path in (job.folder / "cycles").iterdir()) == [f"{n}.safetensors" for n in range(3)]


DEPENDENT = [
    config("csghmc"),
    config("ensemble", cycles=1, chains=2, restart=None),
    config("rebapl"),
    config("mle"),
    tiny(method="zero-shot", epochs=None),
]


@pytest.mark.parametrize("case", DEPENDENT)
def test_cycles_that_depend_on_one_another_are_not_taken_apart(case: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--cycles-apart is for several cycles that do not depend on one another"):
        cycle_jobs(Job.of(case, tmp_path))
    with pytest.raises(UserError, match=r"cannot be sampled by itself|learns nothing"):
        run(case, tmp_path / "run", cycle=1)
