"""The command line. Each command is a dataclass of `resolvent.commands`; this file only selects one and runs it."""

from __future__ import annotations

import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Protocol, Union

import tyro

from resolvent.commands.analyse.options import Analyse
from resolvent.commands.attack.options import Attack
from resolvent.commands.bench.options import Bench
from resolvent.commands.certify.options import Certify
from resolvent.commands.check.options import Check
from resolvent.commands.corrupt.options import Corrupt
from resolvent.commands.demo import Demo
from resolvent.commands.export import Export
from resolvent.commands.help import ALL, show_help
from resolvent.commands.list import List
from resolvent.commands.log import Log
from resolvent.commands.predict.options import Predict
from resolvent.commands.reduce.options import Reduce
from resolvent.commands.report import Report
from resolvent.commands.run.options import Run
from resolvent.commands.signals import stoppable
from resolvent.commands.verdicts.options import Verdicts


class Command(Protocol):
    """Options as fields, and what they ask for."""

    def execute(self) -> int: ...


COMMANDS: dict[str, type[Command]] = {
    kind.__name__.lower(): kind
    for kind in (
        List, Demo, Run, Report, Log, Verdicts, Predict, Export, Attack, Corrupt, Certify, Reduce, Analyse, Check,
        Bench,
    )
}  # fmt: skip
TRACEBACK = "RESOLVENT_TRACEBACK"
UNFORESEEN = f"This is a bug: please report it with the traceback that {TRACEBACK}=1 before the command prints."
COMPLETION, SHELLS = "--tyro-print-completion", ("bash", "zsh", "fish")
CONFIG = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
ABOUT = """State-space sequence models: train them under attack, attack, certify, explain and compare them.

$ resolvent list               what there is: recipes, tasks, layers, presets
$ resolvent demo               ten small models on embedded data and a report, two to five minutes on two cores
$ resolvent COMMAND --help     what a command does and takes; --help-all: every option
$ resolvent --version

Exit status: 0 done; 1 done, with a negative result (a property fails, a run diverged, a model has no bound); 2 the
command was called wrongly, or a file or package is missing: one line says which; 3 an unexpected error, in one line
(set RESOLVENT_TRACEBACK=1 for the traceback); 124 the budget of run is used up; 130 stopped by Ctrl-C, 143 by SIGTERM,
129 by a closed terminal, and the same command resumes from there.

Shell completion: resolvent --tyro-print-completion bash (or zsh, fish) prints a script to install.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    with stoppable() as stop:
        return stop.status(_status(argv))


def _status(argv: Sequence[str] | None) -> int:
    try:
        status = _run_command(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("resolvent: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `resolvent list | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for output still buffered at exit
        return 2
    return status


def _run_command(argv: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    if given in (["--version"], ["-V"]):
        from resolvent import __version__

        print(f"resolvent {__version__}")
        return 0
    if len(given) == 2 and given[0] == COMPLETION and given[1] not in SHELLS:
        print(f"resolvent: completion is for {', '.join(SHELLS)}; got {given[1]!r}.", file=sys.stderr)
        return 2
    try:
        command = parse(given or ["--help"])
    except SystemExit as stop:
        return int(stop.code or 0)
    return _run_guarded(command)


def parse(given: Sequence[str]) -> Command:
    """The command with its options; other arguments (--help, completion, a wrong name) are handled for all commands."""
    made: Command
    if given[0] in COMMANDS and {"-h", "--help"} & set(given[1:]):
        show_help(COMMANDS[given[0]], f"resolvent {given[0]}", CONFIG)
        raise SystemExit(0)
    if given[0] in COMMANDS:
        given = [given[0], *_spell_norms("--help" if word == ALL else word for word in given[1:])]
        made = tyro.cli(COMMANDS[given[0]], prog=f"resolvent {given[0]}", args=given[1:], config=CONFIG)
    else:
        made = tyro.cli(_summary(), prog="resolvent", description=ABOUT, args=given, config=CONFIG)
    return made


def _spell_norms(words: Iterable[str]) -> list[str]:
    """`--norm Linf` and `--norm=L_2`, which `Threat` takes, in the options' spelling."""
    found: list[str] = []
    for word in words:
        option, equals, value = word.partition("=") if word.startswith("--norm=") else ("", "", word)
        ours = bool(equals) or (bool(found) and found[-1] == "--norm")
        found.append(option + equals + re.sub("[_-]", "", value.lower()) if ours else word)
    return found


def _summary() -> Any:
    """All commands, each with the first line of its docstring."""
    first_lines = {name: (inspect.getdoc(kind) or "").splitlines()[0] for name, kind in COMMANDS.items()}
    kinds = [Annotated[kind, tyro.conf.subcommand(n, description=first_lines[n])] for n, kind in COMMANDS.items()]
    return Union[tuple(kinds)]  # noqa: UP007  # created at run time


def _run_guarded(command: Command) -> int:
    """User errors are reported in one line, not as a traceback."""
    from resolvent.usage.error import UsageError

    try:
        return command.execute()
    except UsageError as wrong:
        print(f"resolvent {type(command).__name__.lower()}: {wrong}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # raised by rich when the pipe is closed
            return 2
        return _mishap(command, stop)
    except KeyboardInterrupt:
        print("resolvent: stopped.", file=sys.stderr)
        return 130
    except Exception as wrong:
        return _mishap(command, wrong)


def _mishap(command: Command, wrong: BaseException) -> int:
    """One line for errors not handled by a command; exit status 2 if the cause is known, else 3."""
    from resolvent.commands.trouble import explain_failure

    if os.environ.get(TRACEBACK):
        traceback.print_exception(wrong)
    known = explain_failure(wrong)
    text = known or f"{type(wrong).__name__}: {' '.join(str(wrong).split())}. {UNFORESEEN}"
    print(f"resolvent {type(command).__name__.lower()}: {text}", file=sys.stderr)
    return 2 if known else 3
