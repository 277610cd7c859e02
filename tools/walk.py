"""How far one has to walk to follow a command: which files and functions of the package it enters.

    python tools/walk.py train --data digits --method maple --inference rebapl --epochs 1 --out /tmp/walk
    python tools/walk.py --list predict /tmp/walk photo.png

It runs `rebapl` with the words that follow, in this process and its threads. It counts the functions that are entered,
each once, and the files that they stand in. Bodies of modules and classes, which importing runs, do not count.
Processes that the command starts are not followed. `--list` also prints every function, by file.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import rebapl

PACKAGE = Path(rebapl.__file__).resolve().parent
OPTIMIZED_LOCALS = 0x2
"""The flag of code that has local variables of its own: functions have it, bodies of modules and classes do not."""


COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""The names of comprehensions in the body of a module, which importing runs. In functions, their names are longer."""


def walk(words: list[str]) -> set[tuple[str, str]]:
    """Run `rebapl` with these words. Every function of the package that it enters: its file and its name."""
    from rebapl.cli import main

    seen: set[CodeType] = set()

    def enter(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    threading.setprofile(enter)
    sys.setprofile(enter)
    sys.argv = ["rebapl", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    found = {
        (str(Path(code.co_filename).relative_to(PACKAGE)), getattr(code, "co_qualname", code.co_name))
        for code in seen
        if code.co_filename.startswith(f"{PACKAGE}/") and code.co_flags & OPTIMIZED_LOCALS
    }
    return {(file, name) for file, name in found if name not in COMPREHENSIONS}


def main() -> None:
    """Walk, and print how many files of each room and how many functions were entered."""
    words = sys.argv[1:]
    listed = words[:1] == ["--list"]
    found = walk(words[listed:])
    files = Counter(file for file, _ in found)
    if listed:
        for file in sorted(files):
            print(f"{file} ({files[file]})")
            for name in sorted(name for each, name in found if each == file):
                print(f"    {name}")
    rooms = Counter(file.partition("/")[0] if "/" in file else "top" for file in files)
    print(", ".join(f"{room} {count}" for room, count in rooms.most_common()))
    print(f"{len(files)} files, {len(found)} functions")


if __name__ == "__main__":
    main()
