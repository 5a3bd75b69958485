"""Fixtures of the layers' tests."""

from __future__ import annotations

import pytest

from graph_stand_in import StandIn
from resolvent.layers.recorded import recording


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    """A CPU that records passes."""
    monkeypatch.setitem(recording.GRAPHS, "cpu", StandIn)
    StandIn.made = 0
    return StandIn
