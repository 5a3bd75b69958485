"""The products of `toeplitz` on a GPU in one launch each, for bf16 and float32, whole slices and any batch.

Slices of one channel run side by side, the longest first, so that its rows and its table, which is small because slices
are short, are read from memory once. `serves` tells what is taken; anything else is left to torch's batched products.

Matrix units keep eleven binary digits of a float32. A float32 table is therefore two, (2, d, T, l): its values so
rounded, and what they lack; a product of two such sums, in three parts, has the accuracy of float32.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from resolvent.ops.filter.toeplitz_triton_kernels import diagonal_kernel, gradient_kernel, product_kernel, table_kernel
from resolvent.runtime.chip import roomy

SIZE = 128  # steps of a slice
ROWS = 128  # sequences to a tile
DEPTH, WARPS, STAGES = 64, 4, 3  # steps to a product, warps and loads ahead in bf16
FINE_DEPTH, FINE_WARPS, FINE_STAGES = 32, 8, 2  # in float32


def serves(x: Tensor, size: int) -> bool:
    """Whole slices, and a GPU that copies tiles by descriptor."""
    return x.is_contiguous() and x.shape[1] > 0 and takes(x, size, x.shape[2], x.dtype)


def takes(like: Tensor, size: int, l: int, dtype: torch.dtype) -> bool:
    """Whether products of that length in `dtype` run here, on the device of `like`."""
    fits = dtype in (torch.bfloat16, torch.float32) and size == SIZE and l % SIZE == 0
    return fits and like.is_cuda and roomy(like.device)


def product(x: Tensor, table: Tensor, back: bool, onto: Tensor | None = None) -> Tensor:
    """x M, or with `back` x M', from a table (d, T, l) or (2, d, T, l); added to `onto` in place where it is given."""
    d, b, l = x.shape
    fine = table.dim() == 4
    depth, warps, stages = (FINE_DEPTH, FINE_WARPS, FINE_STAGES) if fine else (DEPTH, WARPS, STAGES)
    out = torch.empty_like(x) if onto is None else onto
    rows = TensorDescriptor.from_tensor(x.view(d * b, l), [ROWS, depth])
    columns = TensorDescriptor.from_tensor(table.view(-1, l), [SIZE, depth])
    with torch.cuda.device(x.device):
        product_kernel[(d * triton.cdiv(b, ROWS) * (l // SIZE),)](
            rows, columns, out, b, l, d, BACK=back, ONTO=onto is not None, EVEN=b % ROWS == 0, FINE=fine,
            BB=ROWS, BT=SIZE, BK=depth, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return out


def tables(kernel: Tensor, dtype: torch.dtype, T: int, fine: bool = False) -> tuple[Tensor, Tensor]:
    """ahead and back, (d, T, l) each, of kernel (d, l) in any real dtype; `fine`: (2, d, T, l), coarse and rest."""
    d, l = kernel.shape
    kernel = (kernel.float() if fine else kernel).contiguous()
    shape = (2, d, T, l) if fine else (d, T, l)
    ahead, back = (torch.empty(shape, dtype=dtype, device=kernel.device) for _ in range(2))
    with torch.cuda.device(kernel.device):
        table_kernel[(d, T)](kernel, ahead, back, l, T, FINE=fine, BL=triton.next_power_of_2(l), num_warps=4)
    return ahead, back


def kernel_gradient(x: Tensor, gy: Tensor) -> Tensor:
    """∂k (d, l) in float32: products of every pair of slices at one distance, then sums along their diagonals."""
    d, b, l = x.shape
    n = l // SIZE
    pairs = torch.empty((d, n, SIZE, SIZE), dtype=torch.float32, device=x.device)
    sums = torch.empty((d, n, 2 * SIZE), dtype=torch.float32, device=x.device)
    with torch.cuda.device(x.device):
        gradient_kernel[(d * n,)](x, gy, pairs, b, l, n, BT=SIZE, BB=64, num_warps=8, num_stages=3)
        diagonal_kernel[(d * n,)](pairs, sums, BT=SIZE, num_warps=4)
    early, late = sums.view(d, n, 2, SIZE).unbind(2)  # lags q T - T + j and q T + j
    found = late.clone()
    found[:, :-1] += early[:, 1:]
    return found.reshape(d, l)
