"""The options that several commands share, how their values are read, and what the shell completes for them.

The names for the shell are read from the files of the package, since a person who presses Tab does not wait until torch
is imported. Names that plugins register are not completed. Where nothing here fits, the shell completes names of files.
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
from rebapl.errors import UserError, unknown
from rebapl.runs.workers import begin_server

if TYPE_CHECKING:
    from rebapl.runs.engine import Engine

SOURCE = Path(rebapl.__file__).parent

Command = TypeVar("Command", bound=Callable[..., None])


def complete_methods(incomplete: str) -> list[str]:
    """The methods; each has a file with its recipe."""
    return _beginning(incomplete, _yaml_files(SOURCE / "learners" / "recipes"))


def complete_inference(incomplete: str) -> list[str]:
    """The presets, but not those that only others extend."""
    return _beginning(incomplete, _yaml_files(SOURCE / "sampling" / "presets"))


def complete_datasets(incomplete: str) -> list[str]:
    """The embedded and the published data sets."""
    from rebapl.data.embedded import EMBEDDED
    from rebapl.data.published import PUBLISHED

    return _beginning(incomplete, (*EMBEDDED, *PUBLISHED))


def complete_runs(incomplete: str) -> list[str]:
    """The runs in the folder of runs that is being typed, or in `runs`."""
    typed = Path(incomplete or "runs/")
    parent = typed if incomplete.endswith("/") or not incomplete else typed.parent
    found = sorted(str(file.parent) for file in parent.glob("*/config.json"))
    return _beginning(incomplete, found) or _beginning(incomplete, ["runs/"] if Path("runs").is_dir() else [])


def _yaml_files(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml") if not file.name.startswith("_"))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def described(command: Command) -> Command:
    """Make options of the parameters of a command, with the help that the docstring has for them.

    Parameters before the `*` are arguments, those after it options. What typer cannot tell from the name and the type
    of a parameter (a range, another name, what the shell completes) its annotation says. The part of the docstring
    below `Parameters:` is taken off, so that typer shows what stands before it.

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
    command.__doc__, _, listed = (inspect.getdoc(command) or "").partition("\n\nParameters:\n")
    helps = {name: " ".join(text.split()) for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed, re.M)}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *known = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        if not known and parameter.kind is parameter.KEYWORD_ONLY:
            word = name.strip("_").replace("_", "-")
            known = [typer.Option(f"--{word}/--no-{word}" if kind == bool | None else f"--{word}")]
        info = copy.copy(known[0] if known else typer.Argument())
        info.help = info.help or helps[name]
        hints[name] = Annotated[kind, info]
    command.__annotations__ = hints
    return command


def expect_workers(device: str | None, jobs: int | None) -> None:
    """Let the server of workers begin to import at once, if several runs at a time are asked for."""
    if (jobs or 1) > 1 or "," in (device or ""):
        begin_server()


QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no progress and no notes; results, warnings and errors stay.")
]
TrackOption = Annotated[
    str | None,
    typer.Option(help="Also log to these trackers, with commas: tensorboard, mlflow, or those that plugins register."),
]
Root = Annotated[Path | None, typer.Option(help="Folder of the published data sets; $REBAPL_DATA if not given.")]
ClassesOption = Annotated[
    str | None, typer.Option(help="Other class names, separated by commas, or @FILE with one per line.")
]
RunsFolder = Annotated[Path, typer.Option(help="Folder of runs; a run gets a folder named by its settings' hash.")]
RunArgument = Annotated[Path, typer.Argument(autocompletion=complete_runs)]
MovedBackbone = Annotated[str | None, typer.Option(help="The backbone, if it is not where it was in training.")]
OneDevice = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; the GPU if there is one.")]
HarmonicMean = Annotated[
    str, typer.Option(help="Harmonic mean over data sets: of-averages, or average (of the data sets' own).")
]
AtLeastOne = Annotated[int | None, typer.Option(min=1)]
Epochs = Annotated[int | None, typer.Option(help="Epochs instead of the number that was published.")]
EngineName = Annotated[
    str,
    typer.Option(
        help="Where runs happen: local (this machine), ray (a Ray cluster), slurm (jobs of SLURM), or one of a plugin."
    ),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-option",
        "-E",
        metavar="NAME=VALUE",
        help="An option of that engine; repeatable. ray: address, cpus, gpus (of a run; a share such as 0.25 is "
        "possible). slurm: partition, time, cpus, gpus.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, or several: cuda:0,cuda:1; the GPU if there is one.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs or shards at a time on each device; 1 if not given.")]


def engine_of(
    name: str, runs: Path, device: str | None = None, jobs: int | None = None, options: Sequence[str] | None = None
) -> Engine[Any]:
    """The engine that these options name, for runs in the folder `runs`. What an engine has no use for is refused.

    >>> engine_of("ray", Path("runs"), jobs=3)
    Traceback (most recent call last):
    rebapl.errors.UserError: --jobs is for --engine local, not for ray: leave it out
    >>> engine_of("ray", Path("runs"), options=["adress=x"])
    Traceback (most recent call last):
    rebapl.errors.UserError: unknown option of ray 'adress': did you mean 'address'? Accepted: address, cpus, gpus
    """
    from rebapl.runs.engine import ENGINES, LocalEngine

    engine, given = ENGINES.find(name), dict[str, str]()
    for word in options or ():
        option, equals, value = word.partition("=")
        if not equals or not value:
            raise UserError(f"--engine-option {word}: write NAME=VALUE, such as address=auto or time=2:00:00")
        given[option.strip().replace("-", "_")] = value.strip()
    if engine is LocalEngine:
        if given:
            raise UserError(f"--engine-option {next(iter(given))}: the engine local has --device and --jobs")
        return LocalEngine(parse_names(device), 1 if jobs is None else jobs)
    for local, asked in (("--device", device), ("--jobs", jobs)):
        if asked is not None:
            raise UserError(f"{local} is for --engine local, not for {name}: leave it out")
    accepted = list(inspect.signature(engine).parameters)[1:]
    for option in given:
        if option not in accepted:
            raise unknown(f"option of {name}", option, accepted)
    return engine(runs, **given)


def parse_names(given: str | None) -> list[str] | None:
    """Names with commas between them; None where none are given.

    >>> parse_names("imagenet_a, imagenet_r")
    ['imagenet_a', 'imagenet_r']
    """
    return None if given is None else [word.strip() for word in given.split(",") if word.strip()]


def parse_trackers(given: str | None) -> tuple[str, ...]:
    """Names of trackers with commas between them, if they can be used here."""
    from rebapl.training.log import check_trackers

    names = tuple(parse_names(given) or ())
    check_trackers(names)
    return names


def parse_seeds(given: str) -> list[int]:
    """Whole numbers with commas between them.

    >>> parse_seeds("1,2,3")
    [1, 2, 3]
    """
    try:
        seeds = [int(word) for word in given.split(",")]
    except ValueError as error:
        raise UserError(f"--seeds {given}: write whole numbers with commas between them, such as 1,2,3") from error
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {given}: each seed is one run; name it once")
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
"""The options --fit-…: what stands in them without its name, what may stand in them, and what to say if it does not."""


def parse_fit(what: str, given: str) -> dict[str, Any]:
    """Read the words NAME=VALUE between commas of an option --fit-….

    >>> parse_fit("threshold", "risk=0.05,confidence=0.95"), parse_fit("threshold", "coverage=0.9,by=entropy")
    ({'risk': 0.05, 'confidence': 0.95}, {'coverage': 0.9, 'by': 'entropy'})
    >>> parse_fit("conformal", "0.8,score=raps,by_class=true"), parse_fit("outside", "mahalanobis,rate=0.1")
    ({'level': 0.8, 'score': 'raps', 'by_class': True}, {'by': 'mahalanobis', 'rate': 0.1})
    """
    first, kinds, write = FITS[what]
    wanted: dict[str, Any] = {}
    for key, _, value in (word.partition("=") for word in (f"{first}={given}" if first else given).split(",")):
        try:
            wanted[key.strip()] = json.loads(value)
        except json.JSONDecodeError:
            wanted[key.strip()] = value.strip()
    fits = all(key in kinds and isinstance(value, kinds[key]) for key, value in wanted.items())
    if what == "threshold":
        fits = fits and ("risk" in wanted) != ("coverage" in wanted) and not {"coverage", "confidence"} <= wanted.keys()
    if not fits or (first and "=" in given.partition(",")[0]):
        raise UserError(f"--fit-{what} {given}: {write}")
    return wanted


def given_class_names(given: str | None) -> list[str] | None:
    """Class names with commas between them, or those in the lines of a file; None where none are given.

    >>> given_class_names("cat, big dog")
    ['cat', 'big dog']
    """
    from rebapl.files import read_lines

    if given is None:
        return None
    names = read_lines(Path(given[1:])) if given.startswith("@") else [name.strip() for name in given.split(",")]
    if len(names) == 1:
        raise UserError(f"one class name ({names[0]}) would be the answer to every image: give at least two")
    return names
