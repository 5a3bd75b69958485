"""Everything that a pass of a user's model depends on, or changes, besides its input: read before and after passes.

A recording repeats the kernels of one pass without the Python code around them. So a recorded pass must have no
counters, state or random numbers: any change between passes in the modules, their classes or the files that define
them prevents recording.
"""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from resolvent.runtime.graph.watched import GLOBAL_HOOKS, HOOKS, numerics

SCALARS = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size))
KNOWN = ("resolvent", "torch")  # packages whose classes and files do not change
DEPTH = 3  # depth of nested containers and objects inspected
WIDTH = 256  # most entries inspected of each
SMALL = 1 << 16  # most bytes of an array whose contents are compared
DRAWING = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_SCATTERED = (nn.DataParallel, nn.parallel.DistributedDataParallel, torch.jit.ScriptModule)


def is_plain(module: nn.Module, device: torch.device) -> bool:
    """Whether the whole module is in evaluation mode, with plain tensors on this device and no hooks."""
    if any(GLOBAL_HOOKS):
        return False
    for own in module.modules():
        if own.training or any(own.__dict__[name] for name in HOOKS) or isinstance(own, _SCATTERED):
            return False
        if hasattr(own, "_orig_mod") or getattr(own, "_compiled_call_impl", None) is not None:  # compiled
            return False
        for held in (*own._parameters.values(), *own._buffers.values()):
            if held is not None and (type(held) not in (Tensor, nn.Parameter) or held.device != device):
                return False
    return True


def read(module: nn.Module) -> list[Any]:
    """Tensors by address and version, numbers by value, in the modules themselves: a recording's dependencies."""
    parts = ((own, own.__dict__, own._parameters, own._buffers) for own in module.modules())
    return [numerics(), *([id(own), *(_mark(part, 1) for part in held)] for own, *held in parts)]


def read_all(module: nn.Module) -> list[Any]:
    """The same, plus objects that the modules hold, their classes, and the files that define these."""
    found: list[Any] = []
    for own in module.modules():
        found.append([id(own), _mark(own.__dict__, DEPTH)])
        for kind in type(own).__mro__:
            if kind is not object and kind.__module__.partition(".")[0] not in KNOWN:
                found += [_mark(dict(vars(kind)), 1), _mark(vars(sys.modules.get(kind.__module__, object())), 2)]
    return found


def read_generators(device: torch.device) -> list[Any]:
    """The random generator states of torch, Python and numpy."""
    kept: Any = np.random.get_state(legacy=True)
    found = [random.getstate(), kept[1].tobytes(), kept[2], torch.get_rng_state().numpy().tobytes()]
    if device.type == "cuda":
        found.append(torch.cuda.default_generators[torch.cuda.current_device()].get_state().numpy().tobytes())
    return found


def _mark(value: Any, depth: int) -> Any:
    if type(value) in SCALARS:
        return value if value == value else "nan"
    if isinstance(value, Tensor):
        return id(value), *_look(value), 0 if value.is_inference() else value._version
    if isinstance(value, DRAWING):
        return id(value), pickle.dumps(value)
    if isinstance(value, nn.Module | type) or not depth:
        return id(value)
    if isinstance(value, dict):
        parts = list(value.items())[:WIDTH]
        return len(value), [(name if type(name) in SCALARS else id(name), _mark(v, depth - 1)) for name, v in parts]
    if isinstance(value, list | tuple):
        return len(value), [_mark(v, depth - 1) for v in value[:WIDTH]]
    if isinstance(value, np.ndarray):
        return id(value), value.shape, value.tobytes() if value.nbytes < SMALL else 0
    held = getattr(value, "__dict__", None)
    if type(held) is dict and not callable(value):
        return id(value), _mark(held, depth - 1)
    return id(value), len(value) if isinstance(value, set | frozenset) else 0


def _look(value: Tensor) -> tuple[int, bytes]:
    """Its address and, if small, its content: running averages are updated without a new version."""
    try:
        place, small = value.data_ptr(), value.nbytes < SMALL and not isinstance(value, nn.Parameter)
        return place, value.detach().flatten().view(torch.uint8).cpu().numpy().tobytes() if place and small else b""
    except RuntimeError:  # a tensor without storage
        return 0, b""
