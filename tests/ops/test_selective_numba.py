"""The CPU kernels' own promises: an accurate exponential, the same bits for any number of threads, small memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from selective_cases import draw, fast, slow, with_gradients

from helpers import assert_close
from resolvent.scan import use

numba = pytest.importorskip("numba", reason="the CPU kernels need the `cpu` extra")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _exp(x: np.ndarray) -> np.ndarray:
    from resolvent.runtime.exp_numba import exp

    @numba.njit
    def fill(x: np.ndarray, y: np.ndarray) -> None:
        for i in range(x.size):
            y[i] = exp(x[i])

    y = np.empty_like(x)
    fill(x, y)
    return y


@pytest.mark.parametrize(
    ("dtype", "low", "high", "tolerance"),
    [(np.float32, -86.97, 88.72, 2e-7), (np.float64, -708.0, 709.78, 4e-16)],
    ids=["float32", "float64"],
)
def test_exponential_is_accurate(dtype: type, low: float, high: float, tolerance: float) -> None:
    x = np.concatenate([np.linspace(low, high, 200_001), np.linspace(-1, 1, 100_001)]).astype(dtype)
    want = np.exp(x.astype(np.longdouble))
    assert np.abs(_exp(x) / want - 1).max() <= tolerance


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.float32, -87.4, 88.73), (np.float64, -708.5, 709.79)])
def test_exponential_at_its_ends(dtype: type, low: float, high: float) -> None:
    x = np.array([low, -1e30, -np.inf, high, 1e30, np.inf, 0.0, -0.0, np.nan], dtype)
    assert _exp(x).tolist()[:8] == [0, 0, 0, np.inf, np.inf, np.inf, 1, 1]
    assert np.isnan(_exp(x)[8])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(3, 100, 130, 16), (1, 300, 100, 8)], ids=str)
def test_the_number_of_threads_does_not_change_a_bit(shape: tuple[int, int, int, int]) -> None:
    x = draw(*shape, dtype=torch.float32)
    results = []
    with use("numba"):
        for count in (1, 2, 2, 3):
            torch.set_num_threads(count)
            results.append(with_gradients(fast, x))
    for values, gradients in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(values, results[0][0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(gradients, results[0][1], strict=True))


@pytest.mark.usefixtures("threads")
def test_callers_in_several_threads() -> None:
    torch.set_num_threads(2)
    x = draw(2, 100, 64, 16, dtype=torch.float32)
    with use("numba"):
        want = fast(x)
        with ThreadPoolExecutor(4) as pool:
            for y, h in pool.map(lambda _: fast(x), range(12)):
                assert torch.equal(y, want[0])
                assert torch.equal(h, want[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_works_after_a_fork() -> None:
    script = """
import os, torch
from resolvent.scan import selective_scan
torch.set_num_threads(2)
u, B = torch.rand(2, 100, 64), torch.rand(2, 100, 16)
x = (u, u, -torch.rand(64, 16), B, B)
want = selective_scan(*x)[0]
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(selective_scan(*x)[0], want) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=120, check=False).returncode == 0


def test_a_wide_and_long_case_in_float32() -> None:
    x = draw(2, 300, 200, 16, dtype=torch.float32)
    with use("numba"):
        got_values, got_gradients = with_gradients(fast, x)
    with use("torch"):
        values, gradients = with_gradients(fast, x)
    assert_close(got_values, values)
    assert_close(got_gradients, gradients, gradient=True)


def test_nothing_of_the_size_of_all_states_is_allocated() -> None:
    """Forward and backward together allocate a few times the bytes of u, not n = 16 times."""
    x = draw(2, 512, 64, 16, extras=("D",), dtype=torch.float32)
    with use("numba"), torch.profiler.profile(profile_memory=True) as profile:
        y, _ = fast(x)
        torch.autograd.grad(y, x.u, torch.ones_like(y))
    events = profile.profiler.kineto_results.events()
    largest = max(e.nbytes() for e in events if e.name() == "[memory]")
    assert largest <= 2 * x.u.numel() * x.u.element_size()


def test_the_loop_agrees_on_a_batch_of_one_step() -> None:
    x = draw(3, 1, 5, 2, dtype=torch.float32)
    with use("numba"):
        assert_close(fast(x), slow(x))
