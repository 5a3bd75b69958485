"""A connection to Ray: to a cluster by its address, or to a local Ray on the loopback interface.

    with connect("ray://10.0.0.1:6379") as ray:
        ray.get(...)

Ray waits for minutes at an unreachable address, so that is checked first.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from resolvent.experiments.store.folder import RunError

ALONE, PREFIX, AUTO = "ray", "ray://", "auto"
ADDRESS = "RAY_ADDRESS"  # Ray's own variable for the cluster address
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # no usage statistics
# A local Ray listens on this machine only (read at Ray's import); its cells have the niceness of workers.
OWN = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"}
KNOCK, ANSWER = 5.0, 60.0  # seconds for a port to open, and for Ray to answer
OBJECTS = 100 * 2**20  # object store bytes of a local Ray; only settings and names are passed
ASK = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error')"
TOKEN = "AuthenticationError"  # Ray's name for a missing or wrong token, found inside its message
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def parse_address(on: str) -> str | None:
    """The address of `--on`; None for a local Ray."""
    if on == ALONE:
        return os.environ.get(ADDRESS) or None
    address = on.removeprefix(PREFIX)
    host, _, port = address.rpartition(":")
    if on.startswith(PREFIX) and (address == AUTO or (host and port.isdecimal() and 0 < int(port) < 2**16)):
        return address
    raise RunError(f"run: --on must be ray, ray://auto or ray://HOST:PORT, got {on!r}.")


@contextmanager
def connect(on: str) -> Iterator[Any]:
    """Ray, connected. A local Ray ends with the block; a cluster keeps running."""
    address = parse_address(on)
    for name, value in (QUIET | (OWN if address is None else {})).items():
        os.environ.setdefault(name, value)
    ray = import_ray()
    if address is not None:
        require_answer(address)
    quiet = {"log_to_driver": False, "logging_level": "error"}
    own = {"include_dashboard": False, "object_store_memory": OBJECTS}
    with _signals_kept():
        if address is None:
            ray.init(address="local", **quiet, **own)
        else:
            ray.init(address=address, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


def import_ray() -> Any:
    try:
        import ray
    except ImportError as missing:
        raise RunError("run: --on ray needs the package ray; pip install 'resolvent[ray]'.") from missing
    return ray


def require_answer(address: str) -> None:
    """Refuse an address where no cluster answers, or whose cluster does not include this machine."""
    host, _, port = address.rpartition(":")
    if address != AUTO and not address.startswith(PREFIX):
        try:
            socket.create_connection((host, int(port)), KNOCK).close()
        except (OSError, ValueError) as wrong:
            raise _make_refusal(address, str(wrong)) from wrong
    try:  # in another process: waiting for an answer cannot be interrupted
        asked = subprocess.run(
            [sys.executable, "-c", ASK, address], capture_output=True, text=True, timeout=ANSWER, check=False
        )
    except subprocess.TimeoutExpired as silent:
        raise _make_refusal(address, f"no answer within {ANSWER:g} s") from silent
    if asked.returncode and TOKEN in asked.stderr:
        raise RunError(
            f"run: the Ray cluster at {address!r} wants its token; call with RAY_AUTH_MODE=token, and with the token "
            "in RAY_AUTH_TOKEN or in ~/.ray/auth_token as on the machine that started it."
        )
    if asked.returncode:
        lines = asked.stderr.strip().splitlines()
        raise _make_refusal(address, lines[-1].strip() if lines else "it said nothing")


def _make_refusal(address: str, why: str) -> RunError:
    if address == AUTO:
        return RunError(f"run: no Ray cluster runs on this machine ({why}); start one with `ray start --head`.")
    return RunError(
        f"run: no Ray cluster answers at {address!r} ({why}); give the address that `ray start --head` printed, and "
        "call from a machine of the cluster."
    )


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the command line's SIGTERM handler, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(getattr(signal, n)) for n in SIGNALS if hasattr(signal, n)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
