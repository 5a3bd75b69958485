"""The last linear map of a model, which certificates use in addition to its parts."""

from __future__ import annotations

from torch import Tensor, nn

from resolvent.lowering.describe import describe
from resolvent.lowering.program import Linear


def last_weight(head: nn.Module) -> Tensor | None:
    """The last linear map, as used: it bounds differences of two logits by the distance of their rows.

    None where the last module is not one of ours.
    """
    match describe(head.out).chain:  # type: ignore[arg-type]
        case (Linear() as out,):
            return out.weight.detach()
    return None
