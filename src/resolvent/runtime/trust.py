"""Whether kernels are right on this device: probed once per kind of work, before first use."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from resolvent.runtime.dispatch import log

_known: dict[Hashable, bool] = {}


def trust(kind: Hashable, probe: Callable[[], bool]) -> bool:
    """Whether `probe` held. During graph capture nothing can be compared, and unverified kernels are not used."""
    if kind not in _known:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False
        try:
            _known[kind] = probe()
        except Exception as error:
            refuse(kind, str(error))
        else:
            if not _known[kind]:
                refuse(kind, "their numbers differ from those of torch")
    return _known[kind]


def refuse(kind: Hashable, why: str) -> None:
    _known[kind] = False
    log.warning("%s: kernels are left out here, and others take over: %s", kind, why.splitlines()[:1])
