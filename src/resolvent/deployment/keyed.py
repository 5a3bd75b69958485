"""H3's block: keys through short taps, their outer product with the values through a layer, read by the queries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resolvent.deployment.flow import Flow, Series, keep


def state_shapes(part: nn.Module) -> list[tuple[int, ...]]:
    """The shapes of the state's tensors of a part and its children, in the order of a step."""
    own = getattr(part, "shapes", None)
    if own is not None:
        return list(own)
    return [shape for child in part.children() for shape in state_shapes(child)]


class Keyed(nn.Module):
    """y = out(scale(q^T ssm(k v^T))) with k = shift(key x) + D key x.

    Each of the width^2 entries of an outer product is a separate sequence, so the layer's state is (b, width^2, ...).
    """

    D: Tensor

    def __init__(self, maps: dict[str, nn.Module], shift: nn.Module, ssm: Series, D: Tensor, width: int) -> None:
        super().__init__()
        self.maps, self.shift, self.ssm, self.width = nn.ModuleDict(maps), shift, ssm, width
        keep(self, D=D)
        self._taps, self._inner = state_shapes(shift), state_shapes(ssm)
        self.shapes = (*self._taps, *((width**2, *shape) for shape in self._inner))

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        k, v, q = (self.maps[name](x, flow) for name in ("key", "value", "query"))
        k = self.shift(k, flow) + self.D * k
        outer = self._heads(k)[..., :, None] * self._heads(v)[..., None, :]  # (b, [l,] h, p, p)
        s = self._filter(outer, flow)
        y = (self._heads(q)[..., :, None] * s).sum(-2).flatten(-2)  # over the keys
        return self.maps["out"](self.maps["scale"](y, flow), flow)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.width))

    def _filter(self, outer: Tensor, flow: Flow) -> Tensor:
        """Filter each entry of the outer products: (b, [l,] h, p, p) -> the same."""
        p = self.width
        if flow.steps:
            held = [t.flatten(0, 1) for t in flow.take(len(self._inner))]
            inner = Flow(state=held)
            each = outer.permute(0, 2, 3, 1).flatten(0, 2)  # (b p p, h)
            s = self.ssm(each, inner).unflatten(0, (-1, p, p))  # (b, p, p, h)
            flow.end += [t.unflatten(0, (-1, p * p)) for t in inner.end]
            return s.permute(0, 3, 1, 2)
        assert flow.lengths is not None
        lengths = flow.lengths[:, None].expand(-1, p * p).flatten()
        each = outer.permute(0, 3, 4, 1, 2).flatten(0, 2)  # (b p p, l, h)
        s = self.ssm(each, Flow(lengths=lengths)).unflatten(0, (-1, p, p))  # (b, p, p, l, h)
        return s.permute(0, 3, 4, 1, 2)


class Matched(nn.Module):
    """[e1, e2, e1 * e2, e1 - e2] -> one hidden GELU layer -> logits."""

    def __init__(self, hidden: nn.Module, out: nn.Module) -> None:
        super().__init__()
        self.hidden, self.out = hidden, out

    def forward(self, e1: Tensor, e2: Tensor, flow: Flow) -> Tensor:
        both = torch.cat([e1, e2, e1 * e2, e1 - e2], -1)
        y: Tensor = self.out(nn.functional.gelu(self.hidden(both, flow)), flow)
        return y
