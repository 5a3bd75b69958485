"""The last map of a model, which certificates read beside its parts."""

from __future__ import annotations

from torch import Tensor, nn

from resolvent.lowering.describe import describe
from resolvent.lowering.program import Linear


def last_weight(head: nn.Module) -> Tensor | None:
    """The linear map at the end, as it is used: with it pairs of logits are bounded by the distance of their rows.

    None where the last module is none of ours.
    """
    match describe(head.out).chain:  # type: ignore[arg-type]
        case (Linear() as out,):
            return out.weight.detach()
    return None
