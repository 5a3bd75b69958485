"""Networks with a prescribed Lipschitz constant: sandwich layers by the Cayley transform.

Wang and Manchester 2023, "Direct parameterization of Lipschitz-bounded deep networks", theorem 3.2: with
A A^T + B B^T = I and any positive diagonal Psi,

    h -> sqrt(2) A^T Psi relu(sqrt(2) Psi^-1 B h + b)

is 1-Lipschitz. If |[A B]| = s is not exactly one, A = s A', B h = B' (s h) gives the constant s^2.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.layers.checks import check_positive
from resolvent.layers.freezing import Freezable
from resolvent.runtime.transforms import wide
from resolvent.ssm.contraction import cayley_rows, rounding_margin, spectral_norm
from resolvent.ssm.rounding import OPERATION, Allowance, Rounding, count, size

LARGEST_LOG_SCALE = 10.0  # of Psi: exp(10) = 2e4


class Sandwich(Freezable):
    """One sandwich layer (..., d_in) -> (..., d_out), 1-Lipschitz for any parameter values.

    Examples:
        >>> layer, x = rv.blocks.Sandwich(4, 4), torch.randn(2, 2, 4)
        >>> bool((layer(x[0]) - layer(x[1])).norm() <= (x[0] - x[1]).norm() * 1.001)
        True
    """

    def __init__(self, d_in: int, d_out: int, *, bias: bool = True) -> None:
        super().__init__()
        check_positive("Sandwich", d_in=d_in, d_out=d_out)
        self.U = nn.Parameter(torch.randn(d_out, d_out) / math.sqrt(d_out))
        self.V = nn.Parameter(nn.init.orthogonal_(torch.empty(d_in, d_out)))
        self.log_psi = nn.Parameter(torch.zeros(d_out))
        self.bias = nn.Parameter(torch.zeros(d_out)) if bias else None

    def matrices(self) -> tuple[Tensor, Tensor]:
        """A (d_out, d_out) and B (d_out, d_in) as the forward pass uses them."""
        found: tuple[Tensor, Tensor] = self.cached("matrices", lambda: _rows(self.U, self.V))
        return found

    def gain(self) -> float:
        """The Lipschitz constant, from the weights in use: |[A B]|^2 (at most 1)."""
        return spectral_norm(torch.cat(self.matrices(), 1)) ** 2

    def rounding(self) -> Allowance:
        """Psi and its inverse cancel, so that its size matters only for the bias."""
        found = self._rounding()
        return lambda steps: found

    def _rounding(self) -> Rounding:
        A, B = self.matrices()
        into, out = count(B.shape[1]) * size(B), count(A.shape[0]) * size(A)
        slope = 2 * (into * spectral_norm(A) + out * spectral_norm(B))
        if self.bias is None:
            return Rounding(slope)
        psi = self.log_psi.detach().double().clamp(-LARGEST_LOG_SCALE, LARGEST_LOG_SCALE).exp()
        shift = math.sqrt(2) * size(psi * self.bias.detach())
        return Rounding(slope, shift * spectral_norm(A), shift * (out + OPERATION * spectral_norm(A)))

    def forward(self, h: Tensor) -> Tensor:
        A, B = self.matrices()
        psi = self.log_psi.clamp(-LARGEST_LOG_SCALE, LARGEST_LOG_SCALE).exp()
        inner = math.sqrt(2) * F.linear(h, B) / psi
        inner = F.relu(inner if self.bias is None else inner + self.bias)
        return math.sqrt(2) * (psi * inner) @ A


class SandwichMLP(Freezable):
    """Sandwich layers of the given widths, then a linear map: (..., d_in) -> (..., d_out) with Lipschitz constant L.

    A factor sqrt(L) is applied at each end. Without biases it maps zero to zero, and L is its gain too.

    Examples:
        >>> rv.blocks.SandwichMLP(4, (8,), 2, lipschitz=3.0)(torch.randn(5, 4)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self, d_in: int, widths: tuple[int, ...], d_out: int, *, lipschitz: float = 1.0, bias: bool = True
    ) -> None:
        super().__init__()
        if not 0 < lipschitz < float("inf"):
            raise ValueError(f"SandwichMLP: lipschitz must be positive and finite, got {lipschitz}.")
        self.lipschitz = float(lipschitz)
        sizes = (d_in, *widths)
        self.layers = nn.ModuleList([Sandwich(a, b, bias=bias) for a, b in zip(sizes[:-1], widths, strict=True)])
        self.U = nn.Parameter(torch.randn(d_out, d_out) / math.sqrt(d_out))
        self.V = nn.Parameter(nn.init.orthogonal_(torch.empty(sizes[-1], d_out)))

    def last(self) -> Tensor:
        """The final map (d_out, width) as used, without its sqrt(L)."""
        found: Tensor = self.cached("last", lambda: _rows(self.U, self.V)[1])
        return found

    def gain(self) -> float:
        inner = math.prod(layer.gain() for layer in self.layers if isinstance(layer, Sandwich))
        return self.lipschitz * inner * spectral_norm(self.last())

    def rounding(self) -> Allowance:
        """The rounding of the layers in sequence, with the factors at both ends."""
        end, gain = math.sqrt(self.lipschitz), 1.0
        slope, shift, floor = OPERATION, 0.0, 0.0  # of the layers so far, for an input of norm one
        for layer in self.layers:
            assert isinstance(layer, Sandwich)
            own, steep = layer._rounding(), layer.gain()
            slope, floor = steep * slope + own.slope * gain, steep * floor + own.slope * shift + own.floor
            gain, shift = gain * steep, steep * shift + own.shift
        last, steep = count(self.V.shape[0]) * size(self.last()), spectral_norm(self.last())
        found = Rounding(
            end * end * (steep * slope + last * gain), end * steep * shift, end * (steep * floor + last * shift)
        )
        return lambda steps: found

    def forward(self, x: Tensor) -> Tensor:
        end = math.sqrt(self.lipschitz)
        h = end * x
        for layer in self.layers:
            h = layer(h)
        return end * F.linear(h, self.last())


def _rows(U: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    keep = rounding_margin(U.shape[0] + V.shape[0])
    A, B = cayley_rows(wide(U), wide(V))
    return (keep * A).to(U.dtype), (keep * B).to(V.dtype)
