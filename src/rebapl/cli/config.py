"""`rebapl config`: a schema of configuration files, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

config = typer.Typer(no_args_is_help=True, help="Configuration files: a schema for editors.")


@config.callback()
def _root() -> None:
    """Configuration files: a schema for editors."""


@config.command()
def schema(
    out: Annotated[Path | None, typer.Option(help="File to write; it is printed if not given.")] = None,
) -> None:
    """Write the JSON schema of run configurations, with which editors complete and check YAML files."""
    import json

    from rebapl.files import write_json
    from rebapl.runs.config_file import run_schema

    if out is None:
        print(json.dumps(run_schema(), indent=2, ensure_ascii=False))
    else:
        write_json(out, run_schema())
        print(f"written: {out}; the first line of a YAML file names it: # yaml-language-server: $schema={out}")
