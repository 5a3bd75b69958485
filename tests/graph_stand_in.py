"""What stands in for a CUDA graph on a CPU, so that recorded passes and steps run where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from resolvent.ops.library import recording
from resolvent.ops.step import recorded
from resolvent.runtime.transforms import as_run


class StandIn:
    """Runs the work again where a graph would be replayed: it too reads and writes at fixed places."""

    made = 0

    def __init__(self, work: Callable[[], None], device: torch.device, apart: bool = False) -> None:
        work()
        self.work = work
        StandIn.made += 1

    def replay(self) -> None:
        recorded._recording.append(True)  # a graph's replay calls no layer
        try:
            with as_run(), recording(), torch.autocast("cpu", enabled=False):  # nor asks what is on around it
                self.work()
        finally:
            recorded._recording.pop()

    @staticmethod
    def aside(work: Callable[[], None], device: torch.device) -> None:
        work()


WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default}


class Tape(TorchDispatchMode):
    """Repeats the operations of the work, and none of its Python: as a CUDA graph repeats kernels.

    What has to wait for the device, or gives a tensor whose size hangs on numbers, cannot be recorded. Code that writes
    memory without torch's operations is not seen.
    """

    made, replays = 0, 0

    def __init__(self, work: Callable[[], None], device: torch.device, apart: bool = False) -> None:
        super().__init__()
        self.lines: list[tuple[Any, Any, Any, list[Tensor]]] = []
        with self:
            work()
        Tape.made += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in WAITS or any(isinstance(i, Tensor) and i.dtype == torch.bool for i in _places(func, args)):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        found = func(*args, **kwargs)
        self.lines.append((func, args, kwargs, [t for t in tree_leaves(found) if isinstance(t, Tensor)]))
        return found

    def replay(self) -> None:
        Tape.replays += 1
        with torch.no_grad():
            for func, args, kwargs, places in self.lines:
                found = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]
                for place, new in zip(places, found, strict=True):
                    if place.data_ptr() != new.data_ptr():  # neither a view nor work in place
                        place.copy_(new)

    aside = StandIn.aside


class Crowded(Tape):
    """Recordings that share memory: what was recorded later lies where an earlier one works, and is gone after it."""

    shared: ClassVar[list[Crowded]] = []

    def __init__(self, work: Callable[[], None], device: torch.device, apart: bool = False) -> None:
        super().__init__(work, device)
        if not apart:
            Crowded.shared.append(self)

    def replay(self) -> None:
        super().replay()
        behind = Crowded.shared.index(self) + 1 if self in Crowded.shared else len(Crowded.shared)
        for later in Crowded.shared[behind:]:
            later.spoil()

    def spoil(self) -> None:
        """Overwrite all that was made in it."""
        outside, own = set[int](), set[int]()
        for _, args, kwargs, made in self.lines:
            outside |= {_memory(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)} - own
            own |= set(map(_memory, made)) - outside
        for t in (t for line in self.lines for t in line[3] if _memory(t) in own and t.is_floating_point()):
            t.data.fill_(torch.nan)


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _places(func: Any, args: Any) -> list[Any]:
    """The indices of a lookup: masks make a result of unknown size."""
    return list(args[1]) if func is torch.ops.aten.index.Tensor else []
