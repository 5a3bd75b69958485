"""Several processes at one run: each takes its rows of every batch, and all hold the same weights after every step.

The gradient of the mean over the whole batch is the sum of the processes' parts, so one sum over all of them makes a
step equal that of a single process with the same global batch, whatever their number. Only the first one writes files.
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
    """This process is number `rank` of `size`."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """This process's rows of a batch of `count`: a contiguous share, at most one row larger than another's."""
        whole, more = divmod(count, self.size)
        start = self.rank * whole + min(self.rank, more)
        return slice(start, start + whole + (self.rank < more))

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in one message for each dtype."""
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
        """A parameter that this process's rows did not reach still takes part: as zero."""
        if self.size == 1:
            return
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.add([p.grad for p in model.parameters() if p.grad is not None])

    def share(self, model: nn.Module) -> None:
        """Everybody takes the first process's weights."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def gather(self, value: T) -> list[T]:
        """Everybody's value, in the order of ranks, for everybody."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Until all are here: what the first process wrote is then there for everybody."""
        if self.size > 1:
            dist.barrier()


def current_group() -> ProcessGroup:
    """The processes that torch.distributed knows of; a single one when it was not started."""
    if dist.is_available() and dist.is_initialized():
        return ProcessGroup(dist.get_rank(), dist.get_world_size())
    return ProcessGroup()


@contextmanager
def join_torchrun(device: str) -> Iterator[ProcessGroup]:
    """Join the other processes when torchrun started this one."""
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
    """Whether this process speaks for all that torchrun started; true without it."""
    return int(os.environ.get("RANK", "0")) == 0
