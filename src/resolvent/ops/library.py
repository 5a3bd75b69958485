"""Shared by our operators registered with `torch.library`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from resolvent.runtime.transforms import is_transformed

_EXCLUDED = ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")
_LAZY = ("Conjugate", "Negative", "ZeroTensor")  # lazy views, which modes exclude from dispatch


@contextmanager
def recording() -> Iterator[None]:
    """Let autograd record inside an operator, which the dispatcher calls below autograd."""
    with torch._C._PreserveDispatchKeyGuard(), torch.enable_grad():
        for key in (*_EXCLUDED, *_LAZY):
            torch._C._dispatch_tls_set_dispatch_key_excluded(getattr(torch._C.DispatchKey, key), False)
        yield


def separate(outputs: Sequence[Tensor], *inputs: Tensor) -> list[Tensor]:
    """Contiguous outputs that share no memory with one another or with inputs, as operators require."""
    seen, given = {t.untyped_storage().data_ptr() for t in inputs}, list[Tensor]()
    for t in (t.contiguous() for t in outputs):
        given.append(t.clone() if t.untyped_storage().data_ptr() in seen else t)
        seen.add(given[-1].untyped_storage().data_ptr())
    return given


def shorten(operator: Any, run: Callable[..., Any]) -> None:
    """Let calls of the operator bypass torch's dispatcher, which can take as long as the work, to reach `run`.

    This applies to calls from compiled graphs: plain tensors, below autograd, without modes.
    """
    dispatch = operator._op

    def call(*args: Any, **kwargs: Any) -> Any:
        first = args[0][0] if args and type(args[0]) is list and args[0] else args[0] if args else None
        if type(first) is not Tensor or kwargs or torch.is_grad_enabled() or _is_watched():
            return dispatch(*args, **kwargs)
        return run(*args)

    operator._op = call


def _is_watched() -> bool:
    """Whether a transform, a mode or a profiler must see torch's calls."""
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    return bool(modes) or is_transformed() or torch._C._autograd._profiler_enabled()


def fresh(*like: Tensor) -> Any:
    """Uninitialised contiguous tensors of these shapes and dtypes, for an operator's fake implementation."""
    made = tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in like)
    return made if len(made) > 1 else made[0]


def register(operator: Any, backward: Any, gradients: Any, save: Any) -> None:
    """The gradients of an operator; vmap of it and of the one that computes them."""
    operator.register_autograd(gradients, setup_context=save)
    one_by_one(operator)
    one_by_one(backward)


def one_by_one(operator: Any) -> None:
    """Let vmap call the operator once per sample: valid for any operator, fast for few samples."""

    def each(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        found = [operator(*_sample(args, in_dims, i)) for i in range(info.batch_size)]
        if isinstance(found[0], Tensor):
            return torch.stack(found), 0
        outputs = [torch.stack(parts) for parts in zip(*found, strict=True)]
        dims = [0] * len(outputs)
        return (outputs, dims) if isinstance(found[0], list) else (tuple(outputs), tuple(dims))

    operator.register_vmap(each)


def _sample(args: tuple[Any, ...], dims: tuple[Any, ...], i: int) -> list[Any]:
    """The arguments of sample i; unmapped ones are shared."""

    def pick(arg: Any, dim: Any) -> Any:
        if isinstance(arg, list | tuple):
            own = dim if isinstance(dim, list | tuple) else [dim] * len(arg)
            return [pick(t, d) for t, d in zip(arg, own, strict=True)]
        return arg if dim is None or not isinstance(arg, Tensor) else arg.select(dim, i)

    return [pick(arg, dim) for arg, dim in zip(args, dims, strict=True)]
