"""Chunks of a linear scan that hand their states on in one launch, in interpreter mode, against float64."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter  # noqa: F401  (first: it switches the interpreter on)
from linear_cases import multiplier
from packed_cases import linear_alone
from torch import Tensor

from helpers import assert_close
from resolvent.ops.linear_scan import triton as linear_triton
from resolvent.ops.linear_scan.kernels import compose_backward
from resolvent.ops.linear_scan.packed import forgetting
from resolvent.ops.linear_scan.reference import reference_scan
from resolvent.ops.linear_scan.relay.launch import Relay, cut_relay
from resolvent.ops.linear_scan.relay.reports import AT_ONCE, group_size
from resolvent.ops.linear_scan.triton import triton_backward, triton_scan
from resolvent.runtime import trust

KINDS = [(torch.complex128, torch.complex64), (torch.float64, torch.float32), (torch.float64, torch.bfloat16)]


def relay(l: int, group: int = 2) -> Relay:
    """Chunks of two threads of two steps each."""
    return Relay(2, 2, 2, 1, 1, -(-l // 4), group)


@pytest.fixture(autouse=True)
def _by_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_triton, "_plan", lambda job: relay(job.l))


def check(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, narrow: torch.dtype) -> None:
    g = torch.randn_like(b)
    a, b, g = (x.to(narrow).to(x.dtype) for x in (a, b, g))
    h0 = None if h0 is None else h0.to(narrow).to(h0.dtype)
    h = reference_scan(a, b, h0, reverse)
    want = compose_backward(reference_scan)(g, a, h, h0, reverse)
    a, b, g = (x.to(narrow) for x in (a, b, g))
    h0 = None if h0 is None else h0.to(narrow)
    real = torch.bfloat16 if narrow == torch.bfloat16 else torch.float32
    found = triton_scan(a, b, h0, reverse)
    assert_close(found.to(h.dtype), h, dtype=real)
    for got, true in zip(triton_backward(g, a, found, h0, reverse), want, strict=True):
        assert_close(got.to(true.dtype), true, dtype=real, gradient=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("wide", "narrow"), KINDS)
def test_chunks_and_groups(wide: torch.dtype, narrow: torch.dtype, constant: bool, reverse: bool) -> None:
    """Five chunks, the last one short, in three groups; blocks of channels with one left over."""
    n = 4 if narrow == torch.bfloat16 else 3
    a = multiplier(1, 1 if constant else 18, n, dtype=wide)
    check(a.expand(1 if constant else 2, -1, -1), torch.randn(2, 18, n, dtype=wide), None, reverse, narrow)


@pytest.mark.parametrize("l", [1, 4, 7, 16])
def test_lengths_and_a_start(l: int) -> None:
    h0 = torch.randn(2, 2, dtype=torch.float64)
    check(multiplier(2, l, 2), torch.randn(2, l, 2, dtype=torch.float64), h0, l == 7, torch.float32)
    check(multiplier(1, 1, 2), torch.randn(2, l, 2, dtype=torch.float64), h0, l != 7, torch.float32)


def test_more_reports_than_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    l = 4 * (AT_ONCE.value + 3)
    for group in (AT_ONCE.value + 3, 1):  # one group of all chunks, a group for each
        monkeypatch.setattr(linear_triton, "_plan", lambda job, group=group: relay(job.l, group))
        check(multiplier(1, l, 2), torch.randn(1, l, 2, dtype=torch.float64), None, False, torch.float32)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_packed(constant: bool, reverse: bool) -> None:
    """A chunk without a mark, marks inside of one and where two meet; complex multipliers, of time or not."""
    start = torch.zeros(2, 18, dtype=torch.bool)
    start[0, [8, 13]] = start[1, [0, 4, 17]] = True
    wide = torch.complex128
    a = multiplier(*((1, 1) if constant else (2, 18)), 2, dtype=wide)
    leaves = [a, torch.randn(2, 18, 2, dtype=wide), torch.randn(2, 2, dtype=wide)]
    leaves = [t.to(torch.complex64).to(wide).requires_grad_() for t in leaves]
    g = torch.randn(2, 18, 2, dtype=torch.complex64)
    want = linear_alone(*leaves, start, reverse)
    true = torch.autograd.grad(want, leaves[:2], g.to(wide))
    a, b, h0 = (t.detach().to(torch.complex64) for t in leaves)
    reset = forgetting("", start, b.shape[:-1], b.device, reverse)
    h = triton_scan(a, b, h0, reverse, reset)
    assert_close(h.to(wide), want, dtype=torch.float32)
    for got, gradient in zip(triton_backward(g, a, h, h0, reverse, reset), true, strict=True):
        assert_close(got.to(wide), gradient, dtype=torch.float32, gradient=True)


def test_products_beyond_float32_and_zeros() -> None:
    """Growth that meets no state leaves none; zeros cut what came before; a small state grows as it should."""
    a, b = torch.full((1, 30, 1), 3.0), torch.zeros(1, 30, 1)
    a[:, :20] = 1e15
    b[:, 20:] = 1.0
    assert_close(triton_scan(a, b), reference_scan(a.double(), b.double()), dtype=torch.float32)
    a[:, 4:9], a[:, 9], b[:, 3] = 1e5, 0, 1e-30
    found = triton_scan(a, b)
    assert_close(found, reference_scan(a.double(), b.double()), dtype=torch.float32)
    assert_close(found[:, :10] * 1e5, reference_scan(a, b)[:, :10] * 1e5, dtype=torch.float32)
    pair = torch.complex64
    assert_close(triton_scan(a.to(pair), b.to(pair)).real, found)


@pytest.mark.parametrize("where", [0, 5, 8])
@pytest.mark.parametrize("of", ["a", "b"])
def test_what_is_not_a_number_stays(of: str, where: int) -> None:
    """All bits of it set, which is how a word looks that nobody has written yet."""
    a, b = multiplier(1, 18, 1, dtype=torch.float32), torch.randn(1, 18, 1)
    (a if of == "a" else b)[0, where] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    h = triton_scan(a, b)
    assert h[0, where:].isnan().all()
    assert h[0, :where].isfinite().all()


def test_the_same_bits_each_time() -> None:
    a, b = multiplier(2, 30, 2, dtype=torch.float32), torch.randn(2, 30, 2)
    assert torch.equal(triton_scan(a, b), triton_scan(a, b))


def test_the_cut() -> None:
    """Every step once; no more groups than their size, but for rounding; a program's threads hold all of a tile."""
    for l in (32, 4096, 65_536, 65_537, 10**7):
        for twice in (False, True):
            plan = cut_relay(l, twice)
            chunk = plan.steps * plan.side
            assert (plan.chunks - 1) * chunk < l <= plan.chunks * chunk
            assert plan.side * plan.bn == 32 * plan.warps * plan.per
    for chunks in range(1, 3000):
        size = group_size(chunks)
        assert size == chunks <= 32 or (size & (size - 1) == 0 and -(-chunks // size) <= size <= 2 * chunks**0.5)


# -- where it is not taken ---------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are chosen, two words wide, and nothing is known of this device."""
    monkeypatch.undo()
    monkeypatch.setattr(linear_triton, "WIDTH", 2)
    monkeypatch.setattr(linear_triton, "cut_relay", lambda l, twice: relay(l))
    monkeypatch.setattr(trust, "_known", {})


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("wide", "narrow"), KINDS)
def test_a_probe_goes_first(wide: torch.dtype, narrow: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    check(multiplier(1, 40, 4, dtype=wide), torch.randn(1, 40, 4, dtype=wide), None, False, narrow)
    assert list(trust._known.values()) == [True, True]  # forward and back
    assert not caplog.messages


@pytest.mark.usefixtures("asked")
def test_a_kernel_that_is_wrong(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    run = linear_triton.run_relay
    monkeypatch.setattr(
        linear_triton, "run_relay", lambda job, plan, out, **given: (run(job, plan, out, **given), out.mul_(2))
    )
    for _ in range(2):
        check(multiplier(1, 40, 4), torch.randn(1, 40, 4, dtype=torch.float64), None, False, torch.float32)
    assert [m for m in caplog.messages if "differ" in m] == caplog.messages
    assert len(caplog.messages) == 2  # of the scan and of its backward pass


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("constant", [False, True])
def test_a_kernel_that_does_not_compile(
    constant: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor its probe, or only this form of it: several launches take over, and it is said once."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(linear_triton, "run_relay", refuse)
    for tried in (True, False):
        monkeypatch.setattr(trust, "_known", {})
        if not tried:
            monkeypatch.setattr(linear_triton, "_probe", lambda job: True)
        caplog.clear()
        for _ in range(2):
            a = multiplier(1, 1 if constant else 40, 4)
            check(a, torch.randn(1, 40, 4, dtype=torch.float64), None, False, torch.float32)
        assert sum("others take over" in message for message in caplog.messages) == 2


@pytest.mark.usefixtures("asked")
def test_memory_that_runs_out_is_no_fault_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever frees some and goes on has the same kernel, and so the same bits."""

    def fill(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(linear_triton, "_probe", lambda job: True)
    a, b = multiplier(1, 40, 4, dtype=torch.float32), torch.randn(1, 40, 4)
    h = triton_scan(a, b)
    with monkeypatch.context() as full:
        full.setattr(linear_triton, "run_relay", fill)
        with pytest.raises(torch.OutOfMemoryError):
            triton_scan(a, b)
        with pytest.raises(torch.OutOfMemoryError):
            triton_backward(b, a, h, None, False)
    assert torch.equal(triton_scan(a, b), h)
    assert all(trust._known.values())
    assert not caplog.messages
