"""Where Fourier noise is added: at the input of modules chosen by the caller, such as every state-space layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks.draws import Draws
from resolvent.attacks.fourier.noise import FourierNoise


@dataclass(frozen=True, eq=False)
class Site:
    """The first argument (b, l, d) of `module`, step k of which is at time k dt; dt may differ by channel: (d,).

    Examples:
        >>> rv.attacks.Site(torch.nn.Identity(), dt=0.1).dt
        0.1
    """

    module: nn.Module
    dt: float | Tensor = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise TypeError(f"Site: expected a module to hook, got {type(self.module).__name__}.")
        steps = torch.as_tensor(self.dt)
        if steps.dim() > 1 or not bool((torch.isfinite(steps) & (steps > 0)).all()):
            raise ValueError(f"Site: dt must be positive, one number or one for each channel (d,), got {self.dt}.")

    def times(self, length: int) -> Tensor:
        """(l, 1) or (l, d) in float64."""
        steps = torch.as_tensor(self.dt).detach().double().reshape(-1)
        return torch.arange(length, dtype=torch.float64, device=steps.device)[:, None] * steps


@contextmanager
def disturbed(sites: Sequence[Site], noise: FourierNoise, draws: Draws) -> Iterator[None]:
    """Add the noise at every site, with separate random numbers; hooks are removed afterwards, also after errors.

    A module sees the samples of `draws` in their order; one that gets r rows for each sample (two documents through
    one tower) gets different numbers for each of them.

    Examples:
        >>> layer, x = torch.nn.Identity(), torch.zeros(2, 8, 1)
        >>> noise, draws = rv.attacks.FourierNoise(0.1, 1.0), rv.attacks.Draws.of(x)
        >>> with rv.attacks.disturbed([rv.attacks.Site(layer)], noise, draws):
        ...     bool(layer(x).abs().max() > 0)
        True
    """
    handles = []
    try:
        for number, site in enumerate(sites):
            handles.append(site.module.register_forward_pre_hook(_hook(site, noise, draws.fold(number))))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(site: Site, noise: FourierNoise, draws: Draws) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    def add(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if not given or not isinstance(given[0], Tensor) or given[0].dim() != 3:
            got = tuple(given[0].shape) if given and isinstance(given[0], Tensor) else "no tensor"
            raise ValueError(f"Site {site.name!r}: expected the module's first argument (b, l, d), got {got}.")
        x = given[0]
        wave = noise.wave(_rows(draws, x, site.name), site.times(x.shape[1]), x.shape[2])
        return (x + wave.to(x.device, x.dtype), *given[1:])

    return add


def _rows(draws: Draws, x: Tensor, name: str) -> Draws:
    b = len(draws)
    if len(x) == b:
        return draws
    if not b or len(x) % b:
        raise ValueError(f"Site {name!r}: {len(x)} rows came for {b} samples; expected a whole number for each.")
    times = len(x) // b
    row = torch.arange(len(x), device=draws.index.device)
    return draws.select(row // times).fold(row % times)
