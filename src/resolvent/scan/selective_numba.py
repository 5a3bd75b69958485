"""The fused CPU kernels called from torch: memory in and out, and Python threads that work through the tasks.

The kernels release the interpreter's lock, so plain threads run them side by side: no OpenMP, nothing to break after a
fork. The work is cut by the shapes alone and no two tasks add to the same number, so the bits do not depend on the
number of threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.scan import selective_numba_kernels as kernels
from resolvent.scan.selective_inputs import Inputs, chunks

_SERIAL = 1 << 17  # state updates below which starting a thread costs more than it saves
_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # a child has the pool but not its threads


def forward(x: Inputs, reverse: bool, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y (b, l, d), the last state (b, d, n) and the states before each chunk (b, chunks, n, d), none unless `save`."""
    b, l, d = x.u.shape
    n = x.A.shape[1]
    y, h = x.u.new_empty(b, l, d), x.u.new_empty(b, d, n)
    saved = x.u.new_empty(b, chunks(l) if save else 0, n, d)
    lanes, arrays = _lanes(b, d), _arrays(x)
    results = kernels.Results(y.numpy(), h.numpy(), saved.numpy())
    _share(lambda tasks: kernels.forward_tasks(tasks, lanes, arrays, results, reverse), x, lanes)
    return y, h, saved


def backward(x: Inputs, saved: Tensor, gy: Tensor, gh: Tensor, reverse: bool) -> tuple[Tensor | None, ...]:
    """Gradients of every input from those of y and of the last state."""
    lanes, arrays = _lanes(x.u.shape[0], x.u.shape[2]), _arrays(x)
    up = kernels.Upstream(_array(saved), _array(gy), _array(gh))
    out = _gradients(x, lanes)
    _share(lambda tasks: kernels.backward_tasks(tasks, lanes, arrays, up, out, reverse), x, lanes)
    gA, gB, gC = _total(out.A).T.contiguous(), _total(out.B), _total(out.C)
    gD = None if x.D is None else _total(out.D)
    gz = None if x.z is None else torch.from_numpy(out.z)
    gh0 = None if x.h0 is None else torch.from_numpy(out.h0)
    return torch.from_numpy(out.u), torch.from_numpy(out.dt), gA, gB, gC, gD, gz, gh0


def _lanes(b: int, d: int) -> int:
    """The width of a block of channels: wide for long inner loops, narrower where there would be few tasks."""
    lanes = 64
    while lanes > 16 and (lanes >= 2 * d or b * -(-d // lanes) < 4):
        lanes //= 2
    return lanes


def _share(work: Callable[[Any], None], x: Inputs, lanes: int) -> None:
    """Run all tasks in this thread and its helpers; each takes the next few until none is left.

    Taking beats dealing out: torch's own threads keep spinning on the cores for a while after its last operation, and a
    helper that shares a core with one of them then simply takes less.
    """
    b, l, d = x.u.shape
    total = b * -(-d // lanes)
    threads = min(total, torch.get_num_threads()) if b * l * x.A.numel() >= _SERIAL else 1
    if threads <= 1:
        work((0, total))
        return
    few = -(-total // (4 * threads))
    pending = deque((first, min(first + few, total)) for first in range(0, total, few))
    pool = _pools.get(threads) or _pools.setdefault(threads, ThreadPoolExecutor(threads - 1, "resolvent-scan"))
    helpers = [pool.submit(_drain, work, pending) for _ in range(threads - 1)]
    _drain(work, pending)
    for helper in helpers:
        if not helper.cancel():  # one that has not begun has nothing left to do
            helper.result()


def _drain(work: Callable[[Any], None], pending: deque[tuple[int, int]]) -> None:
    while True:
        try:
            tasks = pending.popleft()
        except IndexError:
            return
        work(tasks)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().contiguous().numpy()


def _arrays(x: Inputs) -> kernels.Arrays:
    u = _array(x.u)
    none = np.empty((0, 0, 0), u.dtype)
    D = np.zeros(u.shape[2], u.dtype) if x.D is None else _array(x.D)
    z = none if x.z is None else _array(x.z)
    h0 = none if x.h0 is None else _array(x.h0)
    return kernels.Arrays(u, _array(x.dt), _array(x.A.T), _array(x.B), _array(x.C), D, z, h0)


def _gradients(x: Inputs, lanes: int) -> kernels.Gradients:
    b, l, d = x.u.shape
    n, blocks = x.A.shape[1], -(-d // lanes)
    shapes = ((b, l, d), (b, l, d), (b, n, d), (blocks, b, l, n), (blocks, b, l, n), (b, d))
    optional = ((b, l, d) if x.z is not None else (0, 0, 0), (b, d, n))
    return kernels.Gradients(*(x.u.new_empty(shape).numpy() for shape in shapes + optional))


def _total(parts: np.ndarray[Any, Any]) -> Tensor:
    """The sum over the first axis, always in the same order."""
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.add.reduce(parts, axis=0))
