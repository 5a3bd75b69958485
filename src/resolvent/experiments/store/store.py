"""Where results lie: a folder that workers share, or a URL of an object store. A cell runs in a local folder anyway.

    store = open_store("s3://bucket/runs")
    with store.working(cell.place) as path:      # Taken when another worker is at it
        run_cell(cell, path)
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from resolvent.disk import Damaged, parse, unseal
from resolvent.experiments.store.bundle import DamagedBundle, pack, run_files, unpack
from resolvent.experiments.store.claim import CLAIMS, Claim, Watch
from resolvent.experiments.store.folder import CELL, RECORD, Folder, RunError, Tell
from resolvent.experiments.store.lock import Taken
from resolvent.experiments.store.objects import Objects, is_url
from resolvent.training.process_group import current_group

PROGRESS = "progress.bundle"  # of a cell that is not complete
KEEP = 300.0  # seconds between two bundles of a running cell


def open_store(out: str | Path) -> Store:
    """A store that can be written, by its folder or URL."""
    return ObjectStore(str(out)) if is_url(out) else FolderStore(Path(out))


class FolderStore:
    """Cells lie where they run; `run_cell` itself claims its folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def working(self, place: str, tell: Tell = print) -> Iterator[Path]:
        yield self.root / place

    def complete(self, place: str) -> bool:
        return (self.root / place / RECORD).is_file()

    def record(self, place: str) -> dict[str, Any] | None:
        return Folder(self.root / place).record()

    def where(self, place: str) -> str:
        return str((self.root / place).resolve())


class ObjectStore:
    """Cells run in a temporary folder. Finished ones are sent file by file, the record last; others as one bundle."""

    def __init__(self, url: str, watch: Watch | None = None, keep: float = KEEP) -> None:
        if current_group().size > 1:
            raise RunError(
                f"run: processes of torchrun share a folder, which {url!r} is not; give --out a folder, or start "
                "workers without torchrun: each takes cells of its own."
            )
        self.objects = Objects(url)
        self.objects.check()
        self.watch = watch or Watch()
        self.keep = keep

    @contextmanager
    def working(self, place: str, tell: Tell = print) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="resolvent-") as scratch:
            path = Path(scratch) / "run"
            if self.complete(place):
                yield self._fetch(place, path)
                return
            keeper = _Keeper(self.objects, place, path, self.keep)
            with Claim(self.objects, place, self.watch, keeper.beat) as claim:
                done = self.complete(place)  # by whoever held it until a moment ago
                if done:
                    yield self._fetch(place, path)
                else:
                    self._resume(place, path, tell)
                    yield from self._guard(claim, keeper, path)
            self._clean(place)

    def _guard(self, claim: Claim, keeper: _Keeper, path: Path) -> Iterator[Path]:
        """The run; stopped by anything, its progress is kept, and complete, it is published."""
        try:
            yield path
        except BaseException:
            with suppress(Exception):  # of a full disk or a dead network; the first trouble is the one to tell
                if claim.held():
                    keeper.save()
            raise
        if not claim.held():
            raise Taken(f"{self.objects.url}/{claim.place}: another worker took it over while this one slept.")
        self._publish(claim.place, path)

    def complete(self, place: str) -> bool:
        return self.objects.has(f"{place}/{RECORD}")

    def record(self, place: str) -> dict[str, Any] | None:
        held = self.objects.read(f"{place}/{RECORD}")
        if held is None:
            return None
        try:
            return unseal(parse(held))
        except Damaged as wrong:
            raise RunError(f"run: {self.where(place)}/{RECORD} is damaged ({wrong}); remove it.") from wrong

    def where(self, place: str) -> str:
        return f"{self.objects.url}/{place}"

    def remove(self, place: str) -> None:
        """Everything that lies there, the record first; Taken when somebody is at it."""
        if not self.objects.names(place):
            return
        with Claim(self.objects, place, self.watch):
            self.objects.remove(f"{place}/{RECORD}")
            for name in self.objects.names(place):
                if f"/{CLAIMS}/" not in name:
                    self.objects.remove(name)

    def _fetch(self, place: str, path: Path) -> Path:
        """A complete cell: its settings, which must be those asked for, and its record, which must be sound."""
        self.record(place)
        for name in (CELL, RECORD):
            self.objects.fetch(f"{place}/{name}", path / name)
        return path

    def _resume(self, place: str, path: Path, tell: Tell) -> None:
        """What an earlier worker left."""
        self.objects.fetch(f"{place}/{CELL}", path / CELL)
        bundle = path.with_name(PROGRESS)
        if not self.objects.fetch(f"{place}/{PROGRESS}", bundle):
            return
        try:
            unpack(bundle, path)
        except DamagedBundle as wrong:
            tell(f"{self.where(place)}: {wrong}; it starts anew")
        bundle.unlink()

    def _publish(self, place: str, path: Path) -> None:
        for name in run_files(path):
            self.objects.send(path / name, f"{place}/{name}")
        self.objects.create(f"{place}/{RECORD}", (path / RECORD).read_bytes())

    def _clean(self, place: str) -> None:
        """A complete cell needs neither claims nor progress."""
        if self.complete(place):
            for name in (*self.objects.names(f"{place}/{CLAIMS}"), f"{place}/{PROGRESS}"):
                self.objects.remove(name)


class _Keeper:
    """Sends the progress of a running cell, now and then."""

    def __init__(self, objects: Objects, place: str, path: Path, every: float) -> None:
        self.objects, self.place, self.path, self.every = objects, place, path, every
        self._last = -every
        self._one = threading.Lock()

    def beat(self) -> None:
        if time.monotonic() - self._last >= self.every and (self.path / CELL).is_file():
            self.save()

    def save(self) -> None:
        if not (self.path / CELL).is_file():
            return
        with self._one:
            self.objects.send(self.path / CELL, f"{self.place}/{CELL}")
            bundle = pack(self.path, self.path.with_name(f"{PROGRESS}.out"))
            self.objects.send(bundle, f"{self.place}/{PROGRESS}")
            self._last = time.monotonic()


Store = FolderStore | ObjectStore
