"""Attention against sums written out, torch's MultiheadAttention, Hugging Face's RecurrentGemma, and itself."""

from __future__ import annotations

import math
from typing import Any

import agreement
import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers.attention import Attention
from resolvent.layers.attention.attend import (
    Reach,
    RelativeBias,
    attend,
    attend_cached,
    attend_reference,
    cache_spec,
    laplace,
    rotate,
)
from resolvent.layers.contract import map_spec

F64 = torch.float64
KINDS = [
    pytest.param({}, id="full"),
    pytest.param({"heads": 4, "kv_heads": 1, "kind": "local", "size": 3, "position": "half-rotary"}, id="griffin"),
    pytest.param({"kind": "chunked", "size": 4, "position": "relative", "activation": "laplace"}, id="mega"),
    pytest.param({"heads": 4, "kv_heads": 2, "kind": "chunked", "size": 5}, id="chunked"),
    pytest.param({"heads": 2, "size": 5, "position": "relative"}, id="relative"),
    pytest.param({"heads": 2, "head_dim": 3, "kind": "local", "size": 1, "position": "none"}, id="itself"),
]


def built(settings: dict[str, Any], **more: Any) -> Attention:
    return agreement.jittered(Attention(settings.get("heads", 1) * 4, **settings, **more))


def sees(layer: Attention, q: int, k: int) -> bool:
    kind, size, causal = layer.reach.kind, layer.reach.size, layer.reach.causal
    near = {"full": True, "chunked": size and q // size == k // size, "local": size and abs(q - k) < size}[kind]
    return bool(near) and (k <= q or not causal)


def by_hand(layer: Attention, x: Tensor) -> Tensor:
    """One query, one head and one key at a time; rotary positions as complex numbers."""
    h, e, r = layer.heads, layer.head_dim, layer.rotary_dims

    def part(W: Tensor, u: Tensor, head: int, at: int | None) -> Tensor:
        t = W[head * e : (head + 1) * e] @ u
        if at is None or not r:
            return t
        rate = torch.tensor([10_000.0 ** (-2 * m / r) for m in range(r // 2)], dtype=F64)
        turned = torch.complex(t[: r // 2], t[r // 2 : r]) * torch.exp(1j * at * rate)
        return torch.cat([turned.real, turned.imag, t[r:]])

    y = torch.zeros_like(x)
    for b, seq in enumerate(x):
        for i in range(len(seq)):
            mixed = []
            for head in range(h):
                group = head // (h // layer.kv_heads)
                q = part(layer.W_q, seq[i], head, i)
                keys = [j for j in range(len(seq)) if sees(layer, i, j)]
                scores = torch.stack([q @ part(layer.W_k, seq[j], group, j) for j in keys])
                scores = scores / (math.sqrt(e) if layer.activation == "softmax" else len(keys))
                if layer.relative is not None:
                    far = layer.relative.size - 1
                    shift = 0 if layer.reach.causal else far
                    scores = scores + torch.stack(
                        [layer.relative.table[head, max(-far, min(far, i - j)) + shift] for j in keys]
                    )
                if layer.activation == "softmax":
                    w = torch.exp(scores) / torch.exp(scores).sum()
                else:
                    w = torch.special.ndtr((scores - math.sqrt(0.5)) / math.sqrt(0.25 / math.pi))
                mixed.append(sum(w[n] * part(layer.W_v, seq[j], group, None) for n, j in enumerate(keys)))
            y[b, i] = layer.W_o @ torch.cat(mixed) + layer.b_o
    return y


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_equals_the_sums_by_hand(settings: dict[str, Any], bidirectional: bool) -> None:
    layer = built(settings, bidirectional=bidirectional)
    for l in (1, 11):
        x = agreement.inputs(layer, 2, l)
        with torch.no_grad():
            want = by_hand(layer, x)
            assert_close(layer(x)[0], want)
        assert_close(layer(x)[0], want)  # recorded for gradients: the written-out path instead of the fused one


@pytest.mark.parametrize("settings", KINDS)
def test_streams_from_any_cut(settings: dict[str, Any]) -> None:
    layer = built(settings)
    for l in (1, 13):
        agreement.check_streams(layer, agreement.inputs(layer, 2, l))
    agreement.check_lengths(layer, agreement.inputs(layer))
    if layer.reach.size != 1:
        agreement.check_causal(layer, agreement.inputs(layer))


@pytest.mark.parametrize("settings", KINDS)
def test_lengths_when_both_sides_are_seen(settings: dict[str, Any]) -> None:
    agreement.check_lengths(built(settings, bidirectional=True), agreement.inputs(built(settings)))


@pytest.mark.parametrize("settings", KINDS)
def test_padded_batches_follow_one_another(settings: dict[str, Any]) -> None:
    """Two padded calls in a row equal the joined short sequences: each cache ends at its own sequence's end."""
    layer = built(settings)
    x, z = agreement.inputs(layer, 3, 7), agreement.inputs(layer, 3, 6)
    n, m = torch.tensor([7, 1, 3]), torch.tensor([2, 6, 1])
    _, state = layer(x, None, n)
    y, state = layer(z, state, m)
    last, _ = layer(z[:, :2], state)
    for i in range(3):
        joined = torch.cat([x[i, : n[i]], z[i, : m[i]], z[i, :2]])[None]
        want = layer(joined)[0][0]
        assert_close(y[i, : m[i]], want[n[i] : n[i] + m[i]])
        assert_close(last[i], want[-2:])


def test_long_windows_are_cut_into_blocks() -> None:
    """Beyond one block of queries the result is that of one dense mask, causal or not."""
    for settings in ({"kind": "local", "size": 9}, {"kind": "chunked", "size": 200}):
        for both in (False, True):
            layer = agreement.jittered(Attention(4, bidirectional=both, **settings))
            x = agreement.inputs(layer, 1, 500)
            q, k, v = (layer._heads(x, W) for W in (layer.W_q, layer.W_k, layer.W_v))
            at = torch.arange(500)[None]
            q, k = rotate(q, at, 4), rotate(k, at, 4)
            t = torch.arange(500)
            near = t[:, None] // 200 == t // 200 if settings["kind"] == "chunked" else (t[:, None] - t).abs() < 9
            mask = near if both else near & (t <= t[:, None])
            want = attend_reference(q, k, v, mask, None, "softmax")[:, 0] @ layer.W_o.T + layer.b_o
            assert_close(layer(x)[0], want)


def test_multihead_attention_of_torch() -> None:
    layer = built({"heads": 3, "position": "none"})
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=F64)
    theirs.in_proj_weight.data.copy_(torch.cat([layer.W_q, layer.W_k, layer.W_v]))
    theirs.out_proj.weight.data.copy_(layer.W_o)
    theirs.out_proj.bias.data.copy_(layer.b_o)
    x = agreement.inputs(layer).requires_grad_()
    future = torch.ones(13, 13, dtype=torch.bool).triu(1)
    want, _ = theirs(x, x, x, attn_mask=future)
    got, _ = layer(x)
    assert_close(got, want)
    weight = torch.randn_like(got)
    mine = torch.autograd.grad((got * weight).sum(), [x, layer.W_q, layer.W_k, layer.W_v, layer.W_o, layer.b_o])
    other = torch.autograd.grad(
        (want * weight).sum(), [x, theirs.in_proj_weight, theirs.out_proj.weight, theirs.out_proj.bias]
    )
    assert_close([mine[0], torch.cat(mine[1:4]), *mine[4:]], list(other))


def test_recurrent_gemma_of_hugging_face() -> None:
    """Local multi-query attention with half of each head turned, the same weights; softmax there runs in float32."""
    gemma = pytest.importorskip(
        "transformers.models.recurrent_gemma.modeling_recurrent_gemma", reason="needs resolvent[parity]"
    )
    config = pytest.importorskip("transformers").RecurrentGemmaConfig(
        hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_hidden_layers=1, vocab_size=11
    )
    config._attn_implementation = "eager"
    theirs = gemma.RecurrentGemmaAttention(config, layer_idx=0)
    layer = Attention(16, heads=2, kv_heads=1, kind="local", size=6, position="half-rotary")
    pairs = [
        (layer.W_q, theirs.q_proj.weight),
        (layer.W_k, theirs.k_proj.weight),
        (layer.W_v, theirs.v_proj.weight),
        (layer.W_o, theirs.o_proj.weight),
        (layer.b_o, theirs.o_proj.bias),
    ]
    with torch.no_grad():
        for mine, other in pairs:
            mine.copy_(other)
    x = torch.randn(2, 15, 16, requires_grad=True)
    t = torch.arange(15)
    hidden = torch.where((t <= t[:, None]) & (t > t[:, None] - 6), 0.0, -math.inf)[None, None]
    want = theirs(x, position_ids=t[None], attention_mask=hidden)[0]
    got, _ = layer(x)
    assert_close(got, want)
    weight = torch.randn_like(want)
    slopes = [
        torch.autograd.grad((y * weight).sum(), [x, *(pair[k] for pair in pairs)]) for k, y in enumerate((got, want))
    ]
    assert_close(list(slopes[0]), list(slopes[1]), gradient=True)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_one_chunk_of_the_whole_length_is_no_chunk(bidirectional: bool) -> None:
    whole = built({"heads": 2}, bidirectional=bidirectional)
    chunk = built({"heads": 2, "kind": "chunked", "size": 13}, bidirectional=bidirectional)
    chunk.load_state_dict(whole.state_dict())
    x = agreement.inputs(whole)
    assert_close(chunk(x)[0], whole(x)[0])


def test_chunks_know_nothing_of_one_another() -> None:
    layer = built({"kind": "chunked", "size": 4})
    x = agreement.inputs(layer, 2, 11)
    pieces = [layer(x[:, i : i + 4])[0] for i in (0, 4, 8)]  # rotary angles differ, products of them do not
    assert_close(layer(x)[0], torch.cat(pieces, 1))


@pytest.mark.parametrize("settings", KINDS[:3])
def test_transforms(settings: dict[str, Any]) -> None:
    layer = built(settings)
    agreement.check_transforms(layer, agreement.inputs(layer))


def test_transforms_when_both_sides_are_seen() -> None:
    layer = built({"kind": "local", "size": 3, "position": "relative"}, bidirectional=True)
    agreement.check_transforms(layer, agreement.inputs(layer))


def test_derivatives_outside_of_vmap() -> None:
    """grad of grad of vmap: the queries inside record nothing themselves, and still no fused kernel may be taken."""
    layer = built({"heads": 2}).requires_grad_(False)
    many = agreement.inputs(layer, 6, 5).reshape(2, 3, 5, 8)

    def value(x: Tensor, run: Any) -> Tensor:
        return run(x).sin().sum()

    def slope_size(x: Tensor, run: Any) -> Tensor:
        return torch.func.grad(value)(x, run).square().sum()

    batched, looped = torch.vmap(lambda x: layer(x)[0]), lambda x: torch.stack([layer(one)[0] for one in x])
    assert_close(torch.func.grad(slope_size)(many, batched), torch.func.grad(slope_size)(many, looped))


@pytest.mark.parametrize("settings", KINDS[:3])
def test_precision(settings: dict[str, Any]) -> None:
    layer = built(settings)
    agreement.check_precision(layer, agreement.inputs(layer))
    agreement.check_survives_init(layer)


def test_fused_equals_written_out() -> None:
    torch.manual_seed(1)
    q, k, v = (
        torch.randn(2, 6, 9, 4, dtype=F64),
        torch.randn(2, 3, 12, 4, dtype=F64),
        torch.randn(2, 3, 12, 7, dtype=F64),
    )
    mask = torch.rand(2, 1, 9, 12) > 0.4
    mask[..., 0] = True
    bias = torch.randn(6, 9, 12, dtype=F64)
    for m in (None, mask):
        for b in (None, bias):
            want = attend(q, k, v, m, b, fused=False)
            assert want.shape == (2, 6, 9, 7)
            assert_close(attend(q, k, v, m, b, fused=True), want)
            assert_close(attend(q, k, v, m, b), want)
    x = q.clone().requires_grad_()
    slopes = [torch.autograd.grad(attend(x, k, v, mask, bias, fused=f).sin().sum(), x)[0] for f in (True, False)]
    assert_close(*slopes)


def test_laplace_function() -> None:
    """mu and sigma are such that value and slope equal those of relu(x)^2 at x = 1 / sqrt(2); the tails are flat."""
    x = torch.tensor([math.sqrt(0.5)], dtype=F64, requires_grad=True)
    y = laplace(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert_close(y, torch.tensor([0.5], dtype=F64))  # relu(x)^2 = 1/2 there
    assert_close(slope, torch.tensor([math.sqrt(2)], dtype=F64))  # and its slope 2 x
    assert_close(laplace(torch.tensor([-9.0, 9.0], dtype=F64)), torch.tensor([0.0, 1.0], dtype=F64))


def test_rotary_products_depend_on_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=F64)
    at = torch.tensor([[0, 3, 1_000_000]])
    product = rotate(q.expand(1, 1, 3, 8), at + 5, 8) * rotate(k.expand(1, 1, 3, 8), at, 8)
    assert_close(product.sum(-1)[..., 1:], product.sum(-1)[..., :1].expand(1, 1, 2))
    assert torch.equal(rotate(q, torch.zeros(1, 1), 4), q)
    far = rotate(q.float(), torch.tensor([[1_000_000]]), 8)
    assert_close(far, rotate(q, torch.tensor([[1_000_000]]), 8), dtype=torch.float32)


def test_streaming_a_callers_own_queries() -> None:
    """What a gated attention block needs: one head, wide values, a bias by distance, Laplace, chunks, any cut."""
    reach = Reach("chunked", 4)
    bias = RelativeBias(4).double()
    q, k = torch.randn(2, 2, 1, 10, 3, dtype=F64)
    v = torch.randn(2, 1, 10, 7, dtype=F64)

    def score(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, distance: Tensor) -> Tensor:
        return attend(q, k, v, mask, bias(distance), "laplace")

    spec = cache_spec(reach, 2, 1, (3, 7), F64)
    start = map_spec(spec, lambda s: torch.zeros(s.shape, dtype=s.dtype))
    whole, end = attend_cached(q, k, v, start, reach, None, score)
    cache, out = start, []
    for a, b in ((0, 3), (3, 5), (5, 9), (9, 10)):
        y, cache = attend_cached(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], cache, reach, None, score)
        out.append(y)
    assert_close([torch.cat(out, 2), cache], [whole, end])
    assert_close(attend_cached(q, k, v, start, reach)[0][:, :, 0], v[:, :, 0])  # the first query sees itself alone


def test_state_sizes() -> None:
    x = torch.randn(2, 40, 8)
    local = Attention(8, kind="local", size=6)
    assert local(x)[1]["k"].shape == (2, 1, 5, 8)
    assert Attention(8, kind="chunked", size=7)(x)[1]["v"].shape == (2, 1, 6, 8)
    assert Attention(8, heads=4, kv_heads=2)(x)[1]["k"].shape == (2, 2, 40, 2)
    assert Attention(8, kind="local").reach.size == 1024
    assert local.initial_state(3)["seen"].tolist() == [0, 0, 0]


def test_large_scores_stay_finite() -> None:
    layer = Attention(4)
    x = (1e4 * torch.randn(2, 9, 4)).requires_grad_()
    y, _ = layer(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert bool(torch.isfinite(y).all())
    assert bool(torch.isfinite(slope).all())


def test_optimiser_groups() -> None:
    assert agreement.undecayed(Attention(4)) == {"b_o"}
    assert agreement.undecayed(Attention(4, size=3, position="relative")) == {"b_o", "relative.table"}


def test_bad_input() -> None:
    wrongs: list[dict[str, Any]] = [
        {"heads": 3},
        {"heads": 0},
        {"heads": 4, "kv_heads": 3},
        {"kind": "sparse"},
        {"kind": "chunked"},
        {"kind": "local", "size": 0},
        {"position": "absolute"},
        {"position": "relative"},
        {"head_dim": 1},
        {"head_dim": 3, "position": "half-rotary"},
        {"activation": "relu"},
        {"activation": "laplace", "fused": True},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"Attention|Reach"):
            Attention(8, **wrong)
    layer = Attention(8, kind="local", size=6)
    with pytest.raises(ValueError, match="state"):
        layer(torch.zeros(2, 5, 8), Attention(8, kind="local", size=5).initial_state(2))
    with pytest.raises(ValueError, match="fused"):
        attend(*torch.zeros(3, 1, 1, 2, 4), activation="laplace", fused=True)
    with pytest.raises(ValueError, match="bidirectional"):
        Attention(8, bidirectional=True).initial_state(2)
