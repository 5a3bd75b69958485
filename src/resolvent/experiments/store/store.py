"""Where results are stored: a folder shared by workers, or a URL of an object store. Cells run in a local folder.

    store = open_store("s3://bucket/runs")
    with store.working(cell.place) as path:
        run_cell(cell, path)

A folder has one writer at a time (store/lock.py). An object store has no locks: each cell must be given to one process
(experiments/cluster), and a lost node that still writes produces the same numbers.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from resolvent.disk import Damaged, parse, unseal
from resolvent.experiments.store.bundle import DamagedBundle, pack, run_files, unpack
from resolvent.experiments.store.folder import CELL, RECORD, Folder, RunError, Tell
from resolvent.experiments.store.objects import Objects, is_url
from resolvent.training.process_group import current_group

PROGRESS = "progress.bundle"  # of an incomplete cell
KEEP = 300.0  # seconds between two bundles of a running cell


def open_store(out: str | Path) -> Store:
    """A writable store, by its folder or URL."""
    return ObjectStore(str(out)) if is_url(out) else FolderStore(Path(out))


class FolderStore:
    """Cells are stored where they run; `run_cell` itself claims its folder."""

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
    """Cells run in a temporary folder. Finished ones are uploaded by file, the record last; others as one bundle."""

    def __init__(self, url: str, keep: float = KEEP) -> None:
        if current_group().size > 1:
            raise RunError(
                f"run: processes of torchrun share a folder, which {url!r} is not; give --out a folder, or spread "
                "cells over machines with --on ray."
            )
        self.objects = Objects(url)
        self.objects.check()
        self.keep = keep

    @contextmanager
    def working(self, place: str, tell: Tell = print) -> Iterator[Path]:
        """The folder to run in. If stopped, its progress is stored; when complete, it is published."""
        with tempfile.TemporaryDirectory(prefix="resolvent-") as scratch:
            path = Path(scratch) / "run"
            if self.complete(place):
                yield self._fetch(place, path)
                return
            self._resume(place, path, tell)
            stop = threading.Event()
            keeper = threading.Thread(target=self._save_often, args=(place, path, stop), daemon=True)
            keeper.start()
            try:
                try:
                    yield path
                finally:
                    stop.set()
                    keeper.join()
            except BaseException:
                with suppress(Exception):  # a full disk or a dead network; the first error is the one to report
                    self._save(place, path)
                raise
            self._publish(place, path)

    def _save_often(self, place: str, path: Path, stop: threading.Event) -> None:
        """Upload the progress of a running cell periodically."""
        while not stop.wait(self.keep):
            with suppress(Exception):  # transient network errors or removed files: retried next time
                self._save(place, path)

    def _save(self, place: str, path: Path) -> None:
        if not (path / CELL).is_file():
            return
        self.objects.send(path / CELL, f"{place}/{CELL}")
        bundle = pack(path, path.with_name(f"{PROGRESS}.out"))
        self.objects.send(bundle, f"{place}/{PROGRESS}")

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
        """Remove everything there, the record first."""
        self.objects.remove(f"{place}/{RECORD}")
        for name in self.objects.names(place):
            self.objects.remove(name)

    def _fetch(self, place: str, path: Path) -> Path:
        """A complete cell: its settings, which must be those asked for, and its record, which must be sound."""
        self.record(place)
        for name in (CELL, RECORD):
            self.objects.fetch(f"{place}/{name}", path / name)
        return path

    def _resume(self, place: str, path: Path, tell: Tell) -> None:
        """Fetch the progress of an earlier call or a lost node."""
        self.objects.fetch(f"{place}/{CELL}", path / CELL)
        bundle = path.with_name(PROGRESS)
        if not self.objects.fetch(f"{place}/{PROGRESS}", bundle):
            return
        try:
            unpack(bundle, path)
        except DamagedBundle as wrong:
            tell(f"{self.where(place)}: {wrong}; it starts again")
        bundle.unlink()

    def _publish(self, place: str, path: Path) -> None:
        """Every file, the record last; a complete cell needs no progress."""
        for name in run_files(path):
            self.objects.send(path / name, f"{place}/{name}")
        self.objects.write(f"{place}/{RECORD}", (path / RECORD).read_bytes())
        self.objects.remove(f"{place}/{PROGRESS}")


Store = FolderStore | ObjectStore
