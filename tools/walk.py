"""Show how far a reader has to go to follow a command: the files and functions of the package that it enters.

    python tools/walk.py train --data digits --method maple --inference rebapl --epochs 1 --out /tmp/walk
    python tools/walk.py --list predict /tmp/walk photo.png

It runs `rebapl` with these words, in this process and its threads. It counts each function that is entered once, and
the files with these functions. Bodies of modules and classes, which run on import, do not count. Comprehensions and
generator expressions are counted separately, because newer versions of Python run most of them inside their function.
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


def walk(words: list[str]) -> tuple[set[tuple[str, str]], int]:
    """Run `rebapl` with these words. Returns the file and the name of every function of the package that it enters.

    The second value is the number of comprehensions and generator expressions in these functions.
    """
    from rebapl.cli import main

    entered: set[CodeType] = set()

    def enter(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            entered.add(frame.f_code)

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
    names = {
        (str(Path(code.co_filename).relative_to(PACKAGE)), getattr(code, "co_qualname", code.co_name))
        for code in entered
        if code.co_filename.startswith(f"{PACKAGE}/") and code.co_flags & OPTIMIZED_LOCALS
    }
    functions = {(file, name) for file, name in names if not name.endswith(COMPREHENSIONS)}
    return functions, sum(1 for _, name in names - functions if name not in COMPREHENSIONS)


def main() -> None:
    """Walk, and print the number of files of each room, and of functions, that were entered."""
    words = sys.argv[1:]
    listed = words[:1] == ["--list"]
    functions, comprehensions = walk(words[listed:])
    files = Counter(file for file, _ in functions)
    if listed:
        for file in sorted(files):
            print(f"{file} ({files[file]})")
            for name in sorted(name for each, name in functions if each == file):
                print(f"    {name}")
    rooms = Counter(file.partition("/")[0] if "/" in file else "top" for file in files)
    print(", ".join(f"{room} {count}" for room, count in rooms.most_common()))
    print(f"{len(files)} files, {len(functions)} functions ({comprehensions} comprehensions in them)")


if __name__ == "__main__":
    main()
