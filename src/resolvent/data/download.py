"""Files from their official sources: taken from the data folder if present, downloaded otherwise.

A file is used only if its checksum is right. A download is written to a temporary name and moved after the check, so
a good file is never overwritten; a damaged one is renamed to NAME.damaged when a good one replaces it.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resolvent.data.counter import Counter
from resolvent.data.folder import VARIABLE, data_folder, make_folder
from resolvent.disk import replace

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Remote:
    """A file: its path below the data folder, its checksum as "md5:..." or "sha256:...", and its URLs."""

    path: str
    checksum: str
    urls: tuple[str, ...] = ()

    def place(self) -> Path:
        return data_folder() / self.path


def fetch(remote: Remote) -> Path:
    """The verified file; downloaded when it is absent or damaged."""
    place = remote.place()
    found = checksum(place, remote) if place.is_file() else None
    if found != remote.checksum:
        _download(remote, found)
    return place


def fetch_members(files: Sequence[Remote], archive: Remote) -> list[Path]:
    """Verified files from a tar archive, which is downloaded only when one of them is absent or damaged."""
    wrong = [f for f in files if not f.place().is_file() or checksum(f.place(), f) != f.checksum]
    if wrong:
        try:
            source = fetch(archive)
        except (OSError, ValueError) as failure:
            raise type(failure)(
                f"data: {_state(wrong[0])}, and the archive that holds it is missing. {failure}"
            ) from None
        for file in wrong:
            _extract(source, file)
    return [file.place() for file in files]


def checksum(path: Path, like: Remote) -> str:
    """The checksum of a file by the algorithm that `like` uses."""
    name = like.checksum.partition(":")[0]
    digest = hashlib.new(name, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"{name}:{digest.hexdigest()}"


def _download(remote: Remote, found: str | None) -> None:
    place = remote.place()
    if not remote.urls:
        raise FileNotFoundError(f"data: {_state(remote)}; put it there, or set {VARIABLE} to the folder that holds it.")
    make_folder(place.parent)
    failures = []
    for url in remote.urls:
        try:
            _retrieve(url, remote)
            return
        except (OSError, ValueError) as failure:  # requests' errors are OSErrors; a wrong checksum is a ValueError
            failures.append(f"\n  {url}: {_reason(failure)}")
    error = FileNotFoundError if found is None else ValueError
    raise error(
        f"data: {_state(remote)}, and it could not be downloaded:{''.join(failures)}\nWithout a network, put the file "
        f"there (a copy with {remote.checksum}), or set {VARIABLE} to the folder that holds {remote.path}."
    )


def _retrieve(url: str, remote: Remote) -> None:
    import pooch  # type: ignore[import-untyped,unused-ignore]

    place = remote.place()
    pooch.get_logger().setLevel("WARNING")

    def write(part: Path) -> None:
        counter = Counter(f"downloading {place.name}", bytes_=True)
        loader = pooch.HTTPDownloader(progressbar=counter, timeout=30, chunk_size=1 << 18)
        with counter:
            pooch.retrieve(url, remote.checksum, part.name, part.parent, downloader=loader)
        if place.is_file():
            place.replace(place.with_name(f"{place.name}.damaged"))

    replace(place, write)


def _extract(source: Path, file: Remote) -> None:
    """One member by its exact name: no other member is read or written."""
    place = file.place()
    make_folder(place.parent)
    with tarfile.open(source) as tar:
        try:
            held = tar.extractfile(file.path)
        except KeyError:
            held = None
        if held is None:
            raise ValueError(f"data: {source} has no file {file.path!r}; remove the archive to download it again.")
        data = held.read()
    algorithm = file.checksum.partition(":")[0]
    got = f"{algorithm}:{hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()}"
    if got != file.checksum:
        raise ValueError(f"data: {file.path} in {source} has {got}, expected {file.checksum}.")
    replace(place, lambda part: part.write_bytes(data))


def _state(remote: Remote) -> str:
    place = remote.place()
    if not place.is_file():
        return f"{str(place)!r} is not there"
    return f"{str(place)!r} is damaged ({checksum(place, remote)}, expected {remote.checksum})"


def _reason(failure: Exception) -> str:
    """The innermost cause in one line: requests wraps connection errors several times."""
    text = str(failure).strip().splitlines()
    return f"{type(failure).__name__}: {text[0][:200]}" if text else type(failure).__name__
