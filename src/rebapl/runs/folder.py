"""The folder of a run: its name, its files, and the check that it holds the run of a given configuration.

The folder holds `config.json` (the settings as the person wrote them, and as `resolved`), `environment.json`,
`log.csv`, `posterior/` and, if the run trains on the user's own images, `data.json`, which records these images.
Evaluation adds `results.json`. While the run trains, there is a `checkpoint.safetensors`, and the previous one as
`checkpoint.previous.safetensors`. Cycles that are sampled side by side are runs of their own in `cycles/`. After a
failure there is an `error.txt`. The checkpoints, the environment and the results contain the hash of the run, so that
files of another run are not mistaken for its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rebapl.data.catalogue import is_own
from rebapl.data.features import is_features
from rebapl.data.identity import changes, touched
from rebapl.data.images import NO_IMAGES
from rebapl.data.task import TARGETS, split_of
from rebapl.errors import UserError
from rebapl.evaluation.tasks import target_settings
from rebapl.files import content_sha256, is_leftover, read_json, sha256, write_json
from rebapl.posterior.storage import INSIDE
from rebapl.runs.config import ResolvedRun, RunConfig, catalogue_name, data_name, first_difference, hash_of
from rebapl.runs.results import CONFIG, RESULTS, PartScores, RunResult, read_result
from rebapl.settings import SettingError

ENVIRONMENT, LOG, POSTERIOR, HELD_OUT = "environment.json", "log.csv", INSIDE, "held-out.csv"
CHECKPOINT, ERROR, DATA, CYCLES = "checkpoint.safetensors", "error.txt", "data.json", "cycles"

SCORED_BESIDE = ("outside", "corruptions")
"""The settings that name images on which a run is scored beside its test parts."""

ANEW = "To train anew, choose another --out or delete that folder"


def config_from_json(content: Mapping[str, Any], source: str | Path) -> RunConfig:
    """Read the configuration in the content of a `config.json`. Error messages call the file `source`."""
    settings = {key: value for key, value in content.items() if key not in ("hash", "resolved")}
    try:
        return RunConfig(**{"data": None, **settings})
    except SettingError as error:
        raise UserError(f"{source} is not the configuration of this version ({error})") from error


def read_config(out: Path) -> RunConfig:
    """The configuration in the folder of a run, as the person wrote it."""
    return config_from_json(read_json(out / CONFIG, "a run"), out / CONFIG)


def write_config(config: RunConfig, resolved: ResolvedRun, out: Path) -> None:
    """Store the configuration of a run in its folder, as the person wrote it and as it is resolved."""
    write_json(out / CONFIG, {**config.plain(), "hash": hash_of(resolved.settings), "resolved": resolved.settings})
    (out / NO_IMAGES).touch()  # so that a run stored among the photos it learns from is not read as a class


def add_scores_to_config(config: RunConfig, out: Path) -> None:
    """Add what a configuration scores beside the test parts to the stored configuration of the same run."""
    content, stored = read_json(out / CONFIG, "a run"), read_config(out)
    more = {name: [*dict.fromkeys([*getattr(stored, name), *getattr(config, name)])] for name in SCORED_BESIDE}
    if any(more[name] != list(getattr(stored, name)) for name in SCORED_BESIDE):
        write_json(out / CONFIG, {**content, **more})


def stored_settings(out: Path) -> dict[str, Any]:
    """The resolved settings with which the run in a folder was started. Files of another run are refused."""
    content = read_json(out / CONFIG, "a run")
    resolved, name = content.get("resolved"), content.get("hash")
    if not isinstance(resolved, dict) or hash_of(resolved) != name:
        raise UserError(f"{out / CONFIG} was changed: its hash is not that of its settings. {ANEW}")
    if read_environment(out).get("run", name) != name:
        raise UserError(f"{out / CONFIG} is of another run than the other files of the folder. {ANEW}")
    return resolved


def read_environment(out: Path) -> dict[str, Any]:
    """Where and how the run in a folder is computed; empty if that was not stored."""
    return read_json(out / ENVIRONMENT, "a run") if (out / ENVIRONMENT).exists() else {}


def note_checksum(out: Path, name: str) -> None:
    """Store the checksum of a file of a run in its environment, for `changed_files`."""
    stored = read_environment(out)
    write_json(out / ENVIRONMENT, {**stored, "files": {**stored.get("files", {}), name: sha256(out / name)}})


def changed_files(out: Path) -> list[str]:
    """Those of the log, the answers for held-out images and the scores of a run that were changed after it."""
    checksums = read_environment(out).get("files") or {}
    present = [name for name in (LOG, HELD_OUT) if name in checksums and (out / name).exists()]
    changed = [name for name in present if sha256(out / name) != checksums[name]]
    scores = read_json(out / RESULTS, "a finished run") if (out / RESULTS).exists() else {}
    return [*changed, *([RESULTS] if "sha256" in scores and scores["sha256"] != content_sha256(scores) else [])]


def run_folder(config: RunConfig, runs: Path) -> Path:
    """The folder of a run in `runs`. Its name has the main settings, and ends in the hash of all resolved settings.

    >>> run_folder(RunConfig("digits", "maple", "rebapl", backbone="mini"), Path("runs")).name[:22]
    'digits-maple-rebapl-s1'
    """
    resolved = config.resolved()
    name = hash_of(resolved.settings)
    if is_own(config.data) and (existing := sorted(runs.glob(f"*-{name}"))):
        return existing[0]  # the folder of the same images may have had another name
    inference = resolved.training.inference_name
    return runs / "-".join((folder_name(config.data), config.method, inference, f"s{config.seed}", name))


def folder_name(data: str) -> str:
    """The name of a data set, in which characters that a folder name should not have are replaced by `_`.

    >>> folder_name("my photos/")
    'my_photos'
    """
    return re.sub(r"[^\w.+]+", "_", data_name(data)).strip("_.") or "data"


def data_changes(config: RunConfig, out: Path) -> str | None:
    """What has changed in the user's own images since the run in `out` was started, in words; None if nothing has.

    The images are looked for at `config.data`. That they were moved is not a change. Stored features are not checked
    here, because their identity is one of the settings.
    """
    path = Path(config.data).expanduser()
    if not is_own(config.data) or is_features(path) or not (out / DATA).exists():
        return None
    recorded = read_json(out / DATA, "a run")
    try:
        identity_at_start = read_json(out / CONFIG, "a run").get("resolved", {}).get("data")
        if identity_at_start == config.resolved().settings["data"] and not touched(
            recorded, path if path.is_dir() else path.parent
        ):
            return None
        return changes(recorded, config.dataset())
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{out / DATA} is damaged ({type(error).__name__}: {error}). {ANEW}") from error


def refuse_other_run(config: RunConfig, out: Path, settings: Mapping[str, Any]) -> None:
    """Refuse the folder of a run that was started with other images, or whose `settings` lead to another training.

    This is checked before anything uses the run in a folder.
    """
    if changed := data_changes(config, out):
        raise UserError(f"the images in {config.data} have changed since {out} was begun: {changed}. {ANEW}")
    if difference := first_difference(settings, config.resolved().settings):
        name, theirs, ours = difference
        raise UserError(f"{out} holds a run that is trained with {name} = {theirs!r}, not {ours!r}. {ANEW}")


def is_trained(config: RunConfig, out: Path) -> bool:
    """Whether a folder holds the trained run of this configuration. A folder with anything else in it is refused."""
    if (out / CONFIG).exists():
        refuse_other_run(config, out, stored_settings(out))
        return (out / POSTERIOR).exists()
    ours = (ERROR, CYCLES)  # these may be stored before the settings
    if out.exists() and (
        not out.is_dir() or any(path.name not in ours and not is_leftover(path) for path in out.iterdir())
    ):
        raise UserError(f"{out} exists and is not a run of rebapl: choose another --out")
    return False


def is_finished(config: RunConfig, out: Path) -> bool:
    """Whether the folder of a run has all the scores that the configuration requests."""
    if not (out / RESULTS).exists():
        return False
    result = read_result(out)
    missing = missing_parts(result, config) or result.lacking(config.corruptions_by_severity())
    return result.run == config.hash() and not missing and set(config.outside) <= result.outside.keys()


def missing_parts(result: RunResult, config: RunConfig) -> list[str]:
    """The requested test parts without a score, and those whose score was made with other settings of the target."""
    scored = result.parts
    return [name for name in config.parts() if name not in scored or _stale(scored[name], config, name)]


def _stale(part: PartScores, config: RunConfig, name: str) -> bool:
    if config.protocol not in TARGETS or name == "test":
        return False
    if part.split != dict(map(split_of, config.targets or ())).get(name):
        return True
    source, target = catalogue_name(config.data), catalogue_name(name)
    settings = config.resolved().training.method_settings.plain()
    return part.target_settings != target_settings(config.method, settings, config.protocol, source, target)


def scored_as(config: RunConfig, protocol: str | None = None, targets: Sequence[str] | None = None) -> RunConfig:
    """The same configuration with another protocol, or with other targets of the same protocol.

    >>> cross = RunConfig("digits", protocol="cross-dataset", targets=["shapes"])
    >>> scored_as(cross, targets=["letters"]).parts()
    ['test', 'letters']
    """
    protocol = protocol or config.protocol
    same_targets = config.targets if protocol == config.protocol else None
    return config.changed(protocol=protocol, targets=same_targets if targets is None else tuple(targets))


def cycle_folder(out: Path, cycle: int) -> Path:
    """The folder of the run that samples only one cycle of the run in `out`."""
    return out / CYCLES / str(cycle)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run: its folder, its settings as written and as resolved, and its result."""

    folder: Path
    config: Mapping[str, Any]
    resolved: Mapping[str, Any]
    result: RunResult


@dataclasses.dataclass(frozen=True)
class Found:
    """The finished runs in some folders, and the folders of runs that are not yet scored or not yet trained."""

    runs: Sequence[Run]
    unscored: Sequence[Path]
    untrained: Sequence[Path]


def find_runs(folders: Iterable[Path]) -> Found:
    """Find the runs in these folders, in the order of their names. Each folder may also be the folder of one run."""
    runs: list[Run] = []
    unscored: list[Path] = []
    untrained: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder of runs: `rebapl train` makes one, called `runs` by default")
        for path in [folder] if (folder / CONFIG).exists() else sorted(folder.iterdir()):
            if not (path / CONFIG).exists():
                continue
            config = read_json(path / CONFIG, "a run")
            if (path / RESULTS).exists():
                runs.append(Run(path, config, config["resolved"], read_result(path)))
            else:
                (unscored if (path / POSTERIOR).exists() else untrained).append(path)
    return Found(runs, unscored, untrained)
