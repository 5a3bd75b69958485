"""The command line under fire: killed twenty times, out of disk space, interrupted. It goes on to the same record."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
CELL = ("quickstart", "--only", "l2ru,standard")  # trained, attacked three ways, certified, analysed
TRAIN = ("train", "--epochs", "4", "--width", "8", "--layers", "1", "--eps", "0.05", "--layer", "lru")


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "resolvent", "run", *arguments, "--out", str(out), "--no-report"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, preexec_fn=_heed_interrupts)


def _heed_interrupts() -> None:
    """A shell's background job, as this may be one, ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(out: Path, *arguments: str) -> tuple[int, str]:
    """Exit status, and what was said on both streams."""
    said, complained = (process := start(out, *arguments)).communicate(timeout=900)
    return process.returncode, said + complained


def timeless(out: Path) -> dict[str, str]:
    """Every record below a folder, as text, without its times."""
    found = {}
    for path in sorted(out.rglob("cell.json")):
        record = json.loads((path.parent / "record.json").read_text())
        record.pop("times")
        record.pop("digest")
        found[str(path.parent.relative_to(out))] = json.dumps(record, indent=1)
    return found


def wait_for(process: subprocess.Popen[str], out: Path, name: str) -> bool:
    """Whether such a file came while the process was at work."""
    while process.poll() is None:
        if next(out.rglob(name), None) is not None:
            return True
        time.sleep(0.005)
    return False


def wait_for_work(process: subprocess.Popen[str], out: Path) -> None:
    """Until this process holds the run: imports take long, and the clock should start with the work."""
    while process.poll() is None:
        for path in out.rglob(".lock"):
            with suppress(ValueError, OSError):
                if json.loads(path.read_text())["pid"] == process.pid:
                    return
        time.sleep(0.005)


def written(out: Path) -> frozenset[tuple[str, int]]:
    """Every file with the time at which it was last written."""
    found = set()
    for path in out.rglob("*"):
        with suppress(OSError):  # moved meanwhile
            found.add((str(path), path.stat().st_mtime_ns))
    return frozenset(found)


def wait_for_writing(process: subprocess.Popen[str], out: Path, times: int) -> int:
    """Until the run has written so many times: its own pace, since a clock would see a busy machine stand still."""
    seen, count = written(out), 0
    while process.poll() is None and count < times:
        if (now := written(out)) != seen:
            seen, count = now, count + 1
        time.sleep(0.002)
    return count


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    process = start(calm, *CELL)
    wait_for_work(process, calm)
    often, chance, kills, moments = wait_for_writing(process, calm, 10**6), random.Random(20), 0, []
    process.communicate()
    assert process.returncode == 0
    while kills < 20:
        process = start(hit, *CELL)
        wait_for_work(process, hit)
        wait_for_writing(process, hit, chance.randint(0, often // 5))
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            kills += 1
            moments.append(sorted(p.name for p in hit.rglob("*") if p.is_file()))
        else:  # it got through: the rest of the kills hit a new run
            assert timeless(hit) == timeless(calm)
            shutil.rmtree(hit)
    assert len({tuple(names) for names in moments}) > 3, "the kills all came at the same place"
    assert finish(hit, *CELL)[0] == 0
    assert timeless(hit) == timeless(calm)
    assert not list(hit.rglob(".*"))  # no lock, no half of a file


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount here")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a disk is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_more_room_lets_it_go_on(tmp_path: Path, small_disk: Path) -> None:
    assert finish(tmp_path / "calm", *TRAIN)[0] == 0
    whole = sum(p.stat().st_size for p in (tmp_path / "calm").rglob("*") if p.is_file())
    ballast, room = small_disk / "ballast", whole // 8
    stopped = []
    for _ in range(12):
        free = shutil.disk_usage(small_disk).free
        ballast.write_bytes(b"0" * max(0, ballast.stat().st_size + free - room if ballast.exists() else free - room))
        status, said = finish(small_disk / "runs", *TRAIN)
        if status == 0:
            break
        stopped.append(said)
        assert status == 2
        assert "the disk is full" in said
        assert str(small_disk) in said
        assert "the same command resumes" in said
        assert "Traceback" not in said
        ballast.write_bytes(b"")
        room += whole // 3
    assert stopped, "the disk never filled up"
    assert timeless(small_disk / "runs") == timeless(tmp_path / "calm")
    assert not list((small_disk / "runs").rglob(".*"))


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    assert finish(tmp_path / "calm", *TRAIN)[0] == 0
    process = start(tmp_path / "runs", *TRAIN)
    assert wait_for(process, tmp_path / "runs", "metrics.jsonl")
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "the same command resumes from there" in said
    assert "Traceback" not in complained
    assert not list((tmp_path / "runs").rglob(".lock*"))
    assert finish(tmp_path / "runs", *TRAIN)[0] == 0
    assert timeless(tmp_path / "runs") == timeless(tmp_path / "calm")
