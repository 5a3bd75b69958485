"""Files from a server: right ones are kept, wrong ones never reach their place, and every failure says what to do."""

from __future__ import annotations

import hashlib
import http.server
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from resolvent.data import data_folder
from resolvent.data.download import Remote, fetch, fetch_members
from resolvent.data.folder import make_folder

GOOD = b"the right bytes" * 1000
NOWHERE = "http://127.0.0.1:9/nothing"  # the discard port: refused at once


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, directory=str(folder), **kwargs)  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None: ...

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", folder
    running.shutdown()
    running.server_close()


def md5(data: bytes) -> str:
    return f"md5:{hashlib.md5(data).hexdigest()}"


def test_a_file_is_downloaded_once(own_folder: Path, server: tuple[str, Path]) -> None:
    address, served = server
    (served / "a.bin").write_bytes(GOOD)
    remote = Remote("set/a.bin", md5(GOOD), (f"{address}/a.bin",))
    assert fetch(remote).read_bytes() == GOOD
    (served / "a.bin").unlink()
    assert fetch(remote) == own_folder / "set" / "a.bin"  # offline from here on


def test_the_second_place_helps(own_folder: Path, server: tuple[str, Path]) -> None:
    address, served = server
    (served / "a.bin").write_bytes(GOOD)
    assert fetch(Remote("a.bin", md5(GOOD), (NOWHERE, f"{address}/a.bin"))).read_bytes() == GOOD


def test_a_wrong_download_never_lands(own_folder: Path, server: tuple[str, Path]) -> None:
    address, served = server
    (served / "a.bin").write_bytes(GOOD[:-1])
    with pytest.raises(FileNotFoundError, match="hash of downloaded file"):
        fetch(Remote("a.bin", md5(GOOD), (f"{address}/a.bin",)))
    assert list(own_folder.iterdir()) == []


def test_a_damaged_file_is_replaced_and_kept(own_folder: Path, server: tuple[str, Path]) -> None:
    address, served = server
    (served / "a.bin").write_bytes(GOOD)
    make_folder(own_folder)
    (own_folder / "a.bin").write_bytes(b"flipped")
    remote = Remote("a.bin", md5(GOOD), (f"{address}/a.bin",))
    assert fetch(remote).read_bytes() == GOOD
    assert (own_folder / "a.bin.damaged").read_bytes() == b"flipped"


def test_a_damaged_file_stays_when_no_better_one_comes(own_folder: Path) -> None:
    make_folder(own_folder)
    (own_folder / "a.bin").write_bytes(b"flipped")
    with pytest.raises(ValueError, match=r"a\.bin' is damaged \(md5:.*expected md5:"):
        fetch(Remote("a.bin", md5(GOOD), (NOWHERE,)))
    assert (own_folder / "a.bin").read_bytes() == b"flipped"


def test_offline_the_message_tells_everything(own_folder: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        fetch(Remote("set/a.bin", md5(GOOD), (NOWHERE,)))
    for part in (str(own_folder / "set" / "a.bin"), NOWHERE, "RESOLVENT_DATA", md5(GOOD)):
        assert part in str(raised.value)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "file" / "below"))
    with pytest.raises(PermissionError, match="set the environment variable RESOLVENT_DATA"):
        fetch(Remote("a.bin", md5(GOOD), (NOWHERE,)))


def archive(path: Path, members: dict[str, bytes]) -> bytes:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            source = path.with_name("member")
            source.write_bytes(data)
            tar.add(source, arcname=name)
    return path.read_bytes()


def test_members_come_out_of_an_archive_by_name(own_folder: Path, server: tuple[str, Path], tmp_path: Path) -> None:
    address, served = server
    data = archive(served / "all.tar.gz", {"in/a.bin": GOOD, "in/b.bin": b"b", "../../escaped": b"!", "other": b"x"})
    whole = Remote("all.tar.gz", md5(data), (f"{address}/all.tar.gz",))
    files = [Remote("in/a.bin", md5(GOOD)), Remote("in/b.bin", md5(b"b"))]
    assert [path.read_bytes() for path in fetch_members(files, whole)] == [GOOD, b"b"]
    assert {p.name for p in own_folder.rglob("*") if p.is_file()} == {"a.bin", "b.bin", "all.tar.gz"}
    assert not list(tmp_path.rglob("escaped"))
    (own_folder / "in" / "b.bin").write_bytes(b"?")
    assert fetch_members(files, whole)[1].read_bytes() == b"b"  # made again from the archive that is there


def test_an_archive_with_other_members(own_folder: Path, server: tuple[str, Path]) -> None:
    address, served = server
    data = archive(served / "all.tar.gz", {"in/a.bin": b"other"})
    whole = Remote("all.tar.gz", md5(data), (f"{address}/all.tar.gz",))
    with pytest.raises(ValueError, match=r"in/a\.bin in .* expected md5"):
        fetch_members([Remote("in/a.bin", md5(GOOD))], whole)
    with pytest.raises(ValueError, match=r"has no file 'in/c\.bin'"):
        fetch_members([Remote("in/c.bin", md5(GOOD))], whole)


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESOLVENT_DATA", "~/elsewhere")
    assert data_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("RESOLVENT_DATA")
    assert data_folder() == Path.home() / ".cache" / "resolvent"
