"""Asked to stop, the program says one line, leaves no process behind, and its status tells the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from resolvent.commands.signals import importing, stoppable
from resolvent.experiments import workers as gang

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="reads /proc")
NAMES = ["SIGINT", "SIGTERM", "SIGHUP"]


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "resolvent", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, preexec_fn=_listen,
    )  # fmt: skip


def _listen() -> None:
    """A suite that was started in the background ignores Ctrl-C, under nohup a hang-up, and so would what it starts."""
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_DFL)


def until(done: Callable[[], bool], seconds: float = 120.0) -> None:
    last = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < last, "it never came to that"
        time.sleep(0.02)


def maps(pid: int, library: str) -> bool:
    try:
        return library in Path(f"/proc/{pid}/maps").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=120)
    assert "Traceback" not in error, error
    return process.returncode, out, error


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("library", ["libc10", "libtorch_python"])
def test_while_torch_is_imported(name: str, library: str, tmp_path: Path) -> None:
    process = start("run", "quickstart", "--dry-run", "--out", str(tmp_path / "runs"))
    until(lambda: maps(process.pid, library) or process.poll() is not None)
    number = getattr(signal, name)
    os.kill(process.pid, number)
    status, _, error = ended(process)
    assert (status, error) == (128 + number, "resolvent: stopped.\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_workers_stop_with_the_one_that_started_them(name: str, tmp_path: Path) -> None:
    words = ("--layer", "lru", "--epochs", "5000", "--width", "8", "--layers", "1", "--seeds", "0", "1", "--no-report")
    process = start("run", "train", *words, "--workers", "2", "--out", str(tmp_path / "runs"))
    until(lambda: len(list(tmp_path.glob("runs/train/*/seed-*/metrics.jsonl"))) == 2)  # both compute
    workers = children(process.pid)
    assert len(workers) == 2
    number = getattr(signal, name)
    os.kill(process.pid, number)
    status, out, error = ended(process)
    assert (status, error) == (128 + number, "")
    assert "the same command resumes from there" in out
    assert all(gone(pid) for pid in workers)
    assert not list(tmp_path.glob("runs/train/*/seed-*/.lock"))  # they had time to let go


@pytest.mark.parametrize("deaf", [False, True])
def test_what_a_worker_started_ends_with_it(deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "GRACE", 0.5)
    script = f"{'trap : TERM; ' if deaf else ''}sleep 60 & echo; while :; do sleep 0.1; done"
    worker = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert worker.stdout is not None
    worker.stdout.readline()
    inner = children(worker.pid)
    assert inner
    gang._end([worker])
    assert worker.returncode == (-signal.SIGKILL if deaf else -signal.SIGTERM)
    until(lambda: all(gone(pid) for pid in inner), 5)
    worker.stdout.close()


@pytest.mark.slow
def test_workers_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    words = ("--layer", "lru", "--epochs", "5000", "--width", "8", "--layers", "1", "--seeds", "0", "1", "--no-report")
    process = start("run", "train", *words, "--workers", "2", "--out", str(tmp_path / "runs"))
    until(lambda: len(list(tmp_path.glob("runs/train/*/seed-*/metrics.jsonl"))) == 2)
    workers = children(process.pid)
    process.kill()
    until(lambda: all(gone(pid) for pid in workers))
    process.communicate()


def test_the_first_signal_interrupts_and_others_that_follow_at_once_change_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stoppable() as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        with stoppable() as inner:  # those inside are left to the one outside
            assert inner.status(130) == 130
        assert (stop.status(130), stop.status(0), stop.status(2)) == (143, 0, 2)
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_somebody_else_handles_stays_theirs() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: seen.append(number))
    try:
        with stoppable():
            signal.raise_signal(signal.SIGHUP)
        assert seen == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_import_deep_in_the_work_is_no_start() -> None:
    assert not importing(sys._getframe())


def test_ctrl_c_before_signals_are_handled() -> None:
    """The first import of the program takes some milliseconds, too."""
    script = """
import runpy, sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "resolvent.commands.signals":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
runpy.run_module("resolvent", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "resolvent: stopped.\n")
