"""A real headless Chromium for tests of pages. It gives the lines of its console, the document and a picture."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr --disable-dev-shm-usage"
).split()


def open_page(page: Path | str, folder: Path, *more: str) -> tuple[str, list[str]]:
    """Open a file or an address, with the browser's profile in `folder`. Returns its document and console lines."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    command = [
        browser,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        *more,
        page.as_uri() if isinstance(page, Path) else page,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, re.findall(r".*:CONSOLE.*", done.stderr)
