"""The operations needed of an object store, for any URL that fsspec opens (s3://bucket/runs, gs://, file://).

objects = Objects("s3://bucket/runs")
objects.write("here", b"mine")
"""

from __future__ import annotations

import uuid
from pathlib import Path

from resolvent.experiments.store.folder import RunError

_BLOCK = 1 << 20


class TooLarge(ValueError):
    """An object exceeds the allowed bytes; carries its name."""


def is_url(place: object) -> bool:
    """Whether a place is a URL rather than a folder."""
    return "://" in str(place)


class Objects:
    """Objects below one URL, by their names relative to it. Listings are never cached: others write too."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            from fsspec.core import url_to_fs
        except ImportError as missing:
            raise RunError(f"run: {url!r} needs the package fsspec; pip install 'resolvent[cloud]'.") from missing
        try:
            self.files, self.root = url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as missing:
            raise RunError(f"run: {url!r} cannot be opened ({missing}); pip install 'resolvent[cloud]'.") from missing
        except ValueError as wrong:  # unknown protocol
            raise RunError(f"run: {url!r} cannot be opened ({wrong}); give a folder, or such as s3://...") from wrong

    def check(self) -> None:
        """Refuse a store that cannot be written."""
        name = f".probe-{uuid.uuid4().hex}"
        try:
            self.write(name, b"1")
            self.remove(name)
        except Exception as wrong:  # each store has its own errors: no bucket, no credentials, no network
            raise RunError(
                f"run: cannot write below {self.url!r} ({type(wrong).__name__}: {wrong}); check the address and your "
                "credentials, or give --out a folder."
            ) from wrong

    def read(self, name: str) -> bytes | None:
        """None when there is no such object."""
        try:
            held: bytes = self.files.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        return held

    def has(self, name: str) -> bool:
        return bool(self.files.exists(self._path(name)))

    def write(self, name: str, data: bytes) -> None:
        self._make_parent(name)
        self.files.pipe_file(self._path(name), data)

    def send(self, path: Path, name: str) -> None:
        self._make_parent(name)
        self.files.put_file(str(path), self._path(name))

    def fetch(self, name: str, path: Path) -> bool:
        """Copy the object to the file; False if there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.files.get_file(self._path(name), str(path))
        except FileNotFoundError:
            return False
        return True

    def copy(self, name: str, path: Path, most: int) -> int:
        """Copy the object to the file and return its size; refused once more than `most` bytes have arrived."""
        path.parent.mkdir(parents=True, exist_ok=True)
        taken = 0
        with self.files.open(self._path(name), "rb") as source, path.open("wb") as target:
            while block := source.read(_BLOCK):
                taken += len(block)
                if taken > most:
                    raise TooLarge(name)
                target.write(block)
        return taken

    def names(self, below: str = "") -> list[str]:
        """Every object below a prefix."""
        return sorted(self.sizes(below))

    def sizes(self, below: str = "") -> dict[str, int]:
        """Every object below a prefix with its bytes; 0 if the store does not report them."""
        try:
            found = self.files.find(self._path(below), detail=True)
        except FileNotFoundError:
            return {}
        start = len(self.root.rstrip("/")) + 1
        return {name[start:]: int(details.get("size") or 0) for name, details in found.items()}

    def remove(self, name: str) -> None:
        try:
            self.files.rm_file(self._path(name))
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def _make_parent(self, name: str) -> None:
        """Create the parent folder, for stores on a disk."""
        if self.files.protocol == "file" or "file" in self.files.protocol:
            self.files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
