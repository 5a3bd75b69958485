"""The Triton linear scan in interpreter mode, on tiny shapes, against the recurrence in float64."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter  # noqa: F401  (first: it switches the interpreter on)
from linear_cases import multiplier
from torch import Tensor

from helpers import assert_close
from resolvent.ops.linear_scan import triton as linear_triton
from resolvent.ops.linear_scan.kernels import compose_backward
from resolvent.ops.linear_scan.reference import reference_scan
from resolvent.ops.linear_scan.triton import triton_backward, triton_scan
from resolvent.runtime import launch

Case = tuple[Tensor, Tensor, Tensor, Tensor | None]  # g, a, b, h0


def draw(a_shape: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype, started: bool = True) -> Case:
    start = torch.randn(*shape[:-2], shape[-1], dtype=dtype) if started else None
    return torch.randn(shape, dtype=dtype), multiplier(*a_shape, dtype=dtype), torch.randn(shape, dtype=dtype), start


def check(case: Case, reverse: bool, narrow: torch.dtype, time_last: bool = False) -> Tensor:
    """Values and both gradients against float64; returns the kernel's states."""
    g, a, b, h0 = case
    h = reference_scan(a, b, h0, reverse)
    want = compose_backward(reference_scan)(g, a, h, h0, reverse)
    g, a, b = (x.to(narrow) for x in (g, a, b))
    h0 = None if h0 is None else h0.to(narrow)
    b = b.mT.contiguous().mT if time_last else b
    found = triton_scan(a, b, h0, reverse)
    real = torch.bfloat16 if narrow == torch.bfloat16 else torch.float32
    assert_close(found.to(h.dtype), h, dtype=real)
    for got, true in zip(triton_backward(g, a, found, h0, reverse), want, strict=True):
        assert_close(got.to(true.dtype), true, dtype=real, gradient=True)
    return found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("time_last", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_complex(constant: bool, time_last: bool, reverse: bool) -> None:
    case = draw((2, 1 if constant else 6, 3), (2, 6, 3), torch.complex128)
    found = check(case, reverse, torch.complex64, time_last)
    assert found.mT.is_contiguous() == time_last


@pytest.mark.parametrize("time_last", [False, True])
def test_real_without_a_start(time_last: bool) -> None:
    check(draw((1, 5, 3), (1, 5, 3), torch.float64, started=False), False, torch.float32, time_last)


@pytest.mark.parametrize("shape", [(1, 4, 2), (3, 1, 2), (3, 1, 1, 2), (1, 2, 4, 2)])
def test_multipliers_that_broadcast(shape: tuple[int, ...]) -> None:
    rows = (3, 2) if len(shape) == 4 else (3,)
    check(draw(shape, (*rows, 4, 2), torch.float64), False, torch.float32)


def cut_at_8(monkeypatch: pytest.MonkeyPatch, joined: int) -> None:
    """Chunks of eight steps; joined by a launch of its own (0), or so many at a time by the second pass."""

    def plan(job: linear_triton.Job) -> linear_triton.Plan:
        return linear_triton.Plan(4, 2, 1, 1, 8, -(-job.l // 8), joined)

    monkeypatch.setattr(linear_triton, "_plan", plan)


@pytest.mark.parametrize("joined", [0, 2])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_time_cut_into_chunks(constant: bool, reverse: bool, joined: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five chunks, the last one short: those before it are joined in three steps."""
    cut_at_8(monkeypatch, joined)
    check(draw((1, 1 if constant else 34, 2), (1, 34, 2), torch.complex128), reverse, torch.complex64)


@pytest.mark.parametrize("joined", [0, 2])
@pytest.mark.parametrize("l", [1, 7, 9, 24])
def test_lengths_in_chunks(l: int, joined: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter than a chunk, one step over, whole; an odd number of words to each array of ends, without a start."""
    cut_at_8(monkeypatch, joined)
    for a in ((1, l, 3), (1, 1, 3)):
        check(draw(a, (1, l, 3), torch.float64, started=False), False, torch.float32)


@pytest.mark.parametrize("shape", [(1, 20, 2), (3, 1, 2), (1, 1, 2)])
def test_multipliers_that_broadcast_in_chunks(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    cut_at_8(monkeypatch, 2)
    check(draw(shape, (3, 20, 2), torch.float64), True, torch.float32)


def test_the_cut() -> None:
    """Rows that fill the device are not cut, nor are short ones; a cut fills it and covers every step once."""
    assert linear_triton.cut(256, 1024, 64, False, False).chunks == 1
    assert linear_triton.cut(1, 28, 32, False, False).chunks == 1
    for rows, l, n in ((8, 4096, 64), (1, 65_536, 256), (1, 4097, 5), (1, 10**6, 1)):
        plan = linear_triton.cut(rows, l, n, False, False)
        assert (plan.chunks - 1) * plan.chunk < l <= plan.chunks * plan.chunk
        warps = rows * -(-n // plan.bn) * plan.chunks
        assert warps <= linear_triton.WANTED
        assert warps >= linear_triton.WANTED / 2 or plan.chunk == 4 * plan.bt
        assert (plan.joined > 0) == (plan.chunks <= linear_triton.FEW)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("n", [3, 4])
def test_half_precision(n: int, constant: bool) -> None:
    """An even number of channels goes in pairs."""
    found = check(draw((1, 1 if constant else 5, n), (1, 5, n), torch.float64), constant, torch.bfloat16)
    assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("joined", [0, 2])
@pytest.mark.parametrize("n", [3, 4])
def test_half_precision_in_chunks(n: int, joined: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_at_8(monkeypatch, joined)
    check(draw((1, 27, n), (1, 27, n), torch.float64), False, torch.bfloat16)


def test_pending_conjugate() -> None:
    a, b = multiplier(1, 3, 2, dtype=torch.complex64).conj(), torch.randn(1, 3, 2, dtype=torch.complex64)
    assert_close(triton_scan(a, b), reference_scan(a, b))


def test_a_dtype_that_is_not_taken() -> None:
    with pytest.raises(TypeError, match="float32"):
        triton_scan(torch.ones(1, 2, 2, dtype=torch.float64), torch.ones(1, 2, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16])
def test_a_kernel_that_does_not_compile(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """torch takes over, and says so once."""

    from triton.runtime.errors import OutOfResources

    def refuse(*_: object) -> None:
        raise OutOfResources(2, 1, "shared memory")

    monkeypatch.setattr(linear_triton, "_run", refuse)
    monkeypatch.setattr(launch, "_refused", set())
    for _ in range(2):
        check(draw((1, 9, 2), (1, 9, 2), torch.complex128 if dtype.is_complex else torch.float64), False, dtype)
    assert sum("takes over" in message for message in caplog.messages) == 2  # the scan and its backward pass
