"""Attention in an exported form: all scores of a sequence; in a stream, a window of past keys and values."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.deployment.flow import Flow, keep
from resolvent.layers.attention.attend import attend_reference, rotate


class Attending(nn.Module):
    """`layers.Attention`, its projections as buffers. A stream needs a window: kind "local"."""

    W_q: Tensor
    W_k: Tensor
    W_v: Tensor
    W_o: Tensor
    b_o: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.reach, self.activation, self.turns = layer.reach, layer.activation, layer.rotary_dims
        self.e, self.groups = layer.head_dim, layer.kv_heads
        keep(self, W_q=layer.W_q, W_k=layer.W_k, W_v=layer.W_v, W_o=layer.W_o, b_o=layer.b_o)
        self.relative = layer.relative
        window = 0 if self.reach.kind != "local" else self.reach.size - 1
        self.streams = self.reach.kind == "local" and self.reach.causal
        self.shapes = ((self.groups, window, self.e), (self.groups, window, self.e), (1,)) if self.streams else ()

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        whole = x[:, None] if flow.steps else x
        at = torch.arange(whole.shape[1])[None].expand(x.shape[0], -1)  # (b, l)
        k_past, v_past, seen = flow.take(3) if flow.steps else (None, None, None)
        if seen is not None:
            at = at + seen.to(torch.int64)
        q, k, v = (self._heads(whole, W) for W in (self.W_q, self.W_k, self.W_v))
        if self.turns:
            q, k = rotate(q, at, self.turns), rotate(k, at, self.turns)
        keys = at
        if k_past is not None and v_past is not None and seen is not None:
            k, v = torch.cat([k_past, k], 2), torch.cat([v_past, v], 2)
            keys = seen.to(torch.int64) + torch.arange(-k_past.shape[2], 1)
            flow.end += [k[:, :, 1:], v[:, :, 1:], seen + 1]
        mask = self.reach.visible(at, keys, None if self.reach.causal else flow.lengths)[:, None]
        bias = None if self.relative is None else self.relative(at[0][:, None] - keys[0])
        y = attend_reference(q, k, v, mask, bias, self.activation).transpose(1, 2).flatten(2)
        y = F.linear(y, self.W_o, self.b_o)
        return y[:, 0] if flow.steps else y

    def _heads(self, x: Tensor, W: Tensor) -> Tensor:
        return F.linear(x, W).unflatten(-1, (-1, self.e)).transpose(1, 2)  # (b, heads, l, e)


class GatedAttending(nn.Module):
    """Mega's gated attention over whole sequences (eq. 7 to 15); `parts` are its norm, average, scale and maps."""

    gamma: Tensor
    beta: Tensor

    def __init__(self, block: Any, parts: dict[str, nn.Module], prenorm: bool) -> None:
        super().__init__()
        self.parts, self.prenorm = nn.ModuleDict(parts), prenorm
        self.reach, self.activation, self.relative = block.reach, block.attention, block.bias
        self.sizes = [block.d_model, block.z, block.hidden, block.d_model]
        keep(self, gamma=block.gamma, beta=block.beta)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        p = self.parts
        h = p["norm"](x, flow) if self.prenorm else x
        average = F.silu(p["scale"](p["average"](h, flow), flow))
        u, z, r, hx = p["base"](average, flow).split(self.sizes, -1)
        o = self._attended(F.silu(z), F.silu(p["value"](h, flow)), flow)
        new = F.silu(hx + p["leave"](F.silu(r) * o, flow))
        y = x + torch.sigmoid(u) * (new - x)
        return y if self.prenorm else p["norm"](y, flow)

    def _attended(self, z: Tensor, v: Tensor, flow: Flow) -> Tensor:
        q, k = (z[..., None, :] * self.gamma + self.beta).unbind(-2)  # (b, l, z)
        at = torch.arange(z.shape[1])[None].expand(z.shape[0], -1)
        mask = self.reach.visible(at, at, None if self.reach.causal else flow.lengths)[:, None]
        bias = self.relative(at[0][:, None] - at[0])
        return attend_reference(q[:, None], k[:, None], v[:, None], mask, bias, self.activation)[:, 0]
