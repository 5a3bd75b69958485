"""Sequence layers as real recurrences: their discretised parameters as buffers, one step of each as written."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.deployment.flow import Flow, Temporal, keep
from resolvent.layers.dss import LARGEST_GROWTH, REGULARISER
from resolvent.ops.blocked import DenseBank, DiagonalBank
from resolvent.ops.pairs import Pair, stack_parts, where
from resolvent.ssm.discretise import positive

State = tuple[Tensor, ...]


class Feedthrough(Temporal):
    """A part whose output includes D x, if there is a D."""

    D: Tensor | None

    def answer(self, out: Tensor, x: Tensor) -> Tensor:
        return out if self.D is None else out + self.D * x


class Diagonal(Feedthrough):
    """Every channel a diagonal bank: h = lam h + gain u, y = Re(weight h) + D u; a complex h is (b, d, n, 2)."""

    re: Tensor
    im: Tensor | None
    row: Tensor
    gain: Tensor | None

    def __init__(self, bank: DiagonalBank, dtype: torch.dtype) -> None:
        super().__init__()
        d, n = bank.lam.shape[-2:]
        turns = bank.lam.is_complex()
        self.shapes = ((d, n, 2),) if turns else ((d, n),)
        row = stack_parts(bank.weight.conj()) if turns else bank.weight  # Re(w h) = Re w Re h - Im w Im h
        gain = None if bank.gain is None else stack_parts(bank.gain).to(dtype)
        D = None if bank.D is None else bank.D.to(dtype)
        keep(self, re=bank.lam.real.to(dtype), im=bank.lam.imag.to(dtype) if turns else None, row=row.to(dtype))
        keep(self, D=D, gain=gain)

    def advance(self, state: State, driven: State) -> tuple[State, Tensor]:
        (h,), (u,) = state, driven
        if self.im is None:
            enters = u[..., None] if self.gain is None else self.gain * u[..., None]
            h = self.re * h + enters
            return (h,), (self.row * h).sum(-1)
        h = rotate(self.re, self.im, h)
        if self.gain is None:
            enters = torch.stack([u, torch.zeros_like(u)], -1)[..., None, :]  # (b, d, 1, 2)
        else:
            enters = self.gain * u[..., None, None]
        h = h + enters
        return (h,), (self.row * h).sum((-2, -1))


class Softmax(nn.Module):
    """A softmax DSS without a declared length, whole sequences only: each has the bank of its own length L.

    W / lam  e^{l z} / sum_{r<L} e^{r z}, with the sum (e^{L z} - 1) / (e^z - 1) in units of its largest term.
    """

    z: Tensor
    W: Tensor
    lam: Tensor
    D: Tensor | None

    def __init__(self, layer: Any, back: bool) -> None:
        super().__init__()
        dt = positive(layer.log_dt.double())
        z = torch.stack(torch.broadcast_tensors(dt[:, :1] * layer.decay, dt[:, -1:] * layer.frequency), -1)  # (d, n, 2)
        lam = torch.stack([layer.decay, layer.frequency], -1).double()
        keep(self, z=z, lam=lam, W=(layer.W_back if back else layer.W).double(), D=None if back else layer.D)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        assert flow.lengths is not None
        L = flow.lengths[:, None, None].to(self.z.dtype)
        growth = torch.minimum(self.z[..., 0], LARGEST_GROWTH / L)  # (b, d, n)
        angle, sign = self.z[..., 1], torch.where(growth > 0, -1.0, 1.0)
        total = _expm1(growth * sign * L, angle * sign * L) / _expm1(growth * sign, angle * sign)
        z, lam = Pair(growth, angle.expand_as(growth)), Pair(*self.lam.unbind(-1))
        total = where((growth == 0) & (angle == 0), Pair(L.expand_as(growth), torch.zeros_like(growth)), total)
        scaled = total * lam
        weight = Pair(*self.W.unbind(-1)) * (scaled.conj() / (scaled.square_modulus() + REGULARISER))
        grown = where(growth > 0, z * (1 - L), Pair(torch.zeros_like(growth), torch.zeros_like(growth))).exp()
        bank = DiagonalBank(z.exp(), weight, self.D, grown)
        y: Tensor = Diagonal(bank, x.dtype)(x, flow)
        return y


def _expm1(x: Tensor, y: Tensor) -> Pair:
    """e^{x + iy} - 1 without cancellation."""
    return Pair(torch.expm1(x) * torch.cos(y) - 2 * torch.sin(y / 2).square(), torch.exp(x) * torch.sin(y))


class Dense(Feedthrough):
    """Every channel a dense real system: h = A h + B u, y = C h + D u; h (b, d, s)."""

    A: Tensor
    B: Tensor
    C: Tensor

    def __init__(self, bank: DenseBank, dtype: torch.dtype) -> None:
        super().__init__()
        self.shapes = (tuple(bank.B.shape),)
        keep(self, A=bank.A.to(dtype), B=bank.B.to(dtype), C=bank.C.to(dtype))
        keep(self, D=None if bank.D is None else bank.D.to(dtype))

    def advance(self, state: State, driven: State) -> tuple[State, Tensor]:
        (h,), (u,) = state, driven
        h = (self.A * h[:, :, None]).sum(-1) + self.B * u[..., None]
        return (h,), (self.C * h).sum(-1)


class Stored(Temporal):
    """Pooling "state": every channel's z = A z + b u, all of them after each step (b, d m)."""

    A: Tensor
    b: Tensor

    def __init__(self, A: Tensor, b: Tensor) -> None:
        super().__init__()
        self.shapes = (tuple(b.shape),)
        keep(self, A=A, b=b)

    def advance(self, state: State, driven: State) -> tuple[State, Tensor]:
        (z,), (u,) = state, driven
        z = (self.A * z[:, :, None]).sum(-1) + self.b * u[..., None]
        return (z,), z.flatten(1)


class Coupled(Feedthrough):
    """S5 and LRU: h = lam h + W_in u in pairs (b, p, 2), y = W_out h + D u."""

    re: Tensor
    im: Tensor
    W_in: Tensor
    W_out: Tensor

    def __init__(self, lam: Tensor, W_in: Tensor, W_out: Tensor, D: Tensor | None) -> None:
        super().__init__()
        self.shapes = ((lam.shape[0], 2),)
        keep(self, re=lam.real, im=lam.imag, W_in=W_in, W_out=W_out, D=D)

    def drive(self, x: Tensor) -> State:
        return (F.linear(x, self.W_in).unflatten(-1, (-1, 2)),)

    def advance(self, state: State, driven: State) -> tuple[State, Tensor]:
        h = rotate(self.re, self.im, state[0]) + driven[0]
        return (h,), h

    def answer(self, out: Tensor, x: Tensor) -> Tensor:
        return super().answer(F.linear(out.flatten(-2), self.W_out), x)


class Delayed(Temporal):
    """L2RU: y = C x + D u, then x = A x + B u; states rotated in pairs, or a full matrix A."""

    A: Tensor
    im: Tensor | None
    B: Tensor
    C: Tensor
    D: Tensor

    def __init__(self, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> None:
        super().__init__()
        pairs = A.is_complex()
        self.shapes = ((A.shape[0], 2),) if pairs else ((A.shape[0],),)
        keep(self, A=A.real if pairs else A, im=A.imag if pairs else None, B=B, C=C, D=D)

    def drive(self, x: Tensor) -> State:
        Bu = F.linear(x, self.B)
        return (Bu if self.im is None else Bu.unflatten(-1, (-1, 2)),)

    def advance(self, state: State, driven: State) -> tuple[State, Tensor]:
        (h,), (Bu,) = state, driven
        after = h @ self.A.mT + Bu if self.im is None else rotate(self.A, self.im, h) + Bu
        return (after,), h

    def answer(self, out: Tensor, x: Tensor) -> Tensor:
        before = out if self.im is None else out.flatten(-2)
        return F.linear(before, self.C) + F.linear(x, self.D)


class Selective(Feedthrough):
    """S6: dt, B and C from x; h = exp(dt A) h + dt u B, y = C h + D u. W_dt None: one dt for all channels."""

    W: Tensor
    W_dt: Tensor | None
    b_dt: Tensor
    A: Tensor

    def __init__(self, W: Tensor, W_dt: Tensor | None, b_dt: Tensor, A: Tensor, D: Tensor | None) -> None:
        super().__init__()
        d, n = A.shape
        self.shapes, self.split = ((d, n),), [W.shape[0] - 2 * n, n, n]
        keep(self, W=W, W_dt=W_dt, b_dt=b_dt, A=A, D=D)

    def drive(self, x: Tensor) -> State:
        s, B, C = F.linear(x, self.W).split(self.split, -1)
        dt = F.softplus(s + self.b_dt if self.W_dt is None else F.linear(s, self.W_dt, self.b_dt))
        return dt.expand_as(x), dt * x, B, C

    def advance(self, state: State, driven: State) -> tuple[State, Tensor]:
        (h,), (dt, enters, B, C) = state, driven
        h = torch.exp(dt[..., None] * self.A) * h + enters[..., None] * B[:, None]
        return (h,), (h * C[:, None]).sum(-1)


class Gated(Temporal):
    """RG-LRU: h = a h + sqrt(1 - a^2) i u; the very first step is i u alone. State: h, and 1 once started."""

    W_a: Tensor
    W_x: Tensor
    b_a: Tensor
    b_x: Tensor
    rate: Tensor

    def __init__(self, W_a: Tensor, W_x: Tensor, b_a: Tensor, b_x: Tensor, rate: Tensor) -> None:
        super().__init__()
        self.shapes = ((rate.shape[0],), (1,))
        keep(self, W_a=torch.block_diag(*W_a).mT, W_x=torch.block_diag(*W_x).mT, b_a=b_a, b_x=b_x, rate=rate)

    def drive(self, x: Tensor) -> State:
        log_a = self.rate * torch.sigmoid(F.linear(x, self.W_a, self.b_a))
        opened = torch.sigmoid(F.linear(x, self.W_x, self.b_x)) * x
        return torch.exp(log_a), torch.sqrt(-torch.expm1(2 * log_a)) * opened, opened

    def advance(self, state: State, driven: State) -> tuple[State, Tensor]:
        (h, begun), (a, later, first) = state, driven
        h = begun * (a * h + later) + (1 - begun) * first
        return (h, torch.ones_like(begun)), h


class GatedUnit(Temporal):
    """torch.nn.GRU."""

    W: Tensor
    U: Tensor
    b: Tensor
    c: Tensor

    def __init__(self, unit: Any) -> None:
        super().__init__()
        self.shapes = ((unit.hidden_size,),)
        keep(self, W=unit.weight_ih_l0, U=unit.weight_hh_l0, b=unit.bias_ih_l0, c=unit.bias_hh_l0)

    def drive(self, x: Tensor) -> State:
        return (F.linear(x, self.W, self.b),)

    def advance(self, state: State, driven: State) -> tuple[State, Tensor]:
        (h,), (Wx,) = state, driven
        r, z, n = Wx.chunk(3, -1)
        r_h, z_h, n_h = F.linear(h, self.U, self.c).chunk(3, -1)
        z = torch.sigmoid(z + z_h)
        h = (1 - z) * torch.tanh(n + torch.sigmoid(r + r_h) * n_h) + z * h
        return (h,), h


class Taps(nn.Module):
    """A short causal convolution of each channel; its state are the last width - 1 inputs (b, width - 1, d)."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        d, self.width = weight.shape
        self.shapes = ((self.width - 1, d),) if self.width > 1 else ()
        keep(self, weight=weight, bias=bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        if flow.steps:
            seen = torch.cat([*flow.take(len(self.shapes)), x[:, None]], 1)  # (b, w, d)
            flow.end += [seen[:, 1:]] if self.shapes else []
            y = (seen * self.weight.mT).sum(1)
        else:
            before = x.new_zeros(x.shape[0], self.width - 1, x.shape[2])
            seen, l = torch.cat([before, x], 1), x.shape[1]
            y = seen[:, :l] * self.weight[:, 0]
            for j in range(1, self.width):
                y = y + seen[:, j : j + l] * self.weight[:, j]
        return y if self.bias is None else y + self.bias


def rotate(re: Tensor, im: Tensor, h: Tensor) -> Tensor:
    """(re + i im) h for pairs h (..., 2)."""
    a, b = h.unbind(-1)
    return torch.stack([re * a - im * b, im * a + re * b], -1)
