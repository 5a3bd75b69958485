"""ShortConv: the short depthwise causal convolution of Mamba, Hawk and Griffin."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resolvent.layers import checks
from resolvent.layers.contract import Layer, Spec
from resolvent.ops.filter import causal_taps
from resolvent.ssm.system import Dense, System


class ShortConv(Layer):
    """y_t = bias + sum_j weight[:, j] * x_{t - (width - 1) + j}, each channel separately.

    The last tap multiplies the current input, as in `torch.nn.Conv1d` with groups = channels, so weights of Mamba and
    RecurrentGemma load after dropping their middle axis. The state is the last width - 1 inputs (b, width - 1, d).
    With `bidirectional` a second set of taps reads the reversed sequence (it sees x_t too); the bias is added once.

    Taps start uniform in +-width^-1/2 (as Conv1d and Mamba), or normal with `std` (Griffin: sqrt(.01 / width));
    the bias is zero.

    Examples:
        >>> y, state = rv.ShortConv(4, width=3)(torch.randn(2, 50, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 2, 4]))
    """

    def __init__(
        self,
        d_model: int,
        width: int = 4,
        bias: bool = True,
        *,
        std: float | None = None,
        bidirectional: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        checks.check_positive("ShortConv", width=width)
        if std is not None and not std > 0:
            raise ValueError(f"ShortConv: std must be positive, got {std}; leave it None for Conv1d's uniform taps.")
        self.width = width
        self.weight = nn.Parameter(_taps(d_model, width, std))  # (d, w)
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None  # (d,)
        self.weight_back = nn.Parameter(_taps(d_model, width, std)) if bidirectional else None  # (d, w)

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.width - 1, self.d_model), self.dtype)

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        seen = torch.cat([state, x], 1)  # (b, w - 1 + l, d)
        return causal_taps(seen, self.weight, self.bias), self._tail(seen, lengths)

    def _tail(self, seen: Tensor, lengths: Tensor | None) -> Tensor:
        """The last width - 1 inputs before each sequence's end."""
        if lengths is None:
            return seen[:, seen.shape[1] - self.width + 1 :].clone()  # a view would keep all of it in memory
        index = lengths[:, None] + torch.arange(self.width - 1, device=seen.device)  # (b, w - 1)
        return seen.gather(1, index[..., None].expand(-1, -1, self.d_model))

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        assert self.weight_back is not None
        start = x.new_zeros(x.shape[0], self.width - 1, self.d_model)
        return causal_taps(torch.cat([start, x], 1), self.weight_back, None)

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.cat([state, x_t[:, None]], 1)  # (b, w, d)
        y_t = torch.linalg.vecdot(seen, self.weight.mT, dim=1)
        return (y_t if self.bias is None else y_t + self.bias), seen[:, 1:]

    def system(self) -> System:
        """The shift register as d single-input systems of `width` states x_k = (u_k, u_{k-1}, ...), without the bias.

        The bias is an offset, not part of the linear map: layer(x) = system().simulate(x) + bias.
        """
        checks.check_one_direction(self)
        d, w = self.weight.shape
        shift = torch.diag(self.weight.new_ones(w - 1), -1)  # (w, w)
        enter = torch.eye(w, 1, dtype=self.weight.dtype, device=self.weight.device)  # (w, 1)
        return System(
            Dense(shift.expand(d, w, w)),
            enter.expand(d, w, 1),
            self.weight.flip(1)[:, None, :],
            self.weight.new_zeros(d, 1, 1),
            dt=1.0,
        )


def _taps(d: int, width: int, std: float | None) -> Tensor:
    return torch.empty(d, width).uniform_(-(width**-0.5), width**-0.5) if std is None else torch.randn(d, width) * std
