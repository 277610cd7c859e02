"""The options that several commands share: how their values are read, and which names the shell completes for them.

The names to complete are read from the files of the package, because importing torch would make a person who presses
Tab wait. Names that plugins register are not completed. For all other options the shell completes file names.

The help of an option is that of its command's docstring or, if it is not there, the one here.

Parameters:
    backbone: Folder or hub id of the backbone, if it is not where it was in training.
    classes: Other class names, separated by commas, or @FILE with one per line.
    device: cpu, cuda, or several such as cuda:0,cuda:1; if not given, the GPU if there is one.
    engine: Where to do the runs: local (this machine), ray (a Ray cluster), slurm (SLURM jobs), or an engine that a
        plugin registers.
    engine_option: An option of the engine; repeatable. ray has address, cpus and gpus (for each run; gpus may be a
        share such as 0.25), slurm has partition, time, cpus and gpus.
    epochs: Number of epochs; if not given, the published number.
    hm: Harmonic mean over several data sets: of-averages (of the average base and novel accuracies), or average (of the
        harmonic means of the data sets).
    jobs: Runs to do at the same time on each device; 1 if not given.
    quiet: Show no progress and no notes; results, warnings and errors stay.
    root: Folder of the published data sets; $REBAPL_DATA if not given.
    runs: Folder for runs. Each run gets a folder in it, named after the hash of its settings.
    track: Also log to these trackers, separated by commas: tensorboard, mlflow, or one that a plugin registers.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

import rebapl
from rebapl.errors import UserError
from rebapl.processes import begin_server

if TYPE_CHECKING:
    from rebapl.runs.engine import Engine

SOURCE = Path(rebapl.__file__).parent

Command = TypeVar("Command", bound=Callable[..., None])


def complete_methods(incomplete: str) -> list[str]:
    """The methods. Each has a recipe file, whose name is that of the method."""
    return _beginning(incomplete, _yaml_files(SOURCE / "learners" / "recipes"))


def complete_inference(incomplete: str) -> list[str]:
    """The presets, without those that exist only to be extended by others."""
    return _beginning(incomplete, _yaml_files(SOURCE / "sampling" / "presets"))


def complete_datasets(incomplete: str) -> list[str]:
    """The embedded and the published data sets."""
    from rebapl.data.embedded import EMBEDDED
    from rebapl.data.published import PUBLISHED

    return _beginning(incomplete, (*EMBEDDED, *PUBLISHED))


def complete_runs(incomplete: str) -> list[str]:
    """The runs in the folder whose name is being typed, or in `runs` if nothing is typed yet."""
    typed = Path(incomplete or "runs/")
    parent = typed if incomplete.endswith("/") or not incomplete else typed.parent
    folders = sorted(str(file.parent) for file in parent.glob("*/config.json"))
    return _beginning(incomplete, folders) or _beginning(incomplete, ["runs/"] if Path("runs").is_dir() else [])


def _yaml_files(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml") if not file.name.startswith("_"))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def described(command: Command) -> Command:
    """Turn the parameters of a command into arguments and options of typer, with help from the command's docstring.

    Parameters before the `*` become arguments, and those after it options. The annotation of a parameter gives what its
    name and type cannot (a range, another name, the names that the shell completes). Typer shows the docstring up to
    `Parameters:`; the rest is removed from it. Parameters that it leaves out have the help in the docstring of this
    module.

    >>> @described
    ... def greet(name: str, *, loud: bool = False) -> None:
    ...     '''Greet somebody.
    ...
    ...     Parameters:
    ...         name: Whom to greet.
    ...         loud: Raise your voice.
    ...     '''
    >>> greet.__doc__, greet.__annotations__["loud"].__metadata__[0].help
    ('Greet somebody.', 'Raise your voice.')
    """
    about, _, listed = (inspect.getdoc(command) or "").partition("\n\nParameters:\n")
    command.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in about.split("\n\n"))
    helps = {**_helps(__doc__ or ""), **_helps(listed)}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *infos = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        if not infos and parameter.kind is parameter.KEYWORD_ONLY:
            word = name.strip("_").replace("_", "-")
            infos = [typer.Option(f"--{word}/--no-{word}" if kind == bool | None else f"--{word}")]
        info = copy.copy(infos[0] if infos else typer.Argument())
        info.help = info.help or helps[name]
        hints[name] = Annotated[kind, info]
    command.__annotations__ = hints
    return command


def _helps(listed: str) -> dict[str, str]:
    """The help of each parameter that a docstring lists."""
    return {name: " ".join(text.split()) for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed, re.M)}


def expect_workers(device: str | None, jobs: int | None) -> None:
    """Start the server of worker processes, whose imports take long, at once if several runs are done at a time."""
    if (jobs or 1) > 1 or "," in (device or ""):
        begin_server()


QuietOption = Annotated[bool, typer.Option("--quiet", "-q")]
RunArgument = Annotated[Path, typer.Argument(autocompletion=complete_runs)]
OneDevice = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; if not given, the GPU if there is one.")]
AtLeastOne = Annotated[int | None, typer.Option(min=1)]
EngineOption = Annotated[list[str] | None, typer.Option("--engine-option", "-E", metavar="NAME=VALUE")]
ShardEngine = Annotated[
    str | None,
    typer.Option(
        help="Do the shards side by side, in other processes: local (this machine), ray (a Ray cluster) or slurm "
        "(SLURM jobs). If not given, it is local with --jobs or --engine-option, or with several devices and a folder "
        "as --out; otherwise this process does them."
    ),
]


def engine_of(
    name: str, runs: Path, device: str | None = None, jobs: int | None = None, options: Sequence[str] | None = None
) -> Engine[Any]:
    """The engine that these options describe, for runs in the folder `runs`. Options that it does not have are refused.

    >>> engine_of("ray", Path("runs"), jobs=3)
    Traceback (most recent call last):
    rebapl.errors.UserError: --jobs is for --engine local, not for ray: leave it out
    >>> engine_of("ray", Path("runs"), options=["cpus=0"])
    Traceback (most recent call last):
    rebapl.errors.UserError: --engine-option cpus is '0': it must be at least 0.01 (engine ray)
    """
    from rebapl.runs.engine import ENGINES
    from rebapl.settings import SettingError

    engine, values = ENGINES.find(name), dict[str, Any]()
    for word in options or ():
        option, equals, value = word.partition("=")
        if not option or not equals or not value:
            raise UserError(f"--engine-option {word}: write NAME=VALUE, such as address=auto or time=2:00:00")
        values[option.strip().replace("-", "_")] = value.strip()
    for option, key, given in (("--device", "devices", parse_names("--device", device)), ("--jobs", "jobs", jobs)):
        if given is not None:
            if key not in engine.Options.model_fields:
                raise UserError(f"{option} is for --engine local, not for {name}: leave it out")
            values[key] = given
    try:
        return engine(runs=runs, **values)
    except SettingError as error:
        raise UserError(f"--engine-option {error} (engine {name})") from error


def parse_names(option: str, text: str | None) -> list[str] | None:
    """Read the value of an option that takes names separated by commas. None if the option is not given.

    >>> parse_names("--targets", "imagenet_a, imagenet_r")
    ['imagenet_a', 'imagenet_r']
    >>> parse_names("--targets", " ,")
    Traceback (most recent call last):
    rebapl.errors.UserError: --targets ' ,' names nothing: write one name, or several with commas between them
    """
    if text is None:
        return None
    names = [word.strip() for word in text.split(",") if word.strip()]
    if not names:
        raise UserError(f"{option} '{text}' names nothing: write one name, or several with commas between them")
    return names


def parse_trackers(text: str | None) -> tuple[str, ...]:
    """Read the names of trackers, and check that they can be used here."""
    from rebapl.training.log import check_trackers

    names = tuple(parse_names("--track", text) or ())
    check_trackers(names)
    return names


def parse_seeds(text: str) -> list[int]:
    """Read whole numbers separated by commas.

    >>> parse_seeds("1,2,3")
    [1, 2, 3]
    """
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise UserError(f"--seeds {text}: write whole numbers with commas between them, such as 1,2,3") from error
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text}: each seed is one run; name it once")
    return seeds


NUMBER = (int, float)

FITS: dict[str, tuple[str, dict[str, type | tuple[type, ...]], str]] = {
    "threshold": (
        "",
        {"risk": NUMBER, "coverage": NUMBER, "by": str, "confidence": NUMBER},
        "write risk=0.05 (the share of wrong answers allowed) or coverage=0.9 (the share to answer), and after a "
        "comma, if you like, by=entropy; with a risk also confidence=0.95",
    ),
    "conformal": (
        "level",
        {"level": NUMBER, "score": str, "by_class": bool},
        "write the level, such as 0.9, and after commas, if you like, score=aps and by_class=true",
    ),
    "outside": (
        "by",
        {"by": str, "rate": NUMBER},
        "write the name of a score, and after a comma, if you like, rate=0.05 (the share of false alarms)",
    ),
}
"""For each option --fit-…: the setting that may be written without its name, the types of all settings, and the advice
for a value that cannot be read."""


def parse_fit(what: str, text: str) -> dict[str, Any]:
    """Read the value of an option --fit-…: words NAME=VALUE separated by commas.

    >>> parse_fit("threshold", "risk=0.05,confidence=0.95"), parse_fit("threshold", "coverage=0.9,by=entropy")
    ({'risk': 0.05, 'confidence': 0.95}, {'coverage': 0.9, 'by': 'entropy'})
    >>> parse_fit("conformal", "0.8,score=raps,by_class=true"), parse_fit("outside", "mahalanobis,rate=0.1")
    ({'level': 0.8, 'score': 'raps', 'by_class': True}, {'by': 'mahalanobis', 'rate': 0.1})
    """
    first, kinds, advice = FITS[what]
    words = (f"{first}={text}" if first else text).split(",")
    settings: dict[str, Any] = {}
    for key, _, value in (word.partition("=") for word in words):
        try:
            settings[key.strip()] = json.loads(value)
        except json.JSONDecodeError:
            settings[key.strip()] = value.strip()
    readable = len(settings) == len(words) and not (first and "=" in text.partition(",")[0])
    readable = readable and all(key in kinds and isinstance(value, kinds[key]) for key, value in settings.items())
    if what == "threshold":
        readable = readable and ("risk" in settings) != ("coverage" in settings)
        readable = readable and not {"coverage", "confidence"} <= settings.keys()
    if not readable:
        raise UserError(f"--fit-{what} {text}: {advice}")
    return settings


def parse_class_names(text: str | None) -> list[str] | None:
    """Read class names separated by commas, or from the lines of a file after @. None if the option is not given.

    >>> parse_class_names("cat, big dog")
    ['cat', 'big dog']
    """
    from rebapl.files import read_lines

    if text is None:
        return None
    names = read_lines(Path(text[1:])) if text.startswith("@") else [name.strip() for name in text.split(",")]
    if len(names) == 1:
        raise UserError(f"one class name ({names[0]}) would be the answer to every image: give at least two")
    return names
