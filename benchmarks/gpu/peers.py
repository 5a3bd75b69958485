"""Other people's scans, as functions of our arguments; what is not installed, or cannot be built, says why.

Nothing of theirs is a dependency of ours: each is imported when it is asked for. Their layouts are made by views where
the inputs lie as they want them, by copies elsewhere, as a user's call would.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any
from unittest import mock

import torch
from torch import Tensor

BUILD_SECONDS = 60
WARPSCAN = "warpscan"  # what accelerated-scan calls its extension


@dataclass(frozen=True)
class Peer:
    """name for the table, package on PyPI, its licence; `load` imports it and may raise; `triton`: compiles kernels."""

    name: str
    package: str
    licence: str
    load: Callable[[], Callable[..., Tensor]]
    triton: bool = False

    def found(self) -> Callable[..., Tensor] | str:
        """The function, or why there is none; tried once."""
        if self not in _tried:
            try:
                _tried[self] = self.load()
            except Exception as error:  # whatever an import or a compiler throws: a peer never stops the run
                _tried[self] = first_line(error)
        return _tried[self]


_tried: dict[Peer, Callable[..., Tensor] | str] = {}


def leave_out(triton: bool) -> None:
    """Import none of them from now on, or of those with no Triton kernels none."""
    _tried.update({peer: "left out" for peer in PEERS if triton or not peer.triton})


def report() -> dict[str, dict[str, str]]:
    """The peers that were asked for: their versions, or why they are not there."""
    found = {}
    for peer, call in _tried.items():
        there = {"absent": call} if isinstance(call, str) else {"version": _version(peer.package)}
        found[peer.name] = {"licence": peer.licence} | there
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200] if text else ''}".rstrip(": ")


def _time_last(x: Tensor) -> Tensor:
    """(b, l, n) -> (b, n, l) in that order in memory."""
    return x.mT.contiguous()


# -- linear scans: a, b (b, l, n) -> h (b, l, n) -----------------------------------------------------------------------


def _accelerated_triton() -> Callable[..., Tensor]:
    _needs_cuda()
    from accelerated_scan.scalar import scan

    return lambda a, b: scan(_time_last(a), _time_last(b)).mT


def _accelerated_complex() -> Callable[..., Tensor]:
    _needs_cuda()
    from accelerated_scan.complex import scan

    return lambda a, b: scan(_time_last(a.expand(b.shape)), _time_last(b)).mT


def _accelerated_cuda() -> Callable[..., Tensor]:
    """Its import compiles, which `build` has begun, unless the extension lies on the path, compiled beforehand."""
    _needs_cuda()
    if _prebuilt():
        with mock.patch("torch.utils.cpp_extension.load_inline", return_value=importlib.import_module(WARPSCAN)):
            from accelerated_scan.warp import scan
    else:
        _built()
        from accelerated_scan.warp import scan

    return lambda a, b: scan(_time_last(a), _time_last(b)).mT


def _hgrn() -> Callable[..., Tensor]:
    """h_t = exp(g_t) h_{t-1} + x_t, channels last: the logarithm of a is its own parameter."""
    _needs_cuda()
    from fla.ops.hgrn import chunk_hgrn

    return lambda g, b: chunk_hgrn(b, g)[0]


def _mambapy_linear() -> Callable[..., Tensor]:
    from mambapy.pscan import pscan

    return lambda a, b: pscan(a[:, :, None], b[:, :, None])[:, :, 0]


def _s5_pytorch() -> Callable[..., Tensor]:
    from s5.jax_compat import associative_scan
    from s5.s5_model import binary_operator

    return lambda a, b: associative_scan(binary_operator, (a.expand(b.shape), b), axis=1)[1]


# -- selective scans: u, dt, A, B, C, D, z -> y, all with time in the middle -------------------------------------------


def _mamba_ssm() -> Callable[..., Tensor]:
    _needs_cuda()
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    def scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Tensor:
        u, dt, B, C, z = (_time_last(t) for t in (u, dt, B, C, z))
        y: Tensor = selective_scan_fn(u, dt, A, B, C, D, z)
        return y.mT

    return scan


def _mambapy_selective() -> Callable[..., Tensor]:
    from mambapy.mamba import MambaBlock

    def scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Tensor:
        u, dt, B, C, z = (t.float() for t in (u, dt, B, C, z))
        block: Any = None  # the method reads nothing of it
        y: Tensor = MambaBlock.selective_scan(block, u, dt, A, B, C, D)
        return y * torch.nn.functional.silu(z)

    return scan


# -- what must be built ------------------------------------------------------------------------------------------------

_builder: list[tuple[subprocess.Popen[str], float]] = []  # the process, and when it began


def _prebuilt() -> bool:
    return importlib.util.find_spec(WARPSCAN) is not None


def build() -> None:
    """Begin to compile accelerated-scan's CUDA kernel, in a process that can be given up."""
    if _prebuilt():
        return
    if torch.cuda.is_available() and shutil.which("nvcc") and shutil.which("ninja"):
        command = [sys.executable, "-c", "import accelerated_scan.warp"]
        pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        _builder.append((subprocess.Popen(command, start_new_session=True, **pipes), time.monotonic()))


def _built() -> None:
    """Wait for it, until it has had its time."""
    if not _builder:
        raise RuntimeError("not built here: nvcc or ninja is missing")
    process, began = _builder[0]
    try:
        _, errors = process.communicate(timeout=max(0.0, began + BUILD_SECONDS - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise RuntimeError(f"not built here within {BUILD_SECONDS} s") from error
    if process.returncode:
        raise RuntimeError(f"not built here: {(errors.strip().splitlines() or ['?'])[-1]}")


def _needs_cuda() -> None:
    if not torch.cuda.is_available():
        raise RuntimeError("needs a GPU")


ACCELERATED = Peer("accelerated-scan (Triton)", "accelerated-scan", "MIT", _accelerated_triton, True)
ACCELERATED_CUDA = Peer("accelerated-scan (CUDA)", "accelerated-scan", "MIT", _accelerated_cuda)
ACCELERATED_COMPLEX = Peer("accelerated-scan (Triton, complex)", "accelerated-scan", "MIT", _accelerated_complex, True)
HGRN = Peer("fla-core (chunk_hgrn)", "fla-core", "MIT", _hgrn, True)
MAMBAPY = Peer("mambapy (pscan)", "mambapy", "MIT", _mambapy_linear)
S5_PYTORCH = Peer("s5-pytorch", "s5-pytorch", "MPL-2.0", _s5_pytorch)
MAMBA_SSM = Peer("mamba-ssm (CUDA)", "mamba-ssm", "Apache-2.0", _mamba_ssm)
MAMBAPY_SELECTIVE = Peer("mambapy (selective)", "mambapy", "MIT", _mambapy_selective)
PEERS = (ACCELERATED, ACCELERATED_CUDA, ACCELERATED_COMPLEX, HGRN, MAMBAPY, S5_PYTORCH, MAMBA_SSM, MAMBAPY_SELECTIVE)
