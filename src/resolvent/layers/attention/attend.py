"""Attention on given queries, keys and values: in one call, or streaming with an explicit key-value cache. Positions
enter by rotary angles on queries and keys, or by a learned bias for each distance.

Shape letters: b batch, h heads, g key-value heads (g divides h), i queries, j keys, e width of a query, w of a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from resolvent.layers import checks
from resolvent.layers.contract import Spec, map_spec
from resolvent.runtime.transforms import is_traced, lacks_float64
from resolvent.usage.numbers import check_choice

Cache = dict[str, Tensor]  # k (b, g, s, e), v (b, g, s, w), seen (b,): slot j holds position seen - s + j
BLOCK = 128  # queries processed at once where the reach is short


@dataclass(frozen=True)
class Reach:
    """Which keys a query sees.

    kind     "full": all of them; "chunked": those of its own chunk of `size` positions, counted from position 0;
             "local": those less than `size` positions away (itself included).
    causal   only itself and what came before.
    """

    kind: str = "full"
    size: int | None = None
    causal: bool = True

    def __post_init__(self) -> None:
        check_choice("Reach", "kind", self.kind, ("full", "chunked", "local"))
        if self.kind != "full":
            if self.size is None:
                raise ValueError(f"Reach: kind={self.kind!r} needs a size, the number of positions in reach; got None.")
            checks.check_positive("Reach", size=self.size)

    @property
    def span(self) -> int | None:
        """The largest distance in reach, hence how many past keys a cache must keep. None: unlimited."""
        return None if self.kind == "full" or self.size is None else self.size - 1

    def visible(self, q_at: Tensor, k_at: Tensor, end: Tensor | None = None) -> Tensor:
        """For positions q_at (b, i) and k_at (b, j), negative where a cache slot is empty: True where seen (b, i, j).

        `end` (b,) hides keys from that position on. A query always sees itself, so no row is empty.
        """
        q, k = q_at[:, :, None], k_at[:, None, :]
        seen = k >= 0
        if end is not None:
            seen = (seen & (k < end[:, None, None])) | (q == k)
        if self.causal:
            seen = seen & (k <= q)
        if self.size is not None and self.kind == "chunked":
            seen = seen & (k // self.size == q // self.size)
        elif self.size is not None and self.kind == "local":
            seen = seen & ((q - k).abs() < self.size)
        return seen.expand(-1, q_at.shape[1], -1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str = "softmax",
    fused: bool | None = None,
) -> Tensor:
    """q (b, h, i, e), k (b, g, j, e), v (b, g, j, w) -> (b, h, i, w).

    mask         True where a query sees a key, broadcasting to (b, h, i, j); every query must see one key at least.
    bias         added to the scores, broadcasts to (b, h, i, j).
    activation   "softmax" of q k^T / sqrt(e) + bias; or "laplace" (Mega): the normal distribution function of
                 each score q k^T / (keys seen) + bias, not normalised.
    fused        use torch's fused kernel, which has no second derivatives and no forward mode. None uses it only where
                 no derivative is being recorded; True always; False never. Softmax only.
    """
    check_choice("attend", "activation", activation, ("softmax", "laplace"))
    if fused is None:
        fused = activation == "softmax" and not _needs_derivative([t for t in (q, k, v, bias) if t is not None])
    if not fused:
        return attend_reference(q, k, v, mask, bias, activation)
    if activation != "softmax":
        raise ValueError(f"attend: only softmax has a fused kernel, got {activation!r}; leave fused at None or False.")
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=bool(q.shape[1] != k.shape[1]))


def attend_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, activation: str
) -> Tensor:
    """The same, written out: every score is materialised, every derivative exists."""
    b, h, i, e = q.shape
    if is_traced(q):  # merging heads and queries into one axis would specialise a symbolic length
        k, v = (t.repeat_interleave(h // t.shape[1], 1) for t in (k, v))
    g, j = k.shape[1:3]
    scores = (q.reshape(b, g, h // g * i, e) @ k.mT).reshape(b, h, i, j)  # the heads of a group share its keys
    if activation == "softmax":
        scores = scores * e**-0.5 if bias is None else scores * e**-0.5 + bias
        scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        weights = torch.softmax(scores, -1)
    else:
        count = j if mask is None else mask.sum(-1, keepdim=True)
        weights = laplace(scores / count if bias is None else scores / count + bias)
        weights = weights if mask is None else weights.masked_fill(~mask, 0)
    return (weights.reshape(b, g, h // g * i, j) @ v).reshape(b, h, i, v.shape[-1])


def _needs_derivative(tensors: list[Tensor]) -> bool:
    """Whether a derivative may be taken of these: by autograd, in forward mode, or by a transform of torch.func."""
    if any(t.requires_grad for t in tensors) or forward_ad._current_level >= 0:
        return True
    if torch.compiler.is_compiling():  # wrappers are not visible while tracing; the tracer handles autograd itself
        return False
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)


def laplace(x: Tensor) -> Tensor:
    """Mega's attention function (Ma et al. 2023, eq. 16): Phi((x - mu) / sigma), mu^2 = 1/2, sigma^2 = 1/(4 pi)."""
    mu, sigma = math.sqrt(0.5), math.sqrt(0.25 / math.pi)
    return 0.5 * (1 + torch.erf((x - mu) / (sigma * math.sqrt(2))))


def cache_spec(reach: Reach, batch: int, heads: int, widths: tuple[int, int], dtype: torch.dtype) -> dict[str, Spec]:
    """The spec of a cache for `batch` sequences with keys and values of these widths; zeros are an empty cache."""
    k, v = (Spec((batch, heads, reach.span, width), dtype) for width in widths)
    return {"k": k, "v": v, "seen": Spec((batch,), torch.int64)}


def empty_cache(reach: Reach, batch: int, heads: int, widths: tuple[int, int], like: Tensor) -> Cache:
    """Zeros in the dtype of `like`; no slots where attention sees both sides, which the sequence itself holds."""
    spec = cache_spec(reach if reach.causal else Reach(), batch, heads, widths, like.dtype)
    cache: Cache = map_spec(spec, lambda s: like.new_zeros([n or 0 for n in s.shape], dtype=s.dtype))
    return cache


def attend_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Cache,
    reach: Reach,
    lengths: Tensor | None = None,
    score: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Cache]:
    """New positions q (b, h, l, e), k (b, g, l, e), v (b, g, l, w) attend to the cache and to one another.

    Returns the output (b, h, l, w) and the cache after each sequence's own end; attention to both sides has none, and
    returns the one given. `score(q, k, v, mask, distance)` is
    the attention of a block of queries: mask (b, 1, i, j), distance (i, j) = position of query - position of key;
    `attend` when None. Work and memory are linear in l where the reach is short.
    """
    l, s = q.shape[2], cache["k"].shape[2]
    k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)  # (b, g, s + l, .)
    at = cache["seen"][:, None] + torch.arange(-s, l, device=q.device)  # (b, s + l) positions
    end = None if reach.causal or lengths is None else cache["seen"] + lengths
    out = []
    for first, last in _blocks(l, reach):
        low = 0 if reach.span is None or first == 0 else max(0, s + first - reach.span)
        high = s + l if last is l else s + last if reach.causal else min(s + l, s + last + (reach.span or 0))
        mask = reach.visible(at[:, s + first : s + last], at[:, low:high], end)[:, None]  # (b, 1, i, j)
        parts = q[:, :, first:last], k[:, :, low:high], v[:, :, low:high], mask
        out.append(attend(*parts) if score is None else score(*parts, _distance((first + s, last + s), (low, high), q)))
    after = _tail(k, v, cache["seen"], reach, (s, l), lengths) if reach.causal else cache
    return torch.cat(out, 2), after


def _blocks(l: int, reach: Reach) -> list[tuple[int, int]]:
    """Ranges of queries: a single one for a full reach, otherwise long enough that overlap at most doubles the work.

    In a traced pass a single one: the number of ranges must not depend on a symbolic length.
    """
    if reach.span is None or is_traced():
        return [(0, l)]
    block = max(BLOCK, reach.span + 1)
    return [(first, min(first + block, l)) for first in range(0, l, block)]


def _distance(queries: tuple[int, int], keys: tuple[int, int], like: Tensor) -> Tensor:
    return torch.arange(*queries, device=like.device)[:, None] - torch.arange(*keys, device=like.device)


def _tail(k: Tensor, v: Tensor, seen: Tensor, reach: Reach, sizes: tuple[int, int], lengths: Tensor | None) -> Cache:
    """The last keys and values before each sequence's end, right-aligned; slots of negative position are empty."""
    s, l = sizes
    keep = s + l if reach.span is None else reach.span
    if lengths is None:
        return {"k": k[:, :, s + l - keep :], "v": v[:, :, s + l - keep :], "seen": seen + l}
    index = (s - keep + lengths[:, None] + torch.arange(keep, device=k.device)).clamp(min=0)  # (b, keep)
    index = index[:, None, :, None]
    k, v = (t.gather(2, index.expand(-1, t.shape[1], -1, t.shape[3])) for t in (k, v))
    return {"k": k, "v": v, "seen": seen + lengths}


def rotate(x: Tensor, at: Tensor, dims: int, wavelength: float = 10_000.0) -> Tensor:
    """Rotary encoding of the first `dims` (even) entries of x (b, h, l, e) at positions `at` (b, l).

    Entries m and m + dims / 2 are rotated by the angle at * wavelength^(-2 m / dims): a product of a query and a
    key then depends only on their distance. Angles are computed in float64: in float32 position 100,000 is off by 1e-2.
    """
    half = dims // 2
    precise = torch.float32 if lacks_float64(x.device) else torch.float64
    rate = wavelength ** (-torch.arange(half, dtype=precise, device=x.device) / half)  # (dims / 2,)
    angle = (at.to(precise)[..., None] * rate)[:, None]  # (b, 1, l, dims / 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second, rest = x.split([half, half, x.shape[-1] - dims], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class RelativeBias(nn.Module):
    """Mega's simple relative bias: one number per head and distance below `size`; larger distances share the last.

    A causal bias has `size` numbers per head, the other 2 size - 1. Initialised normal with std .02.
    """

    def __init__(self, size: int, heads: int = 1, *, causal: bool = True) -> None:
        super().__init__()
        checks.check_positive("RelativeBias", size=size, heads=heads)
        self.size, self.causal = size, causal
        self.table = nn.Parameter(torch.randn(heads, size if causal else 2 * size - 1) * 0.02)  # (h, distances)

    def forward(self, distance: Tensor) -> Tensor:
        """distance (i, j), query minus key -> bias (h, i, j); a causal table's values for the future are arbitrary."""
        far = self.size - 1
        index = distance.clamp(0, far) if self.causal else distance.clamp(-far, far) + far
        return self.table[:, index]
