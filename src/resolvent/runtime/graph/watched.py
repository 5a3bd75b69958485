"""Contexts in which a call must not be recorded: hooks, modes, transforms, tracing, capture or a forced backend."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module
from torch.utils._device import DeviceContext

from resolvent.runtime.dispatch import is_forced, push
from resolvent.runtime.transforms import forward_mode, is_traced, is_transformed

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (  # called by torch for every module
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)
HALF_SUMS = "fp16_accumulation", "fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction"
off: list[bool] = []
recording: list[bool] = []  # one at a time: a model's pass includes those of its layers


def without_recording() -> AbstractContextManager[None]:
    """A context in which layers, and models under attack, launch their GPU kernels one by one; for the whole
    process.

    Recording saves host time, but keeps the values saved for the backward pass allocated between steps;
    `forget_recordings` frees existing ones.

    Examples:
        >>> with rv.layers.without_recording():
        ...     y, state = rv.S4D(4, 8)(torch.randn(2, 50, 4))
    """
    return push(off, True)


def numerics() -> tuple[Any, ...]:
    """torch's settings that affect the choice of kernels: other settings need other recordings."""
    own: Any = torch._C
    precision = [own._get_fp32_precision_getter("cuda", of) for of in ("matmul", "conv", "rnn")]
    chosen = own._get_deterministic_algorithms(), own._get_cudnn_deterministic(), own._get_cudnn_enabled()
    half = (getattr(own, f"_get_cublas_allow_{of}")() for of in HALF_SUMS)
    attention = own._get_flash_sdp_enabled(), own._get_mem_efficient_sdp_enabled(), own._get_math_sdp_enabled()
    return *precision, *chosen, *half, *attention


def is_watched(x: Tensor, lengths: Tensor | None) -> bool:
    """Whether this call must not be recorded."""
    if off or recording or is_forced() or is_traced(x, lengths) or is_transformed() or forward_mode():
        return True
    if x.is_cuda:  # replays share memory, so all of them run on one stream: the default one, never captured
        index = x.device.index
        if torch._C._cuda_getCurrentRawStream(index) != 0 or index != torch.cuda.current_device():
            return True
    if torch.is_anomaly_enabled() or not x.numel() or torch._C._len_torch_dispatch_stack():
        return True
    if torch._C._len_torch_function_stack() and _functions_are_watched():
        return True
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _functions_are_watched() -> bool:
    """Whether torch functions are intercepted, other than by a default device."""
    stack = range(torch._C._len_torch_function_stack())
    return not all(type(torch._C._get_function_stack_at(i)) is DeviceContext for i in stack)
