"""One writer per folder. A claim is a file created atomically, refreshed by its owner and taken over when he dies.

    with Lock(folder):          # raises Taken if a live process holds it
        ...

The file has host, process and a token. Its owner touches it every few seconds; a claim that is stale, or whose
process is gone from this host, is removed by one claimant at a time and then recreated by whoever is first.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

from resolvent.disk import Damaged, parse

NAME = ".lock"
_LARGEST = 4096  # bytes of a claim
BEAT = 5.0  # seconds between touches
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a full disk
COLD = 60.0  # seconds without a touch after which the owner counts as dead: clocks of a shared disk may differ


class Taken(RuntimeError):
    """Another process is working in that folder.

    Examples:
        >>> with rv.experiments.Lock("runs"):
        ...     try:
        ...         rv.experiments.Lock("runs").__enter__()
        ...     except rv.experiments.Taken:
        ...         print("somebody is at work there")
        somebody is at work there
    """


class Lock:
    """A claim on `folder` for the length of a `with` block.

    Examples:
        >>> with rv.experiments.Lock("runs") as held:
        ...     held.path.name
        '.lock'
    """

    def __init__(self, folder: str | Path, cold: float = COLD) -> None:
        self.path = Path(folder) / NAME
        self.cold = cold
        self.token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> Lock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not self._create(self.path):
            owner = read(self.path)
            if owner is not None and not self._dead(self.path, owner, 10):
                raise Taken(
                    f"{str(self.path.parent)!r} is being written by process {owner.get('pid')} on "
                    f"{owner.get('host')}; wait for it, or remove {str(self.path)!r} if you are sure that it is gone."
                )
            self._clear()
        self._drop_dead(self._guard)  # of a process killed while clearing
        for part in self.path.parent.glob(f"{NAME}.*.part"):  # of a process killed while claiming; one that
            part.unlink(missing_ok=True)  # is alive finds the claim made
        self._beat = threading.Thread(target=self._keep_warm, daemon=True)
        self._beat.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._beat is not None:
            self._beat.join()
        if self.held():
            self.path.unlink(missing_ok=True)

    def held(self) -> bool:
        """Whether the claim is still ours: a suspended process may have lost it."""
        owner = read(self.path)
        return owner is not None and owner.get("token") == self.token

    @property
    def _guard(self) -> Path:
        """The path of the claim for removing a claim."""
        return self.path.with_name(f"{NAME}.takeover")

    def _create(self, path: Path) -> bool:
        own = {"pid": os.getpid(), "host": socket.gethostname(), "token": self.token}
        part = self.path.with_name(f"{NAME}.{self.token}.part")
        try:
            part.write_text(json.dumps(own), encoding="utf-8")
            os.link(part, path)  # atomic, and the file is complete from the start
        except FileExistsError:
            return False
        except OSError as wrong:
            if wrong.errno in NO_ROOM:
                raise OSError(wrong.errno, wrong.strerror, str(path)) from wrong
            return self._create_exclusive(path, json.dumps(own))  # a disk without hard links
        finally:
            part.unlink(missing_ok=True)
        return True

    def _create_exclusive(self, path: Path, text: str) -> bool:
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True

    def _dead(self, path: Path, owner: dict[str, Any], patience: int = 1) -> bool:
        """Whether the owner of a claim is gone, or did not touch it for long (here `patience` times as long: its
        process id may have been reused, but a debugger may also have stopped it)."""
        here = owner.get("host") == socket.gethostname()
        if (here and not alive(owner.get("pid"))) or path.is_symlink():  # we make no links
            return True
        try:
            return time.time() - path.lstat().st_mtime > self.cold * (patience if here else 1)
        except FileNotFoundError:
            return True

    def _clear(self) -> None:
        """Remove a dead owner's claim. One claimant at a time: a second would remove the first one's new claim."""
        if not self._create(self._guard):
            time.sleep(0.01)
            self._drop_dead(self._guard)
            return
        try:
            owner = read(self.path)
            if owner is not None and self._dead(self.path, owner, 10):
                self.path.unlink(missing_ok=True)
        finally:
            self._guard.unlink(missing_ok=True)

    def _drop_dead(self, guard: Path) -> None:
        """Remove the claim of a clearing process that died."""
        owner = read(guard)
        if owner is not None and self._dead(guard, owner):
            guard.unlink(missing_ok=True)

    def _keep_warm(self) -> None:
        while not self._stop.wait(BEAT):
            if not self.held():
                return
            os.utime(self.path)


def read(path: Path) -> dict[str, Any] | None:
    """The owner; None if there is none, {} if the file is unreadable."""
    try:
        if path.is_symlink() or not stat.S_ISREG(path.lstat().st_mode):
            return {}  # a dangling link, a pipe: not ours
        return parse(path.read_bytes()[:_LARGEST])
    except FileNotFoundError:
        return None
    except (OSError, Damaged):
        return {}


def alive(pid: Any) -> bool:
    """Whether a process of this host still runs."""
    if not isinstance(pid, int) or not 0 < pid < 2**31:  # no process id is larger
        return False
    if os.name == "nt":
        return _alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _zombie(pid)


def _zombie(pid: int) -> bool:
    """Whether it is a killed child not yet waited for, which still accepts signal 0."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _alive_on_windows(pid: int) -> bool:
    import ctypes

    windows: Any = getattr(ctypes, "windll", None)
    handle = windows.kernel32.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if handle:
        windows.kernel32.CloseHandle(handle)
    return bool(handle)
