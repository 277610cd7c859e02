"""How far one has to walk to follow a command: which files and functions of the package it enters.

    python tools/walk.py train --data digits --method maple --inference rebapl --epochs 1 --out /tmp/walk
    python tools/walk.py --list predict /tmp/walk photo.png

It runs `rebapl` with the words that follow, in this process and its threads. It counts the functions that are entered,
each once, and the files that they stand in. Bodies of modules and classes, which importing runs, do not count.
A comprehension or a generator expression is a line of its function, and newer versions of Python run most of them
inside it: they are counted apart, so that the number does not depend on the version. Processes that the command starts
are not followed. `--list` also prints every function, by file.
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


def walk(words: list[str]) -> tuple[set[tuple[str, str]], int]:
    """Run `rebapl` with these words. Every function of the package that it enters: its file and its name.

    The second value is the number of comprehensions and generator expressions in functions that were entered.
    """
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
    functions = {(file, name) for file, name in found if not name.endswith(COMPREHENSIONS)}
    return functions, sum(1 for _, name in found - functions if name not in COMPREHENSIONS)


def main() -> None:
    """Walk, and print how many files of each room and how many functions were entered."""
    words = sys.argv[1:]
    listed = words[:1] == ["--list"]
    found, comprehensions = walk(words[listed:])
    files = Counter(file for file, _ in found)
    if listed:
        for file in sorted(files):
            print(f"{file} ({files[file]})")
            for name in sorted(name for each, name in found if each == file):
                print(f"    {name}")
    rooms = Counter(file.partition("/")[0] if "/" in file else "top" for file in files)
    print(", ".join(f"{room} {count}" for room, count in rooms.most_common()))
    print(f"{len(files)} files, {len(found)} functions ({comprehensions} comprehensions in them)")


if __name__ == "__main__":
    main()
