"""The recordings of one model under attack, and whether recording is allowed."""

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

QUIET = 30  # passes before checks start: short attacks, such as a training step's, have no overhead
TRUST = 3  # consecutive passes without side effects before anything is recorded
DOUBTS = 3  # passes with side effects (the first may fill tables) after which nothing is recorded
STEPS = 16  # distinct batch sizes between one power of two and the next
T = TypeVar("T")
W = TypeVar("W", bound="Work")
log = logging.getLogger("resolvent")
_refused: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_open: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Work(Protocol):
    """Recordable work: it reads and writes `state`, of which `inputs` may have any values."""

    graph: Any
    state: list[Tensor]
    inputs: list[Tensor]

    def work(self) -> None: ...


class Recorder:
    """Records work that contains passes of a victim's module, unless the module must run uncaptured.

    A failure is logged once, and the module is not recorded from then on.
    """

    def __init__(self, victim: Victim, module: nn.Module) -> None:
        self.victim, self.module = victim, module
        self.off = module in _refused
        self.kept: dict[Any, dict[int, Any]] = {}  # recorded passes, by key and size
        self.steps: dict[Any, Any] = {}  # recorded steps of attacks
        self.calls: dict[Any, int] = {}
        self.trust, self._doubts, self._passes = 0, 0, 0
        self._base: list[Any] | None = None  # the module's state when recorded
        self._device, self._thread = torch.device("cpu"), threading.get_ident()
        _open.add(self)

    def is_ready(self, x: Tensor) -> bool:
        """Whether work on tensors like x may be recorded now."""
        if self.off or x.device.type not in GRAPHS or is_watched(x, None):
            return False
        if threading.get_ident() != self._thread:  # another thread would overwrite the first one's buffers
            return False
        return not (torch.is_autocast_enabled(x.device.type) or torch.is_inference_mode_enabled())

    def watch(self, run: Callable[[], T], x: Tensor) -> T:
        """run(), an ordinary pass on x, checking it for side effects without an extra pass."""
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
        """The built work with its graph (see `replay.record`); None if it cannot be recorded."""
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
        except Exception as error:  # of the user's model: reported by the ordinary pass
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            full = isinstance(error, RuntimeError) and lacks_memory(error)
        finally:
            self.victim.forwards, self.victim.backwards = counts
        self._refuse(why)
        if full:  # the pass itself may fit, once the error's frames release their tensors
            let_go()
        return None

    def look_again(self) -> None:
        """Drop the recordings if the module has changed since they were made."""
        if self._base is not None and not (self._is_plain(self._device) and read(self.module) == self._base):
            self.forget()

    def _is_plain(self, device: torch.device) -> bool:
        try:
            return is_plain(self.module, device)
        except Exception:  # user classes may raise anything
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
        """Release the recordings' memory."""
        self.kept, self.steps, self.calls, self._base = {}, {}, {}, None
        self.trust = 0

    def give_up(self) -> None:
        self.off = True
        self.forget()


def pad(count: int, most: int | None) -> int:
    """A batch size for this many samples: at most a sixteenth larger, so that there are few recordings."""
    step = max(1 << (count.bit_length() - 1), STEPS) // STEPS
    padded = -(-count // step) * step
    return padded if most is None else max(min(padded, most), count)


@keeper
def _give_up() -> bool:
    """On lack of memory, drop all recordings; their models run without them from now on."""
    full = [own for own in _open if own.kept or own.steps]
    for own in full:
        own.give_up()
    if full:
        log.warning("out of memory: the recorded passes of a model under attack are dropped")
    return bool(full)
