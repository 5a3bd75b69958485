"""Data-parallel training in several processes: each takes its rows of every batch; weights stay identical.

The gradient of the mean over the whole batch is the sum of the processes' parts, so one all-reduce makes a step
equal to that of a single process with the same global batch. Only the first process writes files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessGroup:
    """This process has rank `rank` of `size`."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """This process's rows of a batch of `count`: a contiguous block, sizes differing by at most one."""
        whole, more = divmod(count, self.size)
        start = self.rank * whole + min(self.rank, more)
        return slice(start, start + whole + (self.rank < more))

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, with one all-reduce per dtype."""
        if self.size == 1:
            return
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for group in kinds.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            dist.all_reduce(flat)
            for tensor, part in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def add_gradients(self, model: nn.Module) -> None:
        """Sum gradients; a parameter without a gradient in this process contributes zeros."""
        if self.size == 1:
            return
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.add([p.grad for p in model.parameters() if p.grad is not None])

    def share(self, model: nn.Module) -> None:
        """Broadcast the first process's weights."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def gather(self, value: T) -> list[T]:
        """Every process's value, in rank order, to every process."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Barrier: files written by the first process are then visible to all."""
        if self.size > 1:
            dist.barrier()


def current_group() -> ProcessGroup:
    """The process group of torch.distributed; a single process if it is not initialised."""
    if dist.is_available() and dist.is_initialized():
        return ProcessGroup(dist.get_rank(), dist.get_world_size())
    return ProcessGroup()


@contextmanager
def join_torchrun(device: str) -> Iterator[ProcessGroup]:
    """Join the process group if torchrun started this process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield current_group()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=timedelta(hours=6))
    try:
        yield current_group()
    finally:
        dist.destroy_process_group()


def speaks() -> bool:
    """Whether this process reports for the group (rank 0); True without torchrun."""
    return int(os.environ.get("RANK", "0")) == 0
