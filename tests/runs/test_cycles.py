"""Independent cycles that are sampled separately give the same run, bit for bit, as when sampled together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_jobs import tiny

from rebapl.errors import UserError
from rebapl.interruption import Interrupted
from rebapl.runs.config import RunConfig
from rebapl.runs.engine import LocalEngine
from rebapl.runs.folder import ENVIRONMENT, LOG
from rebapl.runs.results import read_result
from rebapl.runs.run import Job, cycle_jobs, run
from rebapl.sampling.rule import Rule

COLD = {"restart": "cold", "cycles": 3, "batch": 2, "sampler.samples_per_cycle": 2}


def config(inference: str, **settings: Any) -> RunConfig:
    return tiny(method="vpt", inference=inference, epochs=3, inference_settings={"batch": 2, **settings})


CASES = {
    "ensemble": config("ensemble"),
    "chains": config("ensemble", cycles=2, chains=2),
    "csghmc": config("csghmc", **COLD),
    "mass matrix": config("csghmc", **COLD, **{"sampler.mass_matrix": "diagonal"}).changed(epochs=15),
    "mass matrix of AdamW": config(  # MMRL's recipe, with which each cycle explores
        "csghmc", **{**COLD, "cycles": 2, "sampler.mass_matrix": "diagonal", "sampler.exploration": 0.8}
    ).changed(method="mmrl", epochs=7),
    "promptsrc": config("ensemble").changed(method="promptsrc"),  # with an average over epochs
}


def bytes_of(out: Path) -> tuple[bytes, bytes, object]:
    posterior = out / "posterior"
    manifest = json.loads((posterior / "posterior.json").read_text())
    return (posterior / "samples.safetensors").read_bytes(), (out / LOG).read_bytes(), manifest


@pytest.mark.parametrize("name", CASES)
def test_joined_cycles_equal_those_of_one_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sampled in another order, and nothing is sampled again when they are joined."""
    freeze, masses = Rule.freeze_mass, list[tuple[bool, float]]()

    def watched(self: Rule, adamw: torch.optim.Optimizer | None = None) -> None:
        freeze(self, adamw)
        parameters = [p for group in self.param_groups for p in group["params"]]
        largest = max((self.inverse_mass(p) - 1).abs().max().item() for p in parameters)
        masses.append((adamw is not None, largest))

    monkeypatch.setattr(Rule, "freeze_mass", watched)
    whole, every = tmp_path / "whole", tmp_path / "every"
    case = CASES[name]
    run(case, whole, device="cpu", score=False)
    for job in reversed(cycle_jobs(Job.of(case, tmp_path, out=every))):
        job.do("cpu", None)
        assert job.is_done()
    steps: list[int] = []
    run(case, every, device="cpu", progress=lambda done, *_: steps.append(done), score=False)
    assert not steps
    if "mass matrix" in name:  # one in each cycle, other than 1, in both runs
        assert len(masses) == 2 * len(cycle_jobs(Job.of(case, tmp_path)))
        assert all(of_adamw == ("AdamW" in name) and largest > 0.1 for of_adamw, largest in masses)
    assert bytes_of(every) == bytes_of(whole)
    assert json.loads((every / ENVIRONMENT).read_text())["training_seconds"] > 0
    assert sorted(path.name for path in every.glob("[!.]*")) == [
        "config.json",
        "environment.json",
        "log.csv",
        "posterior",
    ]


def test_a_cycle_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    case, seen = CASES["csghmc"], list[int]()

    def stop(done: int, total: int, _loss: float) -> None:
        assert total == 6
        if done == 3:
            raise KeyboardInterrupt

    run(case, tmp_path / "whole", device="cpu", score=False)
    jobs = cycle_jobs(Job.of(case, tmp_path, out=tmp_path / "run"))
    with pytest.raises(Interrupted, match="step 9 of 18 is kept"):
        jobs[1].do("cpu", stop)
    jobs[1].do("cpu", lambda done, *_: seen.append(done))
    assert seen[0] == 4
    for job in (jobs[0], jobs[2]):
        job.do("cpu", None)
    run(case, tmp_path / "run", device="cpu", score=False)
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")


def test_a_run_without_all_of_its_cycles_samples_them_itself(tmp_path: Path) -> None:
    case = CASES["csghmc"]
    run(case, tmp_path / "whole", device="cpu", score=False)
    job = cycle_jobs(Job.of(case, tmp_path, out=tmp_path / "run"))[1]
    job.do("cpu", None)
    run(case, tmp_path / "run", device="cpu", score=False)
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")
    assert not job.folder.parent.exists()


def test_one_cycle_is_a_run_of_its_own(tmp_path: Path) -> None:
    case = CASES["ensemble"].changed(cycle=2)
    assert case.hash() != CASES["ensemble"].hash() == CASES["ensemble"].changed(cycle=None).hash()
    assert read_result(run(case, runs=tmp_path, device="cpu")).samples == 1
    with pytest.raises(UserError, match="cycle = 3: this run has no such cycle that does not depend on the others"):
        case.changed(cycle=3).hash()


def test_cycles_are_jobs_of_any_engine(tmp_path: Path) -> None:
    job = Job.of(CASES["ensemble"], tmp_path, score=False)
    parts = cycle_jobs(job)
    assert [Job.from_json(part.as_json()) for part in parts] == parts
    outcomes = list(LocalEngine(["cpu"]).run(parts))
    assert [outcome.state for outcome in outcomes] == ["done"] * 3
    assert [outcome.attempts for outcome in LocalEngine(["cpu"]).run(parts)] == [0] * 3
    assert [path.parent.name for path in sorted(job.folder.glob("cycles/*/posterior"))] == ["0", "1", "2"]


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
    with pytest.raises(UserError, match=r"cycle = 1: this run has no such cycle"):
        run(case.changed(cycle=1), tmp_path / "run")
