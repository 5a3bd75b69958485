"""The residual block of S4, S4D, DSS, S5 and LRU: norm, layer, adaptive scaling, mixer, dropout, skip."""

from __future__ import annotations

from torch import Tensor, nn

from resolvent.blocks.block import Block, Layer, State
from resolvent.blocks.norm import NormKind, make_norm


class Residual(Block):
    """prenorm   y = x + drop(mixer(ads(layer(norm(x)))))
    postnorm  y = norm(x + drop(mixer(ads(layer(x)))))

    `skip=False` omits the x + term. `ads` and `mixer` are any modules (..., d) -> (..., d); None passes through.

    Examples:
        >>> block = rv.blocks.Residual(rv.S5(4, 8), mixer=rv.blocks.Mixer(4))
        >>> y, state = block(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
    """

    def __init__(
        self,
        layer: Layer,
        *,
        mixer: nn.Module | None = None,
        ads: nn.Module | None = None,
        norm: NormKind = "layer",
        norm_eps: float | None = None,
        prenorm: bool = True,
        dropout: float = 0.0,
        skip: bool = True,
    ) -> None:
        super().__init__(layer.d_model, bidirectional=layer.bidirectional)
        self.norm = make_norm(norm, layer.d_model, norm_eps)
        self.layer = layer
        self.ads = ads or nn.Identity()
        self.mixer = mixer or nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.prenorm = prenorm
        self.skip = skip

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        h = self.norm(x, lengths) if self.prenorm else x
        h, end = self.layer(h, state.get("layer"), lengths)
        return self._after(x, h, lengths), {"layer": end}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        h = self.norm(x_t) if self.prenorm else x_t
        h, end = self.layer._step(h, state["layer"])
        return self._after(x_t, h, None), {"layer": end}

    def _after(self, x: Tensor, h: Tensor, lengths: Tensor | None) -> Tensor:
        h = self.dropout(self.mixer(self.ads(h)))
        y = x + h if self.skip else h
        return y if self.prenorm else self.norm(y, lengths)
