"""Every test runs from the same seed, and memory that nobody wrote reads as NaN instead of as lucky zeros."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes at once: threads of each would wait for one another's cores
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that tests start

if not torch.cuda.is_available():  # kernels then run in Triton's interpreter; it reads this when it is first imported
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _poisoned_memory() -> Iterator[None]:
    """Fill what torch.empty, empty_like, empty_strided and new_empty return: a read before a write then shows."""
    patch = pytest.MonkeyPatch()
    for name in ("empty", "empty_like", "empty_strided"):
        patch.setattr(torch, name, _poisoned(getattr(torch, name)))
    patch.setattr(torch.Tensor, "new_empty", _poisoned(torch.Tensor.new_empty))
    yield
    patch.undo()


def _poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        if make.__name__ == "empty" and not torch.compiler.is_compiling():  # `with torch.device` knows torch's own only
            kwargs.setdefault("device", torch.get_default_device())
        memory = make(*args, **kwargs)
        if torch.compiler.is_compiling() or memory.requires_grad or memory.is_meta:
            return memory
        if memory.is_floating_point() or memory.is_complex():
            return memory.fill_(float("nan"))
        return memory if memory.dtype == torch.bool else memory.fill_(torch.iinfo(memory.dtype).max)

    return poisoned
