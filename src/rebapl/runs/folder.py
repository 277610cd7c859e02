"""The folder of a run: what it is called, what it holds, and whether that is the run of a configuration.

The folder holds `config.json` (the settings as asked for, and as `resolved`), `environment.json`, `log.csv`,
`posterior/` and, if somebody's own images are trained on, `data.json`, which says what they were. Evaluation adds
`results.json`. While the run trains there is a `checkpoint.safetensors` and, as `checkpoint.previous.safetensors`, the
one before it; `cycles/` has the cycles that were sampled by themselves. After a failure there is an `error.txt`. The
checkpoints, the environment and the results name the hash of the run, so that files of another run are not taken for
its own.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rebapl.data.catalogue import is_own, load_dataset
from rebapl.data.features import is_features
from rebapl.data.identity import changes, touched
from rebapl.data.images import NO_IMAGES
from rebapl.data.task import TARGETS, split_of
from rebapl.errors import UserError
from rebapl.evaluation.tasks import target_settings
from rebapl.files import content_sha256, is_leftover, read_json, sha256, write_json
from rebapl.posterior.storage import INSIDE
from rebapl.runs.config import ResolvedRun, RunConfig, data_name, first_difference, hash_of, with_full_paths
from rebapl.runs.results import CONFIG, RESULTS, PartScores, RunResult, read_result
from rebapl.settings import SettingError
from rebapl.training.checkpoint import load_checkpoint

ENVIRONMENT, LOG, POSTERIOR, HELD_OUT = "environment.json", "log.csv", INSIDE, "held-out.csv"
CHECKPOINT, ERROR, DATA, CYCLES = "checkpoint.safetensors", "error.txt", "data.json", "cycles"

ANEW = "To train anew, choose another --out or delete that folder"

_log = logging.getLogger(__name__)


def config_from_json(content: Mapping[str, Any], source: str | Path) -> RunConfig:
    """Read the configuration that a `config.json` holds. Errors name it as `source`."""
    asked = {key: value for key, value in content.items() if key not in ("hash", "resolved")}
    try:
        return RunConfig(**{"data": None, **asked})
    except SettingError as error:
        raise UserError(f"{source} is not the configuration of this version ({error})") from error


def read_config(out: Path) -> RunConfig:
    """The configuration of a run folder, as it was asked for."""
    return config_from_json(read_json(out / CONFIG, "a run"), out / CONFIG)


def write_config(config: RunConfig, resolved: ResolvedRun, out: Path) -> None:
    """Store the configuration of a run in its folder, as it was asked for and as it is resolved."""
    outside = tuple(str(Path(name).resolve()) if Path(name).is_dir() else name for name in config.outside)
    asked = with_full_paths(config).changed(outside=outside).plain()  # which any working folder understands
    write_json(out / CONFIG, {**asked, "hash": hash_of(resolved.settings), "resolved": resolved.settings})
    (out / NO_IMAGES).touch()  # a run among the photos that it learns from is no class


def stored_settings(out: Path) -> dict[str, Any]:
    """Every setting that the run in a folder was begun with. Settings or an environment of another run are refused."""
    content = read_json(out / CONFIG, "a run")
    resolved = content.get("resolved")
    if not isinstance(resolved, dict):
        return read_config(out).resolved().settings
    name = hash_of(resolved)
    if content.get("hash", name) != name:
        raise UserError(f"{out / CONFIG} was changed: its hash is not that of its settings. {ANEW}")
    if read_environment(out).get("run", name) != name:
        raise UserError(f"{out / CONFIG} is of another run than the other files of the folder. {ANEW}")
    return resolved


def read_environment(out: Path) -> dict[str, Any]:
    """Where and how the run in a folder is made, as far as that is known."""
    return read_json(out / ENVIRONMENT, "a run") if (out / ENVIRONMENT).exists() else {}


def note_checksum(out: Path, *names: str) -> None:
    """Note in the environment of a run what files of its folder hold, see `changed_files`."""
    made_in = read_environment(out)
    found = {name: sha256(out / name) for name in names if (out / name).exists()}
    write_json(out / ENVIRONMENT, {**made_in, "files": {**made_in.get("files", {}), **found}})


def changed_files(out: Path) -> list[str]:
    """The log, the answers to held-out images and the scores of a run, as far as they do not hold what it wrote."""
    noted = read_environment(out).get("files") or {}
    there = [name for name in (LOG, HELD_OUT) if name in noted and (out / name).exists()]
    changed = [name for name in there if sha256(out / name) != noted[name]]
    scores = read_json(out / RESULTS, "a finished run") if (out / RESULTS).exists() else {}
    return [*changed, *([RESULTS] if "sha256" in scores and scores["sha256"] != content_sha256(scores) else [])]


def run_folder(config: RunConfig, runs: Path) -> Path:
    """The folder of a run in `runs`. Its name says what the run is, and ends in the hash of all its resolved settings.

    >>> run_folder(RunConfig("digits", "maple", "rebapl", backbone="mini"), Path("runs")).name[:22]
    'digits-maple-rebapl-s1'
    """
    resolved = config.resolved()
    name = hash_of(resolved.settings)
    if is_own(config.data) and (there := sorted(runs.glob(f"*-{name}"))):
        return there[0]  # the same images may have been in a folder of another name
    inference = resolved.training.inference_name
    return runs / "-".join((folder_name(config.data), config.method, inference, f"s{config.seed}", name))


def folder_name(data: str) -> str:
    """The name of a data set with only such characters as the name of a folder may have.

    >>> folder_name("my photos/")
    'my_photos'
    """
    return re.sub(r"[^\w.+]+", "_", data_name(data)).strip("_.") or "data"


def data_changes(config: RunConfig, out: Path) -> str | None:
    """What has changed of somebody's own images since the run in `out` was begun, in words, or None.

    `config.data` says where they are now. They may have moved: that is no change. Stored features are no images, and
    their identity is among the settings.
    """
    path = Path(config.data).expanduser()
    if not is_own(config.data) or is_features(path) or not (out / DATA).exists():
        return None
    recorded = read_json(out / DATA, "a run")
    try:
        begun_with = read_json(out / CONFIG, "a run").get("resolved", {}).get("data")
        if begun_with == config.resolved().settings["data"] and not touched(
            recorded, path if path.is_dir() else path.parent
        ):
            return None
        whole = config.fold is not None
        dataset = load_dataset(config.data, split=config.split, template=config.template, whole=whole)
        return changes(recorded, dataset)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{out / DATA} is damaged ({type(error).__name__}: {error}). {ANEW}") from error


def refuse_other_run(config: RunConfig, out: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a folder whose run was begun with other images, or whose `settings` train in another way.

    Everything that takes up the run in a folder asks this first.
    """
    if changed := data_changes(config, out):
        raise UserError(f"the images in {config.data} have changed since {out} was begun: {changed}. {ANEW}")
    if difference := first_difference(settings, config.resolved().settings):
        name, theirs, ours = difference
        raise UserError(f"{out} holds a run that is trained with {name} = {theirs!r}, not {ours!r}. {ANEW}")


def is_trained(config: RunConfig, out: Path, cycle: int | None = None) -> bool:
    """Whether a folder holds the trained run of this configuration, or this cycle of it.

    A folder with something else in it is refused.
    """
    sampled = cycle is not None and cycle_file(out, cycle).exists()
    if (out / CONFIG).exists():
        refuse_other_run(config, out, stored_settings(out))
        return sampled or (out / POSTERIOR).exists()
    ours = (ERROR, CYCLES)  # which may be there before the settings are
    if out.exists() and (
        not out.is_dir() or any(path.name not in ours and not is_leftover(path) for path in out.iterdir())
    ):
        raise UserError(f"{out} exists and is not a run of rebapl: choose another --out")
    return sampled


def is_finished(config: RunConfig, out: Path) -> bool:
    """Whether everything that a configuration asks for is scored in the folder of its run."""
    if not (out / RESULTS).exists():
        return False
    result = read_result(out)
    same = result.run in (None, config.hash())
    missing = missing_parts(result, config) or result.lacking(config.corruptions_by_severity())
    return same and not missing and set(config.outside) <= result.outside.keys()


def missing_parts(result: RunResult, config: RunConfig) -> list[str]:
    """The parts that a configuration asks for and that a result lacks, or has only for other settings of the target."""
    there = result.parts
    return [name for name in config.parts() if name not in there or _stale(there[name], config, name)]


def _stale(part: PartScores, config: RunConfig, name: str) -> bool:
    if config.protocol not in TARGETS or name == "test":
        return False
    if part.split != dict(map(split_of, config.targets or ())).get(name):
        return True
    source, target = data_name(config.data), data_name(name)
    settings = config.resolved().training.method_settings.plain()
    return part.target_settings != target_settings(config.method, settings, config.protocol, source, target)


def scored_as(config: RunConfig, protocol: str | None = None, targets: Sequence[str] | None = None) -> RunConfig:
    """The same configuration with another protocol, or with other targets of the same protocol.

    >>> cross = RunConfig("digits", protocol="cross-dataset", targets=["shapes"])
    >>> scored_as(cross, targets=["letters"]).parts()
    ['test', 'letters']
    """
    protocol = protocol or config.protocol
    kept = config.targets if protocol == config.protocol else None
    return config.changed(protocol=protocol, targets=kept if targets is None else tuple(targets))


def cycle_folder(out: Path, cycle: int) -> Path:
    """Where a cycle of a run is sampled by itself."""
    return out / CYCLES / str(cycle)


def cycle_file(out: Path, cycle: int) -> Path:
    """The samples of a cycle that was sampled by itself."""
    return out / CYCLES / f"{cycle}.safetensors"


def read_cycles(out: Path) -> dict[int, dict[str, Any]]:
    """All cycles of a run that were sampled by themselves. A damaged one is left out, and so sampled again."""
    found = {}
    for path in (out / CYCLES).glob("*.safetensors"):
        try:
            content = load_checkpoint(path)
        except UserError as error:
            _log.warning("%s; this cycle is sampled again", error)
            continue
        if path.stem.isdecimal() and isinstance(content, dict):
            found[int(path.stem)] = content
    return found


@dataclasses.dataclass(frozen=True)
class Run:
    """One finished run: its folder, its settings as asked for and resolved, and its result."""

    folder: Path
    config: Mapping[str, Any]
    resolved: Mapping[str, Any]
    result: RunResult

    @property
    def protocols(self) -> Mapping[str, Sequence[str]]:
        """The parts that each protocol scored."""
        return self.result.protocols or {self.config.get("protocol", ""): list(self.result.parts)}


@dataclasses.dataclass(frozen=True)
class Found:
    """All finished runs in some folders, and the folders of runs that are not scored or not trained yet."""

    runs: Sequence[Run]
    unscored: Sequence[Path]
    untrained: Sequence[Path]


def find_runs(folders: Iterable[Path]) -> Found:
    """Find the runs in these folders, in the order of their names. A folder may also be that of a run itself."""
    runs: list[Run] = []
    unscored: list[Path] = []
    untrained: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder of runs: `rebapl train` makes one, `runs` unless told otherwise")
        for path in [folder] if (folder / CONFIG).exists() else sorted(folder.iterdir()):
            if not (path / CONFIG).exists():
                continue
            config = read_json(path / CONFIG, "a run")
            if (path / RESULTS).exists() and "resolved" in config:
                runs.append(Run(path, config, config["resolved"], read_result(path)))
            else:
                (unscored if (path / POSTERIOR).exists() else untrained).append(path)
    return Found(runs, unscored, untrained)
