"""Enough of SLURM for submitit: sbatch, srun, sacct, scancel and scontrol, as one script under five names.

`install(folder)` writes them; put that folder first in PATH. A job is a process of this machine. Its script, its
process and its exit code are files in `folder/jobs`.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("sbatch", "srun", "sacct", "scancel", "scontrol")


def install(folder: Path) -> Path:
    (folder / "jobs").mkdir(parents=True)
    for name in NAMES:
        path = folder / name
        path.write_text(f"#!{sys.executable} -S\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n")
        path.write_text(path.read_text() + f"import fake_slurm\nfake_slurm.main({name!r}, {str(folder / 'jobs')!r})\n")
        path.chmod(0o755)
    return folder


def process(folder: Path) -> int:
    """The id of the process that srun has started for the only job."""
    (path,) = (folder / "jobs").glob("*.pid")
    return int(path.read_text())


def main(name: str, folder: str) -> None:
    jobs = Path(folder)
    words = sys.argv[1:]
    {"sbatch": _sbatch, "srun": _srun, "sacct": _sacct, "scancel": _scancel, "scontrol": _scontrol}[name](jobs, words)


def _sbatch(jobs: Path, words: list[str]) -> None:
    script = Path(words[-1]).read_text()
    array = next((line for line in script.splitlines() if line.startswith("#SBATCH --array=")), None)
    number = time.time_ns() // 1_000_000  # submitit remembers numbers as long as its process lives
    count = 0 if array is None else int(array.partition("=")[2].partition("-")[2].partition("%")[0]) + 1
    for job in [f"{number}_{index}" for index in range(count)] or [str(number)]:
        (jobs / f"{job}.sh").write_text(script)
        _start(jobs, job)
    print(f"Submitted batch job {number}")


def _start(jobs: Path, job: str) -> None:
    main_id, _, task = job.partition("_")
    given = {"SLURM_JOB_ID": main_id, "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0"}
    given |= {"SLURM_JOB_NODELIST": "here", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "FAKE_JOB": job}
    if task:
        given |= {"SLURM_ARRAY_JOB_ID": main_id, "SLURM_ARRAY_TASK_ID": task}
    (jobs / f"{job}.rc").unlink(missing_ok=True)
    (jobs / f"{job}.times").open("a").write("x")
    times = (jobs / f"{job}.times").read_text()
    # a job that was put into the queue again has not ended
    command = f'bash {jobs / job}.sh; rc=$?; [ "$(cat {jobs / job}.times)" != {times} ] || echo $rc > {jobs / job}.rc'
    subprocess.Popen(
        ["bash", "-c", command],
        env={**os.environ, **given},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=(jobs / f"{job}.out").open("a"),
        stderr=subprocess.STDOUT,
    )


def _srun(jobs: Path, words: list[str]) -> None:
    while words[0].startswith("-"):
        words = words[1:] if words[0] == "--unbuffered" else words[2:]
    (jobs / f"{os.environ['FAKE_JOB']}.pid").write_text(str(os.getpid()))
    os.execvp(words[0], words)


def _sacct(jobs: Path, words: list[str]) -> None:
    print("JobID|State|NodeList")
    for script in jobs.glob("*.sh"):
        if script.stem.partition("_")[0] in words:
            ended = jobs / f"{script.stem}.rc"
            state = "RUNNING"
            if ended.exists() and ended.read_text().strip():
                state = "COMPLETED" if ended.read_text().strip() == "0" else "FAILED"
            print(f"{script.stem}|{state}|here")


def _scancel(jobs: Path, words: list[str]) -> None:
    os.kill(int((jobs / f"{words[0]}.pid").read_text()), 15)


def _scontrol(jobs: Path, words: list[str]) -> None:
    job = os.environ["FAKE_JOB"]
    assert words[0] == "requeue"
    (jobs / f"{job}.requeued").touch()
    _start(jobs, job)
