"""python -m resolvent, and the program `resolvent` itself."""

import sys

from resolvent.commands.signals import stoppable


def main() -> int:
    """The command line, stoppable from the first import on."""
    with stoppable() as stop:
        from resolvent.cli import main as command

        return stop.status(command())


if __name__ == "__main__":
    sys.exit(main())
