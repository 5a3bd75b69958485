"""The shipped PTD of HiPPO-LegS: half of the eigenvectors and eigenvalues for each size, in float64.

E = V diag(lam) V^-1 - A follows from them to full precision. The file is made by `python -m resolvent.init.ptd_make`.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent.init.ptd_objective import SteadyObjective
from resolvent.init.ptd_result import PTD, measure_ptd
from resolvent.ssm.hippo import hippo

PATH = Path(__file__).with_name("ptd.npz")
SIZES = (2, 4, 8, 16, 32, 64, 128)


def holds(name: str, n: int | None) -> bool:
    return name == "legs" and n in SIZES


def load(n: int) -> PTD:
    """The shipped result for LegS of size n; with new tensors."""
    return _read(n).copy()


@functools.cache
def _read(n: int) -> PTD:
    import numpy as np

    with np.load(PATH) as file, torch.device("cpu"):
        V, lam, numbers = (torch.from_numpy(file[f"{part}_{n}"]) for part in ("V", "lam", "numbers"))
    A, B = hippo("legs", n)
    distance, at, value, rounds, seconds = numbers.tolist()
    result = measure_ptd(A, _both(V), _both(lam))
    return replace(
        result,
        distance=distance,
        distance_at=at,
        message=f"shipped with the library; converged in {int(rounds)} rounds.",
        objective=SteadyObjective(),
        value=value,
        rounds=int(rounds),
        seconds=seconds,
        B=B[:, None],
    )


def _both(pairs: Tensor) -> Tensor:
    """Real pairs of one half as the whole, conjugates last."""
    half = torch.view_as_complex(pairs)
    return torch.cat([half, half.conj()], -1).resolve_conj()


def write(results: list[PTD], path: Path = PATH) -> None:
    """The inverse of `load`."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for result in results:
        n = result.n
        lam, V, _ = result.half()
        arrays[f"V_{n}"], arrays[f"lam_{n}"] = (torch.view_as_real(t.contiguous()).numpy() for t in (V, lam))
        numbers = [result.distance, result.distance_at, result.value, result.rounds, result.seconds]
        arrays[f"numbers_{n}"] = np.array(numbers, dtype=np.float64)
    np.savez_compressed(path, **arrays)
