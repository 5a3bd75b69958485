"""Whether a relay is right on this device: tried once for each kind of scan, before the first that goes so."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from resolvent.runtime.dispatch import log

_known: dict[Hashable, bool] = {}


def trust(kind: Hashable, probe: Callable[[], bool]) -> bool:
    """Whether `probe` held. While a graph is recorded nothing can be compared, and what is not known is not used."""
    if kind not in _known:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False
        try:
            _known[kind] = probe()
        except Exception as error:
            refuse(kind, str(error))
        else:
            if not _known[kind]:
                refuse(kind, "its states differ from those of torch")
    return _known[kind]


def refuse(kind: Hashable, why: str) -> None:
    _known[kind] = False
    log.warning("%s: a scan in one launch fails here, several launches take over: %s", kind, why.splitlines()[:1])
