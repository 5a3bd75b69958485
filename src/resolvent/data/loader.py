"""Batches determined by a seed, on the device: the same samples in the same order on every run, from any step on.

    loader = Loader(task.train, 256, seed=0, device="cuda", augment=task.augment)
    for samples in loader.batches(start=1000): ...

A split that fits is moved to the device once. Otherwise a second thread gathers and sends the next batch while the
device works on this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.data.augment import CropFlip
from resolvent.data.order import fold, shuffle
from resolvent.data.task import Split

SHARE = 0.4  # of the device's free memory that a split may take


@dataclass(frozen=True, eq=False)
class Samples:
    """One batch as a model reads it; `index` (b,) are positions in the split, `epoch` counts from 0.

    Examples:
        >>> loader = rv.data.Loader(rv.load_task("digits").train, batch_size=4)
        >>> batch = loader.at(0)
        >>> batch.x.shape, batch.y.shape, batch.epoch
        (torch.Size([4, 64, 1]), torch.Size([4]), 0)
    """

    x: Tensor
    y: Tensor
    lengths: Tensor | None
    index: Tensor
    epoch: int


class Loader:
    """Batch number `step` of a run. An epoch visits every sample once; its last batch may be smaller.

    Examples:
        >>> loader = rv.data.Loader(rv.load_task("digits").train, batch_size=32)
        >>> loader.at(0).x.shape
        torch.Size([32, 64, 1])
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int = 0,
        *,
        device: torch.device | str | None = None,
        augment: CropFlip | None = None,
    ) -> None:
        if batch_size < 1 or not len(split):
            raise ValueError(f"Loader: expected samples and a batch size of 1 or more, got {len(split)}, {batch_size}.")
        self.device = split.x.device if device is None else torch.device(device)
        on_disk = split.mapped and self.device.type == "cpu"
        self.resident = fits(split, self.device) and not on_disk  # the whole split is on the device
        self.split = split.to(self.device) if self.resident else split
        self.batch_size, self.seed, self.augment = batch_size, seed, augment
        self._epoch, self._order = -1, torch.zeros(0, dtype=torch.long)
        self._ahead: tuple[int, Future[Samples]] | None = None
        self._worker: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-len(self.split) // self.batch_size)

    def at(self, step: int) -> Samples:
        """Any step, in any order; the next one is prepared in the background if the split is not on the device."""
        if self.resident:
            return self._gather(*self._index(step))
        if self._ahead is not None and self._ahead[0] == step:
            samples = self._ahead[1].result()
        else:
            samples = self._gather(*self._index(step))
        self._worker = self._worker or ThreadPoolExecutor(1, "resolvent-loader")
        self._ahead = (step + 1, self._worker.submit(self._gather, *self._index(step + 1)))
        return samples

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Samples]:
        """From step `start` on, endless or up to `stop`."""
        step = start
        while stop is None or step < stop:
            yield self.at(step)
            step += 1

    def _index(self, step: int) -> tuple[Tensor, int]:
        epoch, place = divmod(step, len(self))
        if epoch != self._epoch:
            order = torch.from_numpy(shuffle(len(self.split), self.seed, epoch))
            self._epoch, self._order = epoch, order.to(self.split.x.device)
        return self._order[place * self.batch_size : (place + 1) * self.batch_size], epoch

    def _gather(self, index: Tensor, epoch: int) -> Samples:
        part = self.split.gather(index)
        x, y, index = (self._send(value) for value in (part.x, part.y, index))
        x = replace(part, x=x).unpack().x
        if self.augment is not None:
            x = self.augment(x, index, fold(self.seed, epoch))
        lengths = None if part.lengths is None else self._send(part.lengths)
        return Samples(x, y, lengths, index, epoch)

    def _send(self, value: Tensor) -> Tensor:
        return value if self.resident else send_to(value, self.device)


def send_to(value: Tensor, device: torch.device) -> Tensor:
    """Samples on the device, through pinned memory where that is faster."""
    if value.device == device:
        return value
    pinned = value.pin_memory() if device.type == "cuda" and value.device.type == "cpu" else value
    return pinned.to(device, non_blocking=True)


def fits(split: Split, device: torch.device) -> bool:
    """Whether the split, as stored, takes at most SHARE of the device's free memory."""
    if device.type != "cuda" or split.x.device.type == device.type:
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return sum(t.numel() * t.element_size() for t in (split.x, split.y)) <= SHARE * free
