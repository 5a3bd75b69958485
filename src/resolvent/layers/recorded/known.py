"""Which recordings there are: of each module some signatures, of each signature one or several recordings."""

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

PATIENCE = 3  # calls that run as ever before one is recorded: shapes that change at every call never are
KINDS = 3  # signatures of one module whose recordings are kept: training, evaluation, and a last short batch
COPIES = 4  # recordings of one signature: for passes that all wait for their way back
SEEN = 16  # signatures of one module that are remembered, recorded or not
STALE = 64  # calls of a module after which a recording that none of them used makes room for another
log = logging.getLogger("resolvent")
keeping = threading.RLock()  # loops may run in several threads
_known: weakref.WeakKeyDictionary[nn.Module, Known] = weakref.WeakKeyDictionary()
tickets: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # layers, as compiled graphs name them
_numbers = count()


def issue(layer: nn.Module) -> Tensor:
    """A ticket by which nodes find this layer, as long as there is one."""
    number = next(_numbers)
    tickets[number] = layer
    with torch.inference_mode(False):
        return torch.tensor(number, device="cpu")


class Kind:
    """What is known of one signature: its calls in a row, its recordings, whether it cannot be recorded."""

    def __init__(self) -> None:
        self.calls, self.used, self.refused, self.recordings = 0, 0, False, list[Recording]()
        self.ends = False  # whether gradients of the last state come back, too

    def give_up(self) -> None:
        self.refused, self.recordings = True, []

    def widen(self) -> None:
        """Gradients of the last state have come: from now on they are recorded."""
        self.ends, self.recordings = True, []

    def take(self) -> tuple[Recording, Lease] | None:
        """A recording that nobody waits for, and the right to use it; None where there is none."""
        with keeping:
            own = next((r for r in self.recordings if r.is_free()), None)
            return None if own is None else (own, own.take())

    def is_due(self) -> bool:
        """Whether this call is to be recorded: after some in a row, as long as there are not too many."""
        self.calls += 1
        return self.calls > PATIENCE and len(self.recordings) < COPIES


class Known:
    """The signatures of one module, the longest unused first."""

    def __init__(self) -> None:
        self.kinds, self.calls, self.is_off = dict[Any, Kind](), 0, False

    def find(self, signature: Any) -> Kind:
        self.calls += 1
        kind = self.kinds.pop(signature, None)
        if kind is None:
            for other in self.kinds.values():
                other.calls = 0  # not in a row
            kind = Kind()
        kind.used = self.calls
        self.kinds[signature] = kind
        while len(self.kinds) > SEEN:
            del self.kinds[next(name for name, other in self.kinds.items() if not other.recordings)]
        return kind

    def has_room(self, kind: Kind) -> bool:
        """Whether a recording of this kind may be added; those that are of no use any more go first."""
        others = [other for other in self.kinds.values() if other.recordings and other is not kind]
        if len(others) >= KINDS and others[0].used + STALE < self.calls:
            others.pop(0).recordings = []
        return len(others) < KINDS


def find_kind(module: nn.Module, signature: Any) -> tuple[Known, Kind] | None:
    """What is known of the module and of this signature; None where it is not to be recorded any more."""
    with keeping:
        known = _known.get(module)
        if known is None:
            known = _known[module] = Known()
        if known.is_off:
            return None
        kind = known.find(signature)
        return None if kind.refused else (known, kind)


def forget_recordings(module: nn.Module | None = None) -> bool:
    """Give up the recorded passes of all layers on a GPU, or of those in `module`; whether there were any.

    What they keep between steps is free again then (`torch.cuda.empty_cache()` hands it back to the device), apart from
    passes that still wait for their `backward()`. Layers that go on in the same shapes are recorded anew.

    Examples:
        >>> rv.layers.forget_recordings()
        False
    """
    with keeping:
        named = list(_known) if module is None else [own for own in module.modules() if own in _known]
        kinds = [kind for own in named for kind in _known.pop(own).kinds.values()]
    there = any(kind.recordings for kind in kinds)
    for kind in kinds:
        kind.recordings = []  # a pass on its way still knows its kind
    return there


def forget_own(module: nn.Module) -> None:
    """Give up what was recorded of this module itself, whose parameters move."""
    with keeping:
        _known.pop(module, None)


def are_kept() -> bool:
    """Whether there is any recording."""
    with keeping:
        return any(kind.recordings for known in _known.values() for kind in known.kinds.values())


@keeper
def give_up() -> bool:
    """Memory has run out beside recordings: they go, and their modules run without from now on."""
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
