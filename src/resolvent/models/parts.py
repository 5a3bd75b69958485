"""A whole model as a chain of parts: input, tower, pooling, head. What certificates are computed from."""

from __future__ import annotations

import math

from torch import Tensor, nn

from resolvent.blocks.parts import PRODUCT, chain, parts_of
from resolvent.blocks.spectral import Spectral
from resolvent.blocks.state_pool import StatePool
from resolvent.models.certified_head import LipschitzReadout
from resolvent.models.head import Match, Readout
from resolvent.models.pool import PoolKind
from resolvent.models.tower import Tower
from resolvent.ssm.part import Part

TOKENS = "tokens have no distance in L2: bounds hold for what follows, from_embedding(e), in the space of embeddings"


def model_parts(tower: Tower, head: Readout | LipschitzReadout, length: int | None) -> list[Part]:
    """`length` (the shortest sequence that the bound is for) sharpens the mean's constant, 1 / sqrt(length)."""
    pooled = [pool_part(head.pooling, length)] if isinstance(head, Readout) else _readout_pool(head, length)
    return [*tower_parts(tower), *pooled, *chain((head.hidden, "head.hidden"), (head.out, "head.out"))]


def last_weight(head: Readout | LipschitzReadout) -> Tensor:
    """The linear map at the end, as it is used: with it pairs of logits are bounded by the distance of their rows."""
    out = head.out
    return (out.matrix() if isinstance(out, Spectral) else out.weight).detach()


def two_tower_parts(tower: Tower, pooling: PoolKind, head: Match, length: int | None) -> list[Part]:
    match = Part("head", "gate", None, reason=f"Match multiplies two documents: {PRODUCT}")
    return [*tower_parts(tower), pool_part(pooling, length), match]


def tower_parts(tower: Tower) -> list[Part]:
    entry = [Part("tower.entry", "embedding", None, reason=TOKENS)] if isinstance(tower.entry, nn.Embedding) else None
    first = parts_of(tower.entry, "tower.entry") if entry is None else entry
    rest = chain(
        (tower.input_norm, "tower.input_norm"), (tower.body, "tower.body"), (tower.final_norm, "tower.final_norm")
    )
    return [*first, *rest]


def pool_part(kind: PoolKind, length: int | None, name: str = "head.pool") -> Part:
    """From sequences in L2 to a vector: |x_l| and |max_t x_t| are at most |x|; |mean_t x_t| <= |x| / sqrt(l)."""
    if kind == "mean":
        least = 1 if length is None else length
        return Part(name, "pool", 1 / math.sqrt(least), reason=f"mean over at least {least} steps")
    return Part(name, "pool", 1.0, reason="every step by itself" if kind == "none" else kind)


def _readout_pool(head: LipschitzReadout, length: int | None) -> list[Part]:
    if isinstance(head.pool, StatePool):
        return [Part("head.pool", "pool", head.pool.gain(), reason="state")]
    assert head.pooling != "state"
    return [pool_part(head.pooling, length)]
