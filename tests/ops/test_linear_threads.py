"""The same bits for any number of threads, twice, from several callers, and after a fork."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from linear_cases import every_backend, multiplier, without_numba
from torch import Tensor

from helpers import assert_close
from resolvent.ops.linear_scan.rows import sum_to
from resolvent.runtime.threads import spread
from resolvent.scan import linear_scan, use

SHAPES = {"varying": (4, 3000, 24), "constant": (24,), "shared": (3000, 24), "one number": (1, 1, 1)}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def passes(threads: int, a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    torch.set_num_threads(threads)
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    h = linear_scan(a, b)
    return (h.detach(), *torch.autograd.grad(h, (a, b), g))


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_bits_do_not_depend_on_threads(shape: tuple[int, ...], dtype: torch.dtype, backend: str) -> None:
    if backend == "reference" and len(shape) != 1:
        pytest.skip("a loop of elementwise operations; one case is enough")
    a = multiplier(*shape, dtype=dtype)
    b, g = torch.randn(4, 3000, 24, dtype=dtype), torch.randn(4, 3000, 24, dtype=dtype)
    with use(backend):
        serial = passes(1, a, b, g)
        for threads in (1, 2):
            assert all(torch.equal(x, y) for x, y in zip(passes(threads, a, b, g), serial, strict=True))


def test_sum_to_one_number_does_not_depend_on_threads() -> None:
    x = torch.randn(300_000, 1)
    sums = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        sums.append(sum_to(x, torch.Size((1, 1))))
    assert torch.equal(*sums)
    assert_close(sums[0].double(), x.double().sum().reshape(1, 1), dtype=torch.float32, gradient=True)


@without_numba
def test_callers_at_the_same_time() -> None:
    torch.set_num_threads(2)
    a, b = multiplier(16), torch.randn(8, 2000, 16, dtype=torch.float64)
    want = linear_scan(a, b)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: linear_scan(a, b), range(16)))
    assert all(torch.equal(h, want) for h in results)


@pytest.mark.parametrize(("tasks", "threads"), [(1, 1), (7, 3), (2, 5), (16, 4)])
def test_every_task_runs_once(tasks: int, threads: int) -> None:
    counts = [0] * tasks

    def kernel(lo: int, hi: int) -> None:
        for i in range(lo, hi):
            counts[i] += 1

    spread(kernel, tasks, threads)
    assert counts == [1] * tasks


@pytest.mark.parametrize("where", [0, 3])
def test_an_error_in_any_thread_reaches_the_caller(where: int) -> None:
    def kernel(lo: int, hi: int) -> None:
        if lo <= where < hi:
            raise ArithmeticError(f"task {where}")

    with pytest.raises(ArithmeticError, match=f"task {where}"):
        spread(kernel, 4, 2)
    spread(lambda lo, hi: None, 4, 2)  # and the threads live on


def _in_child(a: Tensor, b: Tensor, queue: multiprocessing.SimpleQueue[Any]) -> None:
    done = [0] * 8
    spread(lambda lo, hi: done.__setitem__(slice(lo, hi), [1] * (hi - lo)), 8, 2)  # by threads of its own
    torch.set_num_threads(1)  # as a DataLoader's worker does: torch's own threads do not survive a fork either
    queue.put((done, linear_scan(a, b)[-1, -1].tolist()))


@without_numba
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork() -> None:
    """The parent has run threads, which the child does not have: it must not try to use them."""
    torch.set_num_threads(2)
    a, b = multiplier(16), torch.randn(8, 2000, 16, dtype=torch.float64)
    want = linear_scan(a, b)[-1, -1].tolist()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(a, b, queue), daemon=True)
    child.start()
    child.join(timeout=60)
    child.kill()
    assert child.exitcode == 0
    assert queue.get() == ([1] * 8, want)
