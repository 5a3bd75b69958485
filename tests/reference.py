"""Writes docs/reference/commands.md from the --help-all of each command: python tests/reference.py"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from resolvent import cli

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "commands.md"
COLUMNS = "110"
HEAD = """# Every command and its options

What `resolvent COMMAND --help-all` prints; `--help` shows the common options in full and names the others.
`python tests/reference.py` writes this page, and a test keeps it up to date.
What the commands are for, exit statuses and completion are in [Command line](../commands.md).
"""


def help_of(name: str) -> str:
    """What --help-all of a command prints, in lines of one width."""
    held, printed = os.environ.get("COLUMNS"), io.StringIO()
    os.environ["COLUMNS"] = COLUMNS
    try:
        with contextlib.redirect_stdout(printed):
            cli.main([name, "--help-all"])
    finally:
        if held is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = held
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def page() -> str:
    """All commands, in the order of `resolvent --help`."""
    parts = [f"## resolvent {name}\n\n```text\n{help_of(name)}\n```\n" for name in cli.COMMANDS]
    return "\n".join([HEAD, *parts])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
