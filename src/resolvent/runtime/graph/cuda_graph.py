"""Work as a CUDA graph: its kernels are recorded once, and launched in one call from then on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch

one_at_a_time = threading.RLock()  # one capture at a time, in any thread
enqueueing = threading.RLock()  # buffers are shared: copy in, replay and copy out must not be interleaved


class CudaGraph:
    """Records `work` on one stream, into memory that recordings share for values that do not outlast a replay; `apart`,
    into its own memory, where values persist whatever is replayed meanwhile."""

    def __init__(self, work: Callable[[], None], device: torch.device, apart: bool = False) -> None:
        self.device = device
        with one_at_a_time, torch.cuda.device(device), torch.autograd.set_multithreading_enabled(False):
            self._record(work, torch.cuda.graph_pool_handle() if apart else _pool(device))

    def _record(self, work: Callable[[], None], pool: Any) -> None:
        self.graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        numbers, before = generator.clone_state(), torch.cuda.current_stream()
        own = _stream(self.device)
        try:  # other threads, such as a loader's that pins memory, may continue meanwhile
            with torch.cuda.graph(self.graph, stream=own, pool=pool, capture_error_mode="thread_local"):
                work()
        except BaseException:  # from any code
            torch.cuda.set_stream(before)  # a failed capture leaves neither its stream nor its memory pool
            generator.graphsafe_set_state(numbers)  # the present one still considers itself captured
            _leave(pool)
            raise

    def replay(self) -> None:
        with enqueueing:
            if self.device.index is None or self.device.index == torch._C._cuda_getDevice():
                return self.graph.replay()
            with torch.cuda.device(self.device):
                self.graph.replay()

    @staticmethod
    def aside(work: Callable[[], None], device: torch.device) -> None:
        """Run on the stream of recordings: handles, workspaces and kernels are created outside the graph."""
        with torch.cuda.device(device), torch.autograd.set_multithreading_enabled(False):  # a capture is one thread
            before, side = torch.cuda.current_stream(), _stream(device)
            side.wait_stream(before)
            with torch.cuda.stream(side):
                work()
            before.wait_stream(side)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@cache
def _pool(device: torch.device) -> Any:
    return torch.cuda.graph_pool_handle()


def _leave(pool: Any) -> None:
    """Stop allocating from the pool; the next recording has its own."""
    with suppress(RuntimeError):  # already left
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    _pool.cache_clear()
    _stream.cache_clear()


GRAPHS: dict[str, Any] = {"cuda": CudaGraph}  # by device type
