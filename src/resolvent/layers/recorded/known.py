"""The registry of recordings: several signatures per module, one or several recordings per signature."""

from __future__ import annotations

import logging
import threading
import weakref
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers.recorded.recording import Lease, Recording
from resolvent.runtime.memory import keeper

PATIENCE = 3  # ordinary calls before one is recorded: shapes that change at every call never are
KINDS = 3  # signatures of one module whose recordings are kept: training, evaluation, and a last short batch
COPIES = 4  # recordings of one signature: for passes that all still await their backward pass
SEEN = 16  # signatures of one module that are tracked, recorded or not
STALE = 64  # calls of a module after which an unused recording may be replaced by another signature's
log = logging.getLogger("resolvent")
keeping = threading.RLock()  # training loops may run in several threads
_known: weakref.WeakKeyDictionary[nn.Module, Known] = weakref.WeakKeyDictionary()
tickets: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by number, for compiled graphs
_numbers = count()


def issue(layer: nn.Module) -> Tensor:
    """Issue a ticket by which graph nodes find this layer during its lifetime."""
    number = next(_numbers)
    tickets[number] = layer
    with torch.inference_mode(False):
        return torch.tensor(number, device="cpu")


class Kind:
    """The record of one signature: its consecutive calls, its recordings, whether it cannot be recorded."""

    def __init__(self) -> None:
        self.calls, self.used, self.refused, self.recordings = 0, 0, False, list[Recording]()
        self.ends = False  # whether gradients of the last state arrive, too

    def give_up(self) -> None:
        self.refused, self.recordings = True, []

    def widen(self) -> None:
        """Gradients of the last state have arrived: recordings include them from now on."""
        self.ends, self.recordings = True, []

    def take(self) -> tuple[Recording, Lease] | None:
        """Take a free recording and a lease on it; None where there is none."""
        with keeping:
            own = next((r for r in self.recordings if r.is_free()), None)
            return None if own is None else (own, own.take())

    def is_due(self) -> bool:
        """Whether to record this call: after enough consecutive calls, while there are not too many recordings."""
        self.calls += 1
        return self.calls > PATIENCE and len(self.recordings) < COPIES


class Known:
    """The signatures of one module, least recently used first."""

    def __init__(self) -> None:
        self.kinds, self.calls, self.is_off = dict[Any, Kind](), 0, False

    def find(self, signature: Any) -> Kind:
        self.calls += 1
        kind = self.kinds.pop(signature, None)
        if kind is None:
            for other in self.kinds.values():
                other.calls = 0  # no longer consecutive
            kind = Kind()
        kind.used = self.calls
        self.kinds[signature] = kind
        while len(self.kinds) > SEEN:
            del self.kinds[next(name for name, other in self.kinds.items() if not other.recordings)]
        return kind

    def has_room(self, kind: Kind) -> bool:
        """Whether a recording of this kind may be added; stale ones are dropped first."""
        others = [other for other in self.kinds.values() if other.recordings and other is not kind]
        if len(others) >= KINDS and others[0].used + STALE < self.calls:
            others.pop(0).recordings = []
        return len(others) < KINDS


def find_kind(module: nn.Module, signature: Any) -> tuple[Known, Kind] | None:
    """The records of the module and of this signature; None where it is no longer recorded."""
    with keeping:
        known = _known.get(module)
        if known is None:
            known = _known[module] = Known()
        if known.is_off:
            return None
        kind = known.find(signature)
        return None if kind.refused else (known, kind)


def forget_recordings(module: nn.Module | None = None) -> bool:
    """Drop the recorded passes of all layers on a GPU, or of those in `module`; returns whether there were any.

    This frees the memory that they hold between steps (`torch.cuda.empty_cache()` returns it to the device), except
    that of passes still awaiting `backward()`. Layers that continue with the same shapes are recorded anew.

    Examples:
        >>> rv.layers.forget_recordings()
        False
    """
    with keeping:
        named = list(_known) if module is None else [own for own in module.modules() if own in _known]
        kinds = [kind for own in named for kind in _known.pop(own).kinds.values()]
    there = any(kind.recordings for kind in kinds)
    for kind in kinds:
        kind.recordings = []  # a pass in progress still refers to its kind
    return there


def forget_own(module: nn.Module) -> None:
    """Drop the recordings of this module itself, because its parameters move."""
    with keeping:
        _known.pop(module, None)


def are_kept() -> bool:
    """Whether any recording exists."""
    with keeping:
        return any(kind.recordings for known in _known.values() for kind in known.kinds.values())


@keeper
def give_up() -> bool:
    """On lack of memory, drop all recordings and stop recording their modules from now on."""
    with keeping:
        full = [known for known in _known.values() if any(kind.recordings for kind in known.kinds.values())]
        for known in full:
            known.is_off = True
            known.kinds.clear()
    if full:
        log.warning(
            "out of memory: recorded passes of layers are dropped, and these layers run without CUDA graphs from now "
            "on; a smaller batch, or rv.layers.forget_recordings() before a larger one, keeps them"
        )
    return bool(full)
