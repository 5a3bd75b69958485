"""Work as a CUDA graph: its kernels are named once, and sent to the device in one call from then on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch

one_at_a_time = threading.RLock()  # whatever is recorded, by whichever thread


class CudaGraph:
    """Records `work` on one stream, into memory that all recordings share for what does not outlast a replay."""

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        with one_at_a_time:
            self._record(work, device)

    def _record(self, work: Callable[[], None], device: torch.device) -> None:
        self.graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        numbers, before = generator.clone_state(), torch.cuda.current_stream(device)
        own = _stream(device), _pool(device)
        try:
            with torch.cuda.graph(self.graph, stream=own[0], pool=own[1], capture_error_mode="thread_local"):
                work()
        except BaseException:  # of anybody's code
            torch.cuda.set_stream(before)  # a capture that fails leaves neither its stream nor its memory
            generator.graphsafe_set_state(numbers)  # its own still believes that it is being recorded
            _leave_pool(device)
            raise

    def replay(self) -> None:
        self.graph.replay()

    @staticmethod
    def aside(work: Callable[[], None], device: torch.device) -> None:
        """Run on the stream of recordings: handles, workspaces and kernels come into being outside of a graph."""
        side = _stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream(device).wait_stream(side)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@cache
def _pool(device: torch.device) -> Any:
    return torch.cuda.graph_pool_handle()


def _leave_pool(device: torch.device) -> None:
    """Allocations go elsewhere again; the next recording has memory of its own."""
    with suppress(RuntimeError):  # it has been left
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), _pool(device))
    _pool.cache_clear()
    _stream.cache_clear()


GRAPHS: dict[str, Any] = {"cuda": CudaGraph}  # by the type of a device
