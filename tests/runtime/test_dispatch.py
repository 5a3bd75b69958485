"""The dispatcher: the first candidate that works, asked once; failures are told once; a backend can be forced."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from resolvent.ops.linear_scan import kernels as linear_kernels
from resolvent.ops.linear_scan.kernels import FORWARD
from resolvent.runtime import dispatch
from resolvent.runtime.dispatch import Candidate, available, choose
from resolvent.scan import linear_scan, use

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    dispatch.forget()
    yield
    dispatch.forget()


def candidate(name: str, *, accepts: bool = True, loads: bool = True, right: bool = True) -> Candidate:
    def load() -> Any:
        if not loads:
            raise ImportError("no such library")
        return lambda: name

    return Candidate(name, lambda device, dtype: accepts, load, lambda kernel, device, dtype: right)


def test_first_that_works_is_taken_and_remembered() -> None:
    kernel = choose("op", (candidate("numba"), candidate("torch")), CPU, torch.float32)
    assert kernel() == "numba"
    assert choose("op", (candidate("torch"),), CPU, torch.float32) is kernel  # remembered: nothing is asked again
    assert choose("op", (candidate("torch"),), CPU, torch.float64)() == "torch"
    assert choose("other", (candidate("torch"),), CPU, torch.float32)() == "torch"


def test_nothing_is_probed_nor_remembered_while_a_graph_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, gpu = (candidate("triton"), candidate("torch", right=False)), torch.device("cuda")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert choose("op", candidates, gpu, torch.float32)() == "torch"  # unasked whether its numbers are right
        with use("triton"), pytest.raises(ValueError, match="a CUDA graph is being recorded; call it once before"):
            choose("op", candidates, gpu, torch.float32)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert choose("op", candidates, gpu, torch.float32)() == "triton"


@pytest.mark.parametrize(
    ("bad", "reason"), [({"loads": False}, "ImportError: no such library"), ({"right": False}, "numbers differ")]
)
def test_a_failing_candidate_is_skipped_and_told_once(
    bad: dict[str, bool], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    candidates = (candidate("numba", **bad), candidate("torch"))
    with caplog.at_level(logging.WARNING, "resolvent"):
        for _ in range(3):
            assert choose("op", candidates, CPU, torch.float32)() == "torch"
            assert available("op", candidates, CPU, torch.float32) == ("torch",)
    assert len(caplog.records) == 1
    assert reason in caplog.text
    assert "numba" in caplog.text


def test_a_probe_has_exact_products_where_torch_may_round_them() -> None:
    """On a GPU those of float32 would else differ by more than a probe allows, and its kernels be left out for good."""
    seen, before = list[str](), torch.get_float32_matmul_precision()

    def probe(*_: Any) -> bool:
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return False

    torch.set_float32_matmul_precision("high")
    try:
        own = Candidate("triton", lambda device, dtype: True, lambda: probe, probe)
        assert choose("op", (own, candidate("torch")), CPU, torch.float32)() == "torch"
        assert (seen, torch.get_float32_matmul_precision()) == (["ieee"], "high")
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_candidate_for_something_else_is_skipped_silently(caplog: pytest.LogCaptureFixture) -> None:
    candidates = (candidate("triton", accepts=False), candidate("torch"))
    assert choose("op", candidates, CPU, torch.float32)() == "torch"
    assert not caplog.records


def test_nothing_works() -> None:
    with pytest.raises(
        ValueError, match=r"op: expected a backend for torch.float32 on cpu.*numbers differ.*works: none"
    ):
        choose("op", (candidate("torch", right=False),), CPU, torch.float32)


def test_use_forces_and_nests_and_ends() -> None:
    candidates = (candidate("numba"), candidate("torch"), candidate("reference"))
    with use("reference"):
        assert choose("op", candidates, CPU, torch.float32)() == "reference"
        with use("torch"):
            assert choose("op", candidates, CPU, torch.float32)() == "torch"
        assert choose("op", candidates, CPU, torch.float32)() == "reference"
    assert choose("op", candidates, CPU, torch.float32)() == "numba"
    with pytest.raises(RuntimeError), use("torch"):
        raise RuntimeError
    assert choose("op", candidates, CPU, torch.float32)() == "numba"


def test_an_unknown_or_unavailable_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of reference, torch, numba, triton, got 'cuda'"), use("cuda"):
        pass
    with (
        use("triton"),
        pytest.raises(ValueError, match=r"linear_scan: expected the triton backend.*what works: .*torch, reference"),
    ):
        linear_scan(torch.ones(1), torch.ones(3, 1))


def test_every_operation_lists_what_works_here() -> None:
    names = available("linear_scan", FORWARD, CPU, torch.complex64)
    assert names[-2:] == ("torch", "reference")


def test_numba_absent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "resolvent.ops.linear_scan.numba", raising=False)
    a, b = torch.full((1,), 0.5, requires_grad=True), torch.ones(3, 1)
    with caplog.at_level(logging.WARNING, "resolvent"):
        h = linear_scan(a, b)
        h.sum().backward()
        linear_scan(a, b).sum().backward()
    assert h.flatten().tolist() == [1.0, 1.5, 1.75]
    assert linear_kernels.forward_kernel(b).__name__ == "chunked_scan"
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 2  # one for each operation: the scan and its backward pass
    assert all("skipping the numba backend" in line and "ModuleNotFoundError" in line for line in lines)


def test_a_kernel_that_computes_wrongly_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(a: torch.Tensor, b: torch.Tensor, h0: torch.Tensor | None, reverse: bool) -> torch.Tensor:
        return b + 1e-3

    bad = Candidate("triton", lambda device, dtype: True, lambda: wrong, FORWARD[0].probe)
    monkeypatch.setattr(linear_kernels, "FORWARD", (bad, *FORWARD))
    assert linear_scan(torch.tensor([0.5]), torch.ones(3, 1)).flatten().tolist() == [1.0, 1.5, 1.75]
