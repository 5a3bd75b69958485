"""One writer a folder. A claim is a file made by an atomic create, kept warm by its owner and taken over when he dies.

    with Lock(folder):          # Taken when somebody alive holds it
        ...

The file tells host, process and a token of its own. Its owner touches it every few seconds; a claim that has gone cold,
or whose process is gone from this host, is removed by one claimant at a time and then made anew by whoever is first.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

NAME = ".lock"
BEAT = 5.0  # seconds between touches
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a full disk
COLD = 60.0  # after so many without a touch the owner counts as dead: clocks of a shared disk may differ by seconds


class Taken(RuntimeError):
    """Somebody else is at work in that folder."""


class Lock:
    """A claim on `folder` for the length of a `with` block."""

    def __init__(self, folder: str | Path, cold: float = COLD) -> None:
        self.path = Path(folder) / NAME
        self.cold = cold
        self.token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> Lock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not self._create():
            owner = read(self.path)
            if owner is not None and not self._dead(owner):
                raise Taken(
                    f"{str(self.path.parent)!r} is being written by process {owner.get('pid')} on "
                    f"{owner.get('host')}; wait for it, or remove {str(self.path)!r} if you are sure that it is gone."
                )
            self._clear()
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
        """Whether the claim is still ours: a process that slept too long may have lost it."""
        owner = read(self.path)
        return owner is not None and owner.get("token") == self.token

    def _create(self) -> bool:
        own = {"pid": os.getpid(), "host": socket.gethostname(), "token": self.token}
        part = self.path.with_name(f"{NAME}.{self.token}.part")  # a killed claimant's goes with the others
        try:
            part.write_text(json.dumps(own), encoding="utf-8")
            os.link(part, self.path)  # atomic, and the file is whole from its first instant
        except FileExistsError:
            return False
        except OSError as wrong:
            if wrong.errno in NO_ROOM:
                raise OSError(wrong.errno, wrong.strerror, str(self.path)) from wrong
            return self._create_exclusive(json.dumps(own))  # a disk without hard links
        finally:
            part.unlink(missing_ok=True)
        return True

    def _create_exclusive(self, text: str) -> bool:
        try:
            with self.path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True

    def _dead(self, owner: dict[str, Any]) -> bool:
        here = owner.get("host") == socket.gethostname()
        if here and not alive(owner.get("pid")):
            return True
        try:  # on this host a number may have passed to another process, but a debugger may also stop the owner
            return time.time() - self.path.stat().st_mtime > self.cold * (10 if here else 1)
        except FileNotFoundError:
            return True

    def _clear(self) -> None:
        """Remove a dead owner's claim. One claimant at a time: a second one would remove what the first has made."""
        guard = self.path.with_name(f"{NAME}.takeover")
        try:
            os.close(os.open(guard, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            self._wait(guard)
            return
        try:
            owner = read(self.path)
            if owner is not None and self._dead(owner):
                self.path.unlink(missing_ok=True)
        finally:
            guard.unlink(missing_ok=True)

    def _wait(self, guard: Path) -> None:
        """Another claimant is clearing; one that died in the middle of it is forgotten after a while."""
        time.sleep(0.01)
        try:
            if time.time() - guard.stat().st_mtime > self.cold:
                guard.unlink(missing_ok=True)
        except FileNotFoundError:
            return

    def _keep_warm(self) -> None:
        while not self._stop.wait(BEAT):
            if not self.held():
                return
            os.utime(self.path)


def read(path: Path) -> dict[str, Any] | None:
    """Who holds it; None when nobody does, {} when the file does not tell."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        held = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return held if isinstance(held, dict) else {}


def alive(pid: Any) -> bool:
    """Whether a process of this host still runs."""
    if not isinstance(pid, int) or pid <= 0:
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
    """A killed child that nobody has waited for yet still answers signal 0."""
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
