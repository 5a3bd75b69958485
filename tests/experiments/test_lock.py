"""One writer a folder: the living are respected, the dead are replaced, and only one of many claimants wins."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from race import race

from resolvent.experiments.store.lock import NAME, Lock, Taken

HOLD = """
import sys, time
from resolvent.experiments.store.lock import Lock
with Lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_and_told_who(tmp_path: Path) -> None:
    with Lock(tmp_path) as first:
        assert first.held()
        with pytest.raises(Taken, match=f"process {os.getpid()} on {socket.gethostname()}"):
            Lock(tmp_path).__enter__()
    assert not (tmp_path / NAME).exists()
    with Lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_owner_is_replaced_at_once(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(Taken):
        Lock(tmp_path).__enter__()
    owner.send_signal(signal.SIGKILL)  # not waited for: a zombie still answers signal 0
    time.sleep(0.2)
    with Lock(tmp_path) as mine:
        assert mine.held()
    owner.wait()


@pytest.mark.parametrize(("age", "taken"), [(5.0, True), (120.0, False)])
def test_a_claim_from_another_host_lasts_while_it_is_warm(tmp_path: Path, age: float, taken: bool) -> None:
    path = tmp_path / NAME
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "token": "x"}))
    os.utime(path, (time.time() - age,) * 2)
    if taken:
        with pytest.raises(Taken, match="elsewhere"):
            Lock(tmp_path).__enter__()
        return
    with Lock(tmp_path) as mine:
        assert mine.held()


def test_a_file_without_sense_is_waited_for_and_then_replaced(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text("{half")  # a writer on a disk without hard links may be in the middle of it
    with pytest.raises(Taken):
        Lock(tmp_path).__enter__()
    os.utime(path, (time.time() - 120,) * 2)
    with Lock(tmp_path) as mine:
        assert mine.held()


def test_one_of_many_claimants_wins(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname(), "token": "dead"}))
    won: list[Lock] = race(lambda: Lock(tmp_path).__enter__())
    assert len(won) == 1
    assert won[0].held()
    won[0].__exit__(None, None, None)


def test_a_claimant_killed_while_clearing_leaves_nothing(tmp_path: Path) -> None:
    """Its claim on the clearing names a process that is gone: nobody waits for it, and it goes with the next claim."""

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = json.dumps({"pid": gone.pid, "host": socket.gethostname(), "token": "t"})
    for names in ((".lock", ".lock.takeover"), (".lock.takeover",)):
        for name in names:
            (tmp_path / name).write_text(dead)
        began = time.monotonic()
        with Lock(tmp_path):
            assert sorted(p.name for p in tmp_path.iterdir()) == [".lock"]
        assert time.monotonic() - began < 5
        assert list(tmp_path.iterdir()) == []


def test_a_claimant_killed_while_claiming_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / ".lock.0123abcd.part").write_text('{"pid": 1')
    with Lock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert list(tmp_path.iterdir()) == []
