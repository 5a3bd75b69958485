"""Autograd graphs made by an operator's forward and kept for its backward.

Compilers call an operator below autograd, so that its forward would be recomputed for gradients. On a CPU the graph is
kept instead: an additional output, the `mark`, is its handle, and the backward finds it by the mark's memory. A kept
graph is freed after use or when its mark is gone. Results never depend on it: for a copied mark, a second backward or
other devices there is none, and the operator recomputes.

A compiler reuses the memory of an operator's inputs and outputs as soon as they are no longer read. A kept graph
therefore holds copies of inputs, and outputs that it shares are passed to the backward, too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.runtime.memory import use_count
from resolvent.runtime.transforms import is_exporting

_kept: dict[int, tuple[torch.UntypedStorage, Any]] = {}  # by the address of a mark
_lock = threading.Lock()


def may_learn(parameters: Sequence[Tensor]) -> bool:
    """Whether gradients of these may be requested; never in an exported program."""
    if not torch.is_grad_enabled() or is_exporting():
        return False
    return any(p.requires_grad for p in parameters)


def fake_mark(like: Tensor) -> Tensor:
    return like.new_empty(1, dtype=torch.uint8)


def mark(like: Tensor, graph: Any = None) -> Tensor:
    """The mark (handle) of a graph to keep; None keeps nothing."""
    made = torch.zeros(1, dtype=torch.uint8, device=like.device)
    if graph is not None and use_count is not None:
        let_go()
        with _lock:
            _kept[made.data_ptr()] = made.untyped_storage(), graph
    return made


def let_go() -> None:
    """Free graphs whose marks have no other references: no backward can come."""
    if use_count is not None:
        with _lock:
            for place in [place for place, (held, _) in _kept.items() if use_count(held._cdata) == 1]:
                del _kept[place]


def take(mark: Tensor) -> tuple[Any, bool] | None:
    """The graph kept for this mark, and whether another backward may come; None if there is none."""
    if mark.device.type != "cpu":
        return None
    again = bool(torch._C._autograd._get_current_graph_task_keep_graph())
    with _lock:
        found = _kept.get(mark.data_ptr()) if again else _kept.pop(mark.data_ptr(), None)
    return None if found is None else (found[1], again)
