"""Graphs that an operator makes on its way forth and needs on its way back.

Compilers call an operator below autograd, so that what it computes on the way would be computed again for gradients.
On a CPU it is kept instead: a further output, the `mark`, stands for it, and the way back finds it by the mark's
memory. What was kept goes when it has been used or when its mark is gone. Numbers never depend on it: a mark that was
copied, a second way back and other devices have none, and the operator computes again.

A compiler gives the memory of an operator's inputs and outputs to others as soon as nobody reads them. A graph that is
kept holds copies of inputs, and outputs that it shares are handed to the way back, too.
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
    """Whether gradients of these may be asked for; of an exported program they are not."""
    if not torch.is_grad_enabled() or is_exporting():
        return False
    return any(p.requires_grad for p in parameters)


def fake_mark(like: Tensor) -> Tensor:
    return like.new_empty(1, dtype=torch.uint8)


def mark(like: Tensor, graph: Any = None) -> Tensor:
    """The mark of what is to be kept; None is nothing."""
    made = torch.zeros(1, dtype=torch.uint8, device=like.device)
    if graph is not None and use_count is not None:
        let_go()
        with _lock:
            _kept[made.data_ptr()] = made.untyped_storage(), graph
    return made


def let_go() -> None:
    """Give up what was kept for marks that nobody else has: no way back will come."""
    if use_count is not None:
        with _lock:
            for place in [place for place, (held, _) in _kept.items() if use_count(held._cdata) == 1]:
                del _kept[place]


def take(mark: Tensor) -> tuple[Any, bool] | None:
    """What was kept for this mark, and whether another way back may come; None where there is nothing."""
    if mark.device.type != "cpu":
        return None
    again = bool(torch._C._autograd._get_current_graph_task_keep_graph())
    with _lock:
        found = _kept.get(mark.data_ptr()) if again else _kept.pop(mark.data_ptr(), None)
    return None if found is None else (found[1], again)
