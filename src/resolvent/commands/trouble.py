"""Errors of a command in the user's terms: what happened, where, and how to continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from resolvent.experiments.store.lock import NO_ROOM, Taken
from resolvent.report import MissingPackage
from resolvent.usage.error import UsageError


@contextmanager
def as_usage_errors(out: str) -> Iterator[None]:
    """Convert errors that the user can fix to UsageError; `out` is where finished work is."""
    try:
        yield
    except BrokenPipeError:  # the reader has closed the pipe
        raise
    except (ValueError, TypeError, OSError, ImportError, Taken) as wrong:
        raise UsageError(explain(wrong, out)) from wrong


def explain(wrong: Exception, out: str) -> str:
    if isinstance(wrong, OSError) and wrong.errno in NO_ROOM:
        return f"{_full(wrong)} resumes from what is in {out}."
    return str(wrong).removeprefix("run: ").removeprefix("report: ").removeprefix("log: ")


def explain_failure(wrong: BaseException) -> str | None:
    """Errors that can happen in any command, in a sentence: no space on disk or memory, an unavailable file, a module
    that exits the program. None for all others."""
    if isinstance(wrong, OSError) and wrong.errno in NO_ROOM:
        return f"{_full(wrong)} does what is left to do."
    if isinstance(wrong, OSError) and wrong.strerror:
        return f"{wrong.filename}: {wrong.strerror}." if wrong.filename else f"{wrong.strerror}."
    if isinstance(wrong, MemoryError) or (isinstance(wrong, RuntimeError) and _no_memory(wrong)):
        reason = next(iter(str(wrong).splitlines()), "") or type(wrong).__name__
        return f"there is not enough memory for this ({reason}); ask for a smaller model or fewer samples."
    if isinstance(wrong, MissingPackage):
        return str(wrong)
    if isinstance(wrong, SystemExit):
        return f"code that was loaded ended the program, sys.exit({wrong.code!r}); take that call out of it."
    return None


def _full(wrong: OSError) -> str:
    place = f" ({wrong.filename})" if wrong.filename else ""
    lost = "Nothing that was finished is lost; free some space, and the same command"
    return f"the disk is full{place}: {wrong.strerror}. {lost}"


def _no_memory(wrong: RuntimeError) -> bool:
    from resolvent.runtime.memory import lacks_memory

    return lacks_memory(wrong) or any(words in str(wrong) for words in ("can't allocate memory", "not enough memory"))
