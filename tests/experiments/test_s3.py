"""Runs in an S3 bucket: moto's server stands for Amazon's, s3fs speaks to it, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("s3fs", reason="the extra `cloud` is not installed")
pytest.importorskip("moto.server", reason="moto stands for S3 here; it is in the extra `dev`")

from resolvent.experiments import RunError
from resolvent.experiments.store.objects import Objects
from resolvent.experiments.store.store import PROGRESS, open_store

TRAIN = ("train", "--epochs", "2", "--width", "8", "--layers", "1", "--layer", "lru", "--seeds", "0", "1", "2")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A URL below a fresh bucket, and the environment that leads s3fs to it."""
    import s3fs
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("resolvent-test")
        yield "s3://resolvent-test/runs"
    running.stop()


def start(url: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "resolvent", "run", *TRAIN, "--out", url, "--no-report", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_objects_in_a_bucket(bucket: str) -> None:
    objects = Objects(f"{bucket}-a")
    objects.check()
    objects.write("x", b"1")
    assert objects.read("x") == b"1"
    assert objects.names() == ["x"]


def test_a_bucket_that_does_not_exist_is_told(bucket: str) -> None:
    with pytest.raises(RunError, match="cannot write below 's3://no-such-bucket/runs'"):
        open_store("s3://no-such-bucket/runs")


@pytest.mark.slow
def test_a_killed_run_goes_on(bucket: str, tmp_path: Path) -> None:
    """The same records as in a folder, every file there, nothing left over, and a page in the bucket."""
    alone = start(str(tmp_path / "runs"))
    alone.communicate(timeout=600)
    assert alone.returncode == 0
    objects = Objects(bucket)
    first = start(bucket)
    while not any(name.endswith("record.json") for name in objects.names()):
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=600)
    again = start(bucket)
    said = again.communicate(timeout=600)
    assert again.returncode == 0, said
    local = {p.relative_to(tmp_path / "runs").as_posix() for p in (tmp_path / "runs").rglob("*") if p.is_file()}
    assert set(objects.names()) == local
    assert not [name for name in objects.names() if PROGRESS in name]
    for name in sorted(name for name in local if name.count("/") == 3 and name.endswith("record.json")):
        mine, shared = (json.loads(held) for held in ((tmp_path / "runs" / name).read_bytes(), objects.read(name)))
        assert mine | {"times": 0, "digest": 0} == shared | {"times": 0, "digest": 0}
    report = [sys.executable, "-m", "resolvent", "report", bucket]
    done = subprocess.run(report, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"The report is at {bucket}/report.html" in done.stdout
    assert b"<html" in (objects.read("report.html") or b"")
