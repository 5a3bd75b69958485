"""The ceilings of this device: a copy, bf16 products and exponentials, each with nothing else to do."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.gpu.case import Ceilings, measured


def measure(device: torch.device, tiny: bool) -> Ceilings:
    return Ceilings(_copy(device, tiny), _products(device, tiny), _exponentials(device, tiny))


def _copy(device: torch.device, tiny: bool) -> float:
    x = torch.randn(1 << (16 if tiny else 29), device=device)
    y = torch.empty_like(x)
    return 2 * x.nbytes / _seconds(lambda: y.copy_(x), device)


def _products(device: torch.device, tiny: bool) -> float:
    n = 64 if tiny else 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / _seconds(lambda: a @ b, device)


def _exponentials(device: torch.device, tiny: bool) -> float:
    if device.type != "cuda":  # no kernel of nothing else: torch's own, from and to memory
        x = torch.rand(1 << (14 if tiny else 24), device=device)
        return x.numel() / _seconds(lambda: torch.exp2(x, out=x), device)
    from benchmarks.gpu.exponentials import exponentials

    return exponentials(lambda work: _seconds(work, device))


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    return 1e-3 * measured(work, device).ms
