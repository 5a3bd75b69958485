"""What is recorded of one model while it is attacked, and whether anything may be."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from resolvent.attacks.recorded.marks import is_plain, read, read_all, read_generators
from resolvent.attacks.recorded.replay import record
from resolvent.runtime.dispatch import push
from resolvent.runtime.graph.cuda_graph import GRAPHS, one_at_a_time
from resolvent.runtime.graph.watched import is_watched, recording
from resolvent.runtime.memory import keeper, lacks_memory, let_go

if TYPE_CHECKING:
    from resolvent.attacks.victim import Victim

QUIET = 30  # passes before any is looked at: short attacks, of a training step above all, pay for nothing
TRUST = 3  # ordinary passes in a row that leave nothing behind, before anything is recorded
DOUBTS = 3  # passes that do, after which nothing is: the first ones may fill tables
STEPS = 16  # sizes of batches that are told apart between one power of two and the next
T = TypeVar("T")
W = TypeVar("W", bound="Work")
log = logging.getLogger("resolvent")
_refused: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_open: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Work(Protocol):
    """What may be recorded: it reads and writes `state`, and `inputs`, some of that, may hold any numbers."""

    graph: Any
    state: list[Tensor]
    inputs: list[Tensor]

    def work(self) -> None: ...


class Recorder:
    """Records work that holds passes of a victim's module; none of it where the module must run as ever.

    What fails once is named once in the log, and the module is left alone from then on.
    """

    def __init__(self, victim: Victim, module: nn.Module) -> None:
        self.victim, self.module = victim, module
        self.off = module in _refused
        self.kept: dict[Any, dict[int, Any]] = {}  # recorded passes, by what they are of and by size
        self.steps: dict[Any, Any] = {}  # recorded steps of attacks
        self.calls: dict[Any, int] = {}
        self.trust, self._doubts, self._passes = 0, 0, 0
        self._base: list[Any] | None = None  # the module as it was recorded, and where
        self._device, self._thread = torch.device("cpu"), threading.get_ident()
        _open.add(self)

    def is_ready(self, x: Tensor) -> bool:
        """Whether work on tensors like x may be recorded here and now."""
        if self.off or x.device.type not in GRAPHS or is_watched(x, None):
            return False
        if threading.get_ident() != self._thread:  # whose samples would lie where those of the first one do
            return False
        return not (torch.is_autocast_enabled(x.device.type) or torch.is_inference_mode_enabled())

    def watch(self, run: Callable[[], T], x: Tensor) -> T:
        """run(), an ordinary pass on x; whether it leaves anything behind. No pass is made to find that out."""
        self._passes += 1
        if self._passes <= QUIET or self.trust >= TRUST or not self.is_ready(x):
            return run()
        if not self._is_plain(x.device):
            self.off = True
            return run()
        before = self._read_all(x.device)
        found = run()
        if before is not None and self._read_all(x.device) == before:
            self.trust += 1
            return found
        self.trust, self._doubts = 0, self._doubts + 1
        if self._doubts >= DOUBTS:
            self._refuse("its passes change something in it, or draw random numbers")
        return found

    def make(self, build: Callable[[], W]) -> W | None:
        """The work that is built, with a graph of it (see `replay.record`); None where there can be none."""
        if self.trust < TRUST:
            return None
        why, full = "", False
        counts = self.victim.forwards, self.victim.backwards
        try:
            with one_at_a_time, push(recording, True):
                own = build()
                own.graph = record(self.module, own.work, own.state, own.inputs)
            if self._base is None:
                self._device, self._base = own.state[0].device, read(self.module)
            return own
        except Exception as error:  # of somebody's model: what it is, it tells when it runs as ever
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            full = isinstance(error, RuntimeError) and lacks_memory(error)
        finally:
            self.victim.forwards, self.victim.backwards = counts
        self._refuse(why)
        if full:  # the pass itself may fit, once the frames of the error are gone and with them what they held
            let_go()
        return None

    def look_again(self) -> None:
        """Somebody may have changed the module since it was recorded: what was recorded goes then."""
        if self._base is not None and not (self._is_plain(self._device) and read(self.module) == self._base):
            self.forget()

    def _is_plain(self, device: torch.device) -> bool:
        try:
            return is_plain(self.module, device)
        except Exception:  # whatever somebody's class answers to a question
            return False

    def _read_all(self, device: torch.device) -> Any:
        try:
            return read_all(self.module), read_generators(device)
        except Exception:  # likewise, or another thread writes
            return None

    def _refuse(self, why: str) -> None:
        self.give_up()
        _refused.add(self.module)
        log.warning("a model under attack cannot be recorded as a CUDA graph, and runs without one: %s", why)

    def forget(self) -> None:
        """Give back what recordings hold."""
        self.kept, self.steps, self.calls, self._base = {}, {}, {}, None
        self.trust = 0

    def give_up(self) -> None:
        self.off = True
        self.forget()


def pad(count: int, most: int | None) -> int:
    """A batch size that serves this many samples: at most a sixteenth larger, so that recordings are few."""
    step = max(1 << (count.bit_length() - 1), STEPS) // STEPS
    padded = -(-count // step) * step
    return padded if most is None else max(min(padded, most), count)


@keeper
def _give_up() -> bool:
    """Memory has run out beside recordings: they go, and their models run without from now on."""
    full = [own for own in _open if own.kept or own.steps]
    for own in full:
        own.give_up()
    if full:
        log.warning("out of memory: the recorded passes of a model under attack are dropped")
    return bool(full)
