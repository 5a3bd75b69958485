"""Launches that remember which machine code their arguments need; the kernel and its GPU are stand-ins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from resolvent.runtime import launch
from resolvent.runtime.launch import Quick


class Place:
    """Stands for a tensor on a GPU."""

    def get_device(self) -> int:
        return 0


class Made:
    """Machine code: notes what it is launched with."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, launches: list[Any]) -> None:
        self.launches = launches

    def run(self, *given: Any) -> None:
        self.launches.append(("direct", given[:3], given[3], given[9:]))


class Kernel:
    """Triton's own way."""

    arg_names = ("X", "n", "BLOCK")

    def __init__(self, launches: list[Any]) -> None:
        self.launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launched(*args: Any, **meta: Any) -> Made:
            self.launches.append(("triton", grid, args, meta))
            return Made(self.launches)

        return launched


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    monkeypatch.setattr(launch, "_direct", [True])
    return []


def test_like_arguments_go_straight_to_the_machine_code(launches: list[Any]) -> None:
    kernel, x = Quick(Kernel(launches)), Place()
    for n in (5, 5, 6, 5):
        kernel[(4, 2)](x, n, BLOCK=16, num_warps=1)
    assert [how for how, *_ in launches] == ["triton", "direct", "triton", "direct"]
    assert launches[1] == ("direct", (4, 2, 1), 7, (x, 5, 16))


def test_other_options_are_other_machine_code(launches: list[Any]) -> None:
    kernel, x = Quick(Kernel(launches)), Place()
    for block, warps in ((16, 1), (32, 1), (32, 2)):
        kernel[(1,)](x, 5, BLOCK=block, num_warps=warps)
    assert [how for how, *_ in launches] == ["triton"] * 3


def test_tensors_on_a_cpu_are_left_to_triton(launches: list[Any]) -> None:
    kernel = Quick(Kernel(launches))
    for _ in range(2):
        kernel[(1,)](torch.zeros(3), 5, BLOCK=16)
    assert [how for how, *_ in launches] == ["triton"] * 2


def test_a_launcher_of_another_version_is_given_up(launches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Made, *given: Any) -> None:
        raise TypeError("takes other arguments")

    monkeypatch.setattr(Made, "run", refuse)
    kernel, x = Quick(Kernel(launches)), Place()
    for _ in range(3):
        kernel[(1,)](x, 5, BLOCK=16)
    assert [how for how, *_ in launches] == ["triton"] * 3


def test_lengths_without_end_do_not_fill_the_memory(launches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MOST", 4)
    kernel, x = Quick(Kernel(launches)), Place()
    for n in range(20):
        kernel[(1,)](x, n, BLOCK=16)
    assert len(kernel.known) <= 4
