"""Chromium without a window, for tests of pages: what a page says of its own width, and what it complains about."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0")
COMPLAINT = re.compile(r":CONSOLE[:(].*")  # how a page's own messages are logged


def chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def visit(url: str, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """What the browser prints, and the page's own console messages."""
    command = [str(chromium()), *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, COMPLAINT.findall(done.stderr)


def widths(page: Path, folder: Path, width: int) -> tuple[int, int, list[str]]:
    """(width of the view, width that the page takes, messages) of a page in a frame of `width` pixels.

    A frame, because a window is never narrower than 500.
    """
    frame = folder / f"frame-{width}.html"
    script = (
        "const f = document.getElementById('f');"
        "f.onload = () => { const d = f.contentDocument.documentElement;"
        "document.title = [d.clientWidth, d.scrollWidth].join(' '); };"
    )
    text = html.escape(page.read_text(encoding="utf-8"))
    frame.write_text(
        f'<!doctype html><meta charset="utf-8"><title>-</title><iframe id="f" style="width: {width}px; height: 844px; '
        f'border: 0" srcdoc="{text}"></iframe><script>{script}</script>',
        encoding="utf-8",
    )
    dumped, messages = visit(frame.as_uri(), folder, "--window-size=1300,900", "--dump-dom")
    view, taken = map(int, re.findall(r"<title>(\d+) (\d+)</title>", dumped)[0])
    return view, taken, messages
