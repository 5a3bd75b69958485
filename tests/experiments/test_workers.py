"""How workers on one machine share a list of cells."""

from __future__ import annotations

import pytest

from resolvent.experiments.workers import PART, begin_apart


def test_a_process_of_its_own_takes_the_cells_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PART, raising=False)
    assert begin_apart("abc") == ["a", "b", "c"]
    assert begin_apart("") == []


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("cells", [1, 2, 5, 10])
def test_workers_begin_in_parts_of_their_own_and_see_every_cell(
    workers: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, first = list(range(cells)), []
    for number in range(workers):
        monkeypatch.setenv(PART, f"{number}/{workers}")
        order = begin_apart(listed)
        first.append(order[0])
        assert sorted(order) == listed
        assert order == [(order[0] + i) % cells for i in range(cells)]  # on from there, then those before
    assert len(set(first)) == min(workers, cells)
