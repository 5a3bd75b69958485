"""Threads that run compiled kernels in parallel.

A kernel that releases the interpreter's lock is called on each part of its tasks from a thread of ours. Unlike OpenMP,
whose threads spin while they wait, these sleep: on a busy machine a call costs no more than serially, not a time slice
of the scheduler; one compiled kernel serves both cases; and a forked process starts its own threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

_Job = tuple[Callable[[int, int], None], int, int, "SimpleQueue[BaseException | None]"]
_jobs: SimpleQueue[_Job] = SimpleQueue()
_started = 0
_lock = threading.Lock()


def _forget() -> None:
    """In a forked child: the parent's threads are gone, and its locks may be held forever."""
    global _jobs, _started, _lock
    _jobs, _started, _lock = SimpleQueue(), 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def spread(kernel: Callable[[int, int], None], tasks: int, threads: int) -> None:
    """kernel(lo, hi) over range(tasks), split into one part per thread; the caller runs the first part."""
    threads = min(threads, tasks)
    if threads <= 1:
        kernel(0, tasks)
        return
    _start(threads - 1)
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    edges = [tasks * i // threads for i in range(threads + 1)]
    for i in range(1, threads):
        _jobs.put((kernel, edges[i], edges[i + 1], done))
    try:
        kernel(0, edges[1])
    finally:  # the others use the same arrays: never return before them
        errors = [done.get() for _ in range(1, threads)]
    for error in errors:
        if error is not None:
            raise error


def _start(count: int) -> None:
    global _started
    if _started >= count:
        return
    with _lock:
        while _started < count:
            threading.Thread(target=_work, args=(_jobs,), name=f"resolvent-{_started}", daemon=True).start()
            _started += 1


def _work(jobs: SimpleQueue[_Job]) -> None:
    while True:
        kernel, lo, hi, done = jobs.get()
        try:
            kernel(lo, hi)
        except BaseException as error:  # passed to the caller, which raises it
            done.put(error)
        else:
            done.put(None)
        del kernel, done  # or a sleeping thread would keep the last call's arrays alive
