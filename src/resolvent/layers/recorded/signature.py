"""Everything a recorded pass depends on besides tensor values: another signature means another recording."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from resolvent.runtime.graph.watched import GLOBAL_HOOKS, HOOKS, numerics

SCALARS = frozenset((bool, int, float, str, type(None), torch.dtype, torch.device))
KNOWN = ("resolvent", "torch")  # packages whose modules compute the same at every call
UNSTEADY = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)  # in training they differ from call to call
TICKET = "_ticket"  # identifies a layer in compiled graphs (`recorded.node`); does not affect its results
_INTERNAL = frozenset(nn.Module().__dict__)  # attributes of every module; the relevant ones are read by name
_known: dict[type[nn.Module], bool] = {}


class Foreign(Exception):
    """The module contains user code, which has to run."""


class How(NamedTuple):
    """The global torch state that a call depends on."""

    needs: bool  # a gradient of x
    records: bool
    autocast: bool
    half: torch.dtype


def ask(x: Tensor) -> How:
    """The state under which the current call is made."""
    records, kind = torch.is_grad_enabled(), x.device.type
    autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return How(records and x.requires_grad, records, *autocast)


def sign(
    module: nn.Module, x: Tensor, lengths: Tensor | None, how: How
) -> tuple[tuple[Any, ...], list[nn.Parameter]] | None:
    """The signature of module(x, lengths) and all parameters of the module; None where it cannot be recorded."""
    found = _sign_module(module)
    if found is None:
        return None
    marks, parameters = found
    marks += (x.shape, x.dtype, x.device, *how, *numerics())
    marks += (None,) if lengths is None else (lengths.dtype, lengths.device)
    return tuple(marks), list(parameters.values())


def is_signed(module: nn.Module) -> bool:
    """Whether the module's passes have signatures: it contains no user code that must run."""
    return _sign_module(module) is not None


def _sign_module(module: nn.Module) -> tuple[list[Any], dict[int, nn.Parameter]] | None:
    marks: list[Any] = []
    parameters: dict[int, nn.Parameter] = {}  # each once, however many names it has
    try:
        _read(module, marks, parameters)
    except Foreign:
        return None
    return None if any(GLOBAL_HOOKS) else (marks, parameters)


def _read(module: nn.Module, marks: list[Any], parameters: dict[int, nn.Parameter]) -> None:
    """Class, options and tensor addresses of the module and everything it contains."""
    own, kind = module.__dict__, type(module)
    if not _is_known(kind):
        raise Foreign
    for name in HOOKS:
        if own[name]:
            raise Foreign
    if module.training and issubclass(kind, UNSTEADY) and own.get("p") != 0:  # dropout with p = 0 is constant
        raise Foreign
    if own.get("_tables") is not None:  # inside `frozen()`, whose tables are dropped at its end
        raise Foreign
    if "parametrizations" in own["_modules"]:  # may be cached or change at each call
        raise Foreign
    marks += (kind, own["training"])
    for name, value in own.items():
        if name in _INTERNAL or name == TICKET:
            continue
        if type(value) in SCALARS:
            marks.append(value)
        elif isinstance(value, Tensor) or (callable(value) and not _is_steady(kind, name, value)):
            raise Foreign
        elif type(value) is tuple:
            marks.append(repr(value))
        else:
            marks.append(id(value))
    for p in own["_parameters"].values():
        if p is None:
            continue
        if type(p) is not nn.Parameter:
            raise Foreign
        parameters[id(p)] = p
        marks += (p.data_ptr(), p.shape, p.dtype, p.requires_grad)
    for buffer in own["_buffers"].values():
        if buffer is not None:
            marks += (buffer.data_ptr(), buffer.shape, buffer.dtype)
    for child in own["_modules"].values():
        if child is not None:
            _read(child, marks, parameters)


def _is_steady(kind: type[nn.Module], name: str, value: Any) -> bool:
    """Whether a function stored on an instance is a known one and shadows no method of its class."""
    home = getattr(value, "__module__", None) or "torch"
    return home.partition(".")[0] in KNOWN and not callable(getattr(kind, name, None))


def _is_known(kind: type[nn.Module]) -> bool:
    found = _known.get(kind)
    if found is None:
        found = _known[kind] = kind.__module__.partition(".")[0] in KNOWN
    return found
