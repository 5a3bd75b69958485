"""Arrays that are handed out again: only those that nobody can see any more."""

from __future__ import annotations

import pytest
import torch

from resolvent.runtime import memory
from resolvent.scan import linear_scan


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE", 1 << 10)
    monkeypatch.setattr(memory, "HUGE", 1 << 12)
    monkeypatch.setattr(memory, "SPARE", 1 << 16)
    monkeypatch.setattr(memory, "spare", memory._Spare())


LIKE = torch.zeros(0)
SHAPE = (4, 512)


def test_what_is_free_is_used_again() -> None:
    x = memory.fresh(SHAPE, LIKE)
    where = x.data_ptr()
    del x
    y = memory.fresh((512, 2, 2), LIKE)
    assert y.data_ptr() == where
    assert y.shape == (512, 2, 2)
    assert y.is_contiguous()
    del y
    assert memory.fresh(SHAPE, torch.zeros(0, dtype=torch.int32)).dtype == torch.int32
    assert memory.fresh((4, 256), LIKE).data_ptr() != where  # another size


HOLDERS = {
    "itself": lambda x: x,
    "a view": lambda x: x[1:, ::2],
    "numpy": lambda x: x.numpy(),
    "its storage": lambda x: x.untyped_storage(),
    "a graph": lambda x: x * torch.ones(SHAPE, requires_grad=True),
    "shared": lambda x: x.share_memory_().data_ptr(),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS.keys())
def test_what_somebody_holds_is_left_alone(hold: object) -> None:
    x = memory.fresh(SHAPE, LIKE)
    held = hold(x)  # type: ignore[operator]
    where = x.data_ptr()
    del x
    assert memory.fresh(SHAPE, LIKE).data_ptr() != where
    del held


def test_no_more_is_kept_than_promised() -> None:
    arrays = [memory.fresh((4, 1024), LIKE) for _ in range(9)]  # 16 KiB each
    assert sum(s.nbytes() for s in memory.spare._kept) <= memory.SPARE
    del arrays
    memory.fresh((64, 1024), LIKE)  # 256 KiB: too large to keep
    assert sum(s.nbytes() for s in memory.spare._kept) <= memory.SPARE


def test_scans_do_not_disturb_each_other() -> None:
    a, b = torch.rand(2, 64, 16, requires_grad=True), torch.randn(2, 64, 16, requires_grad=True)
    first = linear_scan(a, b)
    kept, g = first.detach().clone(), torch.randn(2, 64, 16)
    want = torch.autograd.grad(first, (a, b), g, retain_graph=True)
    values = [t.clone() for t in want]
    for _ in range(3):
        with torch.no_grad():
            linear_scan(a * 0.5, b + 1)
        torch.autograd.grad(linear_scan(a * 0.3, b), (a, b), g)
    assert torch.equal(first, kept)
    assert all(torch.equal(x, y) for x, y in zip(want, values, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(torch.autograd.grad(first, (a, b), g), values, strict=True))
