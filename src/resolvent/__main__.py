"""python -m resolvent, and the program `resolvent` itself."""

import os
import sys

try:
    from resolvent.commands.signals import stoppable
except KeyboardInterrupt:  # Ctrl-C while the first module is imported
    os.write(2, b"resolvent: stopped.\n")
    os._exit(130)


def main() -> int:
    """The command line, interruptible from the first import on."""
    with stoppable() as stop:
        from resolvent.cli import main as command

        return stop.status(command())


if __name__ == "__main__":
    sys.exit(main())
