"""Out of memory is told with the batch size that would fit; here a device is imagined."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resolvent.attacks import Victim, capacity, cross_entropy
from resolvent.attacks.capacity import TooMany, within_memory

ROOM = 1000


class Device:
    """`room` bytes, `each` for a sample."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each: int, room: int = ROOM) -> None:
        self.each, self.room, self.seen, self.peak = each, room, list[int](), 0
        monkeypatch.setattr(capacity, "let_go", lambda: None)
        monkeypatch.setattr(capacity, "STREAMS", 0)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.peak)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (self.room, self.room))
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)

    def run(self, count: int) -> int:
        self.seen.append(count)
        if count * self.each > self.room:
            raise torch.OutOfMemoryError(f"Tried to allocate {count * self.each} bytes.\nmore")
        self.peak = count * self.each
        return count


@pytest.mark.parametrize(
    ("each", "count", "fits"), [(10, 256, 90), (1, 1024, 900), (300, 4, 3), (600, 7, 1), (501, 2, 1)]
)
def test_the_error_names_a_size_that_fits(each: int, count: int, fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, each)
    with pytest.raises(
        TooMany, match=f"fit: {count} samples at once do not fit in memory; set batch_size={fits},"
    ) as raised:
        within_memory("fit", count, device.run)
    assert raised.value.fits == fits
    assert "Tried to allocate" in str(raised.value)
    assert "more" not in str(raised.value)
    assert isinstance(raised.value, torch.OutOfMemoryError)
    assert within_memory("fit", fits, device.run) == fits


@pytest.mark.parametrize("words", ["CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "CUDA error: out of memory"])
def test_what_libraries_say_counts_too(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, 10)

    def run(count: int) -> int:
        try:
            return device.run(count)
        except torch.OutOfMemoryError:
            raise RuntimeError(words) from None

    with pytest.raises(TooMany, match="set batch_size=90,"):
        within_memory("fit", 256, run)


def test_other_errors_are_not_taken_for_it() -> None:
    def run(count: int) -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        within_memory("fit", 256, run)


def test_room_is_left_for_the_streams_of_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, 10)
    monkeypatch.setattr(capacity, "STREAMS", 100)
    with pytest.raises(TooMany) as raised:
        within_memory("fit", 256, device.run)
    assert raised.value.fits == 80


def test_a_share_of_the_device_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be held to a part of the device; what others could still take is not room."""
    device = Device(monkeypatch, 10, room=250)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (ROOM, ROOM))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 0.25)
    with pytest.raises(TooMany) as raised:
        within_memory("fit", 64, device.run)
    assert raised.value.fits == 22


def test_what_grows_faster_than_the_batch_is_tried_before_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, 1)
    square = lambda n: device.run(n * n)  # noqa: E731
    with pytest.raises(TooMany) as raised:
        within_memory("fit", 40, square)
    assert raised.value.fits**2 <= ROOM
    assert square(raised.value.fits)


def test_not_even_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooMany, match="not even one sample fits") as raised:
        within_memory("fit", 8, Device(monkeypatch, ROOM + 1).run)
    assert raised.value.fits == 0


def test_shares_of_several_processes_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooMany, match=r"fit: 1024 samples .* set batch_size=360,"):
        within_memory("fit", 256, Device(monkeypatch, 10).run, share=4)


def test_one_measurement_where_two_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, 10)
    with pytest.raises(TooMany, match="fit: 256"):
        within_memory("fit", 256, lambda n: within_memory("attack", n, device.run))
    assert len(device.seen) < 8


def test_what_fits_is_run_once_and_other_errors_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, 1)
    assert within_memory("fit", 5, device.run) == 5
    assert device.seen == [5]

    def wrong(count: int) -> int:
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        within_memory("fit", 5, wrong)


class Heavy(nn.Module):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device, self.linear = device, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.device.run(len(x))
        y: Tensor = self.linear(x)
        return y


@pytest.mark.parametrize("gradient", [False, True])
def test_attacks_tell(gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    victim: Any = Victim(Heavy(Device(monkeypatch, 10)))
    x, y = torch.rand(150, 3), torch.zeros(150, dtype=torch.int64)
    with pytest.raises(TooMany, match=r"attack: 150 samples .* batch_size=90,"):
        victim.value_and_grad(x, cross_entropy, y) if gradient else victim.forward(x)
    small = Victim(victim.f, 90)
    assert small.forward(x).shape == (150, 2)
