"""How a CUDA graph is recorded, with torch's own calls replaced: where its memory lies, and what a failure leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from resolvent.runtime.graph import cuda_graph

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What torch is asked for, in order; a capture that fails keeps its stream, as torch's does."""
    calls: list[Any] = []
    numbers, stands = count(), {"stream": "before"}

    @contextmanager
    def graph(_: Any, stream: Any, pool: Any, capture_error_mode: str) -> Iterator[None]:
        calls.append((pool, capture_error_mode))
        stands["stream"] = stream
        yield
        stands["stream"] = "before"

    generator = SimpleNamespace(clone_state=lambda: "numbers", graphsafe_set_state=calls.append)
    fakes = {
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: calls.append("replayed")),
        "graph": graph,
        "device": nullcontext,
        "default_generators": [generator],
        "current_device": lambda: 0,
        "current_stream": lambda *_: stands["stream"],
        "Stream": lambda _: next(numbers),
        "set_stream": lambda own: stands.update(stream=own),
        "graph_pool_handle": lambda: f"pool {next(numbers)}",
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    leave = lambda _, pool: calls.append(f"left {pool}")  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", leave, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    cuda_graph._pool.cache_clear()
    cuda_graph._stream.cache_clear()
    yield calls
    cuda_graph._pool.cache_clear()
    cuda_graph._stream.cache_clear()


def test_what_outlasts_a_replay_has_memory_of_its_own(asked: list[Any]) -> None:
    for apart in (False, True, False, True):
        cuda_graph.CudaGraph(lambda: None, DEVICE, apart)
    pools = [pool for pool, _ in asked]
    assert pools[0] == pools[2]
    assert len(set(pools)) == 3
    assert {mode for _, mode in asked} == {"thread_local"}  # a loader's thread may pin memory meanwhile


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_no_trace(error: type[BaseException], apart: bool, asked: list[Any]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(error):
        cuda_graph.CudaGraph(fail, DEVICE, apart)
    (pool, _), *rest = asked
    assert rest == ["numbers", f"left {pool}"]
    assert torch.cuda.current_stream() == "before"
    cuda_graph.CudaGraph(lambda: None, DEVICE, apart)
    assert asked[-1][0] != pool


def test_work_runs_in_one_thread(asked: list[Any]) -> None:
    """Its way back among it: a capture is of one thread."""
    seen: list[bool] = []
    cuda_graph.CudaGraph(lambda: seen.append(torch._C._is_multithreading_enabled()), DEVICE)
    assert seen == [False]
    assert torch._C._is_multithreading_enabled()


def test_a_replay_does_not_come_between_another_and_its_copies(asked: list[Any]) -> None:
    made = cuda_graph.CudaGraph(lambda: None, DEVICE)
    with cuda_graph.enqueueing:
        made.replay()  # its own thread's
        other = threading.Thread(target=made.replay)
        other.start()
        other.join(0.1)
        assert asked[1:] == ["replayed"]
    other.join()
    assert asked[1:] == ["replayed"] * 2
