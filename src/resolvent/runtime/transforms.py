"""The context of a call: transforms besides autograd, and the precision of computation.

Our kernels do not support some of it, or must be shielded from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map

from resolvent.runtime.dispatch import push

_PLAIN = (Tensor, torch.nn.Parameter)
_MODES: Any = torch._C._TorchDispatchModeKey
_as_traced: list[bool] = []
_suspensions: list[str] = []
_narrow: list[bool] = []
MATRIX_DEVICES = {"cuda"}  # with matrix units for half types
WIDE = 8  # channels from which such products save time


def is_traced(*tensors: Tensor | None) -> bool:
    """Whether the call is traced, not run: by the compiler, by an export, with fake tensors or on the meta device.

    Operations then are opaque nodes (`torch.library`), and complex numbers are pairs (`ops.pairs`). Likewise for tensor
    subclasses, which need an operator to dispatch on.
    """
    return is_recorded(*tensors) or bool(_as_traced and _as_traced[-1])


def is_exporting() -> bool:
    """Whether torch.export is active; torch's own query is True under any compiler before torch 2.12."""
    return torch.compiler._is_exporting_flag


def is_recorded(*tensors: Tensor | None) -> bool:
    """Whether values cannot be read or cached: `is_traced`, but not by `as_traced`."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    if torch._C._len_torch_dispatch_stack() and (_is_on(_MODES.FAKE) or _is_on(_MODES.PROXY)):
        return True
    return any(t is not None and (type(t) not in _PLAIN or t.is_meta) for t in tensors)


def is_proxied() -> bool:
    """Whether a run on real numbers is recorded call by call (`make_fx`, `torch.func.linearize`, `torch.jit.trace`):
    what a kernel writes to memory would be missing in what they play back."""
    return torch.jit.is_tracing() or (_is_on(_MODES.PROXY) and not _is_on(_MODES.FAKE))


def _is_on(mode: Any) -> bool:
    return torch._C._len_torch_dispatch_stack() > 0 and torch._C._get_dispatch_mode(mode) is not None


def refuses_operators() -> bool:
    """Whether a recorded pass has to consist of torch's operations: `is_proxied`, or derivatives by `torch.func` or
    forward mode inside of compiled code, where operators of ours have no gradient and lose tangents without a word."""
    return is_recorded() and _refuses()


def _refuses() -> bool:
    keys = {level.key().name for level in torch._C._functorch.get_interpreter_stack() or ()}
    return is_proxied() or forward_mode() or not keys.isdisjoint({"Grad", "Jvp"})


_refuses._dynamo_marked_constant = True  # type: ignore[attr-defined]  # `assume_constant_result`, not imported


def as_traced() -> AbstractContextManager[None]:
    """Run as if the pass were traced: `frozen()` then caches tables in the form that an export uses as constants."""
    return push(_as_traced, True)


def as_run() -> AbstractContextManager[None]:
    """Inside an operator, which really runs: cancels a surrounding `as_traced`."""
    return push(_as_traced, False)


def is_transformed() -> bool:
    """Whether `torch.func` is active."""
    return torch._C._are_functorch_transforms_active()


def forward_mode() -> bool:
    """Whether forward-mode AD is active."""
    return forward_ad._current_level >= 0


def is_batched(*tensors: Tensor | None) -> bool:
    """Whether the older vmap is active, which `torch.autograd.grad(is_grads_batched=True)` still uses.

    It ignores our rules and splits an operator into one call per sample.
    """
    return any(t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)


def is_untransformed() -> bool:
    """No compiler, no torch.func and no forward mode: at most autograd."""
    return not (torch.compiler.is_compiling() or is_transformed() or forward_mode())


def by_graph_only(*gradients: Tensor | None) -> bool:
    """Whether a backward pass is itself differentiated or mapped, so that it must consist of torch operations."""
    return torch.is_grad_enabled() or not is_untransformed() or is_batched(*gradients)


def gradients_by_graph(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    g: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of function(*inputs), recomputed with a graph: None for inputs that need none or are None.

    Outputs whose gradient is None, or that depend on no input that needs a gradient, are ignored.
    """
    with torch.enable_grad():
        own = [None if x is None else _set_apart(x, need) for x, need in zip(inputs, needed, strict=True)]
        asked = [(y, t) for y, t in zip(function(*own), g, strict=True) if t is not None and y.requires_grad]
    wanted = [x for x, need in zip(own, needed, strict=True) if need and x is not None]
    if not asked or not wanted:
        return (None,) * len(own)
    outputs, slopes = zip(*asked, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, slopes, create_graph=torch.is_grad_enabled(), allow_unused=True))
    return tuple(next(found) if need and x is not None else None for x, need in zip(own, needed, strict=True))


def _set_apart(x: Tensor, needed: bool) -> Tensor:
    """x detached from its history, since one input may depend on another; inside an operator it has none."""
    return x.view_as(x) if x.requires_grad or not needed else x.detach().requires_grad_()


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """A context without autocast; a no-op if autocast is off, so that traced graphs do not contain it."""
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return _suspend(device_type)


@contextmanager
def _suspend(device_type: str) -> Iterator[None]:
    with push(_suspensions, device_type), torch.autocast(device_type, enabled=False):
        yield


def autocast_is_suspended() -> bool:
    """Whether autocast is on around the running layer: `backward()` may then run inside it."""
    return bool(_suspensions)


def half_products(x: Tensor) -> bool:
    """Whether autocast to bfloat16 is on around the layer running on x, on a device that profits: the layer's products
    should then be half, while its recurrence accumulates in float32. Layers of few channels save no time with half
    products and lose accuracy: cancellation in one channel is not averaged over others."""
    return half_products_traced(x) and is_untransformed() and not is_traced(x)


def half_products_traced(x: Tensor) -> bool:
    """The same in a traced pass, for operations that take it as an argument."""
    kind = x.device.type
    if kind not in MATRIX_DEVICES or not _suspensions or x.shape[-1] < WIDE:
        return False
    return torch.get_autocast_dtype(kind) is torch.bfloat16


def outside_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function outside autocast, which would round the inputs of its products to half.

    The device is that of the first tensor; an autograd context as first argument is skipped.
    """

    @wraps(function)
    def run(*args: Any) -> Any:
        device = next((x.device.type for x in args if isinstance(x, Tensor)), "cpu")
        with without_autocast(device):
            return function(*args)

    return run


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function computed with real numbers on the CPU, whatever the default device or dtype and inside
    `FakeTensorMode`, where the tensors that it returns become fake ones."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily(), torch.device("cpu"):
            made = function(*args, **kwargs)
        return tree_map(torch.ops.aten.lift_fresh, made)

    return run


def lacks_float64(device: torch.device) -> bool:
    """Whether the device computes in float32 at most: small tables are then made in float32."""
    return device.type == "mps" or bool(_narrow)


def wide(x: Tensor) -> Tensor:
    """x in float64, or unchanged on devices without it."""
    return x if lacks_float64(x.device) else x.double()


def wide_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`wide` of tensors on one device."""
    return list(tensors if lacks_float64(tensors[0].device) else map(Tensor.double, tensors))


def without_float64() -> AbstractContextManager[None]:
    """Pretend that no device has float64, for tests."""
    return push(_narrow, True)
