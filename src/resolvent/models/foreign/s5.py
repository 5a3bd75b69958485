"""S5: the flax parameters of the published code, and the layer of s5-pytorch."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from resolvent.layers.s5 import S5
from resolvent.models.foreign.fill import Take, Weights, fill, take
from resolvent.models.foreign.flax_stack import Halves, import_stack
from resolvent.models.layer_config import S5Config


def import_s5(
    weights: Weights,
    *,
    discretisation: Literal["zoh", "bilinear"] = "zoh",
    conjugate: bool = True,
    clip: bool = False,
    **facts: Any,
) -> nn.Module:
    """One S5SSM (names Lambda_re, B, ...) as a layer, or a ClassificationModel as a model that returns logits, whose
    log_softmax is the original's output.

    conjugate, clip   the published code's conj_sym and clip_eigs
    prenorm, activation, pooling, norm_eps   of the whole model: see `flax_stack.import_stack`
    """
    whole = "decoder.kernel" in weights
    before = "encoder.layers_0.seq." if whole else ""
    p, d, _ = weights.shape(f"{before}B", 3)
    both = f"{before}C2" in weights or weights.shape(f"{before}C", 3)[1] == 2 * p
    config = S5Config(
        d_state=2 * p if conjugate else p,
        conjugate=conjugate,
        discretisation=discretisation,
        clip=clip,
        bidirectional=both,
    )
    if whole:
        return import_stack(weights, config, lambda own, other: _table(weights, own, other, both), **facts)
    _refuse(facts)
    settings = {name: getattr(config, name) for name in ("conjugate", "discretisation", "clip", "bidirectional")}
    return fill(S5(d, config.d_state, **settings), weights, _table(weights, "", "", both))


def import_s5_pytorch(weights: Weights, *, discretisation: Literal["zoh", "bilinear"] = "zoh") -> S5:
    """The layer `S5` of s5-pytorch (names seq.Lambda, seq.B, ...), which keeps all states and reads Re(C x)."""
    weights = weights.stripped("s5.seq.", "seq.")
    (p,) = weights.shape("Lambda", 1)
    d = weights.shape("D", 1)[0]
    both = weights.shape("C", 2)[1] == 2 * p
    layer = S5(d, p, conjugate=False, clip=False, discretisation=discretisation, bidirectional=both)
    table = {
        "lam": take("Lambda", change=torch.view_as_real),
        "log_step": take("log_step", change=lambda t: t.reshape(-1)),
        "B": take("B", change=_pairs),
        "D": take("D"),
    }
    return fill(layer, weights, table | _read_out("C", _pairs, p, both))


def _table(weights: Weights, own: str, other: str, both: bool) -> dict[str, Take]:
    p = weights.shape(f"{other}Lambda_re", 1)[0]
    table = {
        f"{own}lam": take(f"{other}Lambda_re", f"{other}Lambda_im", change=lambda re, im: torch.stack([re, im], -1)),
        f"{own}log_step": take(f"{other}log_step", change=lambda t: t[:, 0]),
        f"{own}B": take(f"{other}B"),
        f"{own}D": take(f"{other}D"),
    }
    if both and f"{other}C2" in weights:
        return table | {f"{own}C": take(f"{other}C1"), f"{own}C_back": take(f"{other}C2")}
    return table | _read_out(f"{other}C", lambda t: t, p, both, own)


def _read_out(name: str, change: Halves, p: int, both: bool, own: str = "") -> dict[str, Take]:
    """C (h, p), or (h, 2p) with the second direction after the first."""
    if not both:
        return {f"{own}C": take(name, change=change)}
    return {
        f"{own}C": take(name, change=lambda t: change(t)[:, :p]),
        f"{own}C_back": take(name, change=lambda t: change(t)[:, p:]),
    }


def _pairs(z: Tensor) -> Tensor:
    return torch.view_as_real(z) if z.is_complex() else z


def _refuse(facts: dict[str, Any]) -> None:
    if facts:
        raise ValueError(f"import_weights: {', '.join(facts)} belong to a whole model; these are weights of one layer.")
