"""Many threads after one claim."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from resolvent.experiments.store.lock import Taken


def race(claim: Callable[[], Any], claimants: int = 16) -> list[Any]:
    """What those got who were not told `Taken`, all asking at once."""
    won: list[Any] = []
    start = threading.Barrier(claimants)

    def ask() -> None:
        start.wait()
        try:
            won.append(claim())
        except Taken:
            return

    threads = [threading.Thread(target=ask) for _ in range(claimants)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won
