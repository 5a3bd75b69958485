"""A cell claimed in an object store, where a file can be created but not locked.

Claims are numbered: PLACE/.claims/000001, ... Each is created exclusively, and the holder is the one with the highest
number. Whoever finds that holder dead creates the next number: exactly one claimant succeeds, and nothing that somebody
else made is ever removed. The holder rewrites its claim every few seconds. It counts as dead when it said goodbye, when
its process is gone from this host, or when its claim has not changed for a while by the clock of the one who looks.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from resolvent.disk import Damaged, parse
from resolvent.experiments.store.lock import Taken, alive
from resolvent.experiments.store.objects import Objects

CLAIMS = ".claims"
BEAT = 15.0  # seconds between rewrites of a claim
COLD = 120.0  # seconds without one after which its holder counts as dead


@dataclass
class Watch:
    """What this process has seen of others' claims, and since when each has looked so."""

    cold: float = COLD
    beat: float = BEAT
    seen: dict[str, tuple[bytes, float]] = field(default_factory=dict)

    def silent(self, name: str, held: bytes) -> bool:
        """Whether a claim has not changed for too long."""
        before = self.seen.get(name)
        if before is None or before[0] != held:
            self.seen[name] = (held, time.monotonic())
            return False
        return time.monotonic() - before[1] > self.cold


class Claim:
    """A place held for the length of a `with` block; Taken when somebody alive holds it."""

    def __init__(self, objects: Objects, place: str, watch: Watch, beating: Callable[[], None] | None = None) -> None:
        self.objects, self.place, self.watch = objects, place, watch
        self.token = uuid.uuid4().hex
        self.name = ""
        self._beating = beating  # called with every beat, in another thread
        self._beats = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Claim:
        last = self._last()
        if last:
            self._require_dead(last)
        number = int(last.rpartition("/")[2] or 0) + 1 if last else 1
        self.name = f"{self.place}/{CLAIMS}/{number:06d}"
        if not self.objects.create(self.name, self._encode()):
            raise Taken(f"{self.objects.url}/{self.place}: another worker was first.")
        self._thread = threading.Thread(target=self._keep_warm, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.held():
            self.objects.write(self.name, self._encode(released=True))

    def held(self) -> bool:
        """Whether the claim still counts: a worker that slept too long may have lost it."""
        return self._last() == self.name

    def _last(self) -> str:
        numbers = [name for name in self.objects.names(f"{self.place}/{CLAIMS}") if name[-6:].isdecimal()]
        return max(numbers, default="")

    def _require_dead(self, name: str) -> None:
        held = self.objects.read(name)
        owner = _parse(held)
        here = owner.get("host") == socket.gethostname()
        gone = held is None or owner.get("released") is True or (here and not alive(owner.get("pid")))
        if not gone and not self.watch.silent(name, held or b""):
            raise Taken(
                f"{self.objects.url}/{self.place} is being written by process {owner.get('pid')} on "
                f"{owner.get('host')}; wait for it: a dead worker's claim falls after {self.watch.cold:g} s."
            )

    def _encode(self, released: bool = False) -> bytes:
        own = {"pid": os.getpid(), "host": socket.gethostname(), "token": self.token}
        return json.dumps(own | {"beat": self._beats, "released": released}).encode()

    def _keep_warm(self) -> None:
        while not self._stop.wait(self.watch.beat):
            try:
                if not self.held():
                    return
                self._beats += 1
                self.objects.write(self.name, self._encode())
                if self._beating is not None:
                    self._beating()
            except Exception:  # a network that fails for a moment; for too long, and the claim goes cold
                continue


def _parse(held: bytes | None) -> dict[str, Any]:
    try:
        return parse(held or b"{}")
    except Damaged:  # half written: it becomes whole, or goes cold
        return {}
