"""The products of `toeplitz` on a GPU in one launch each, for bf16, whole slices and batches of whole tiles.

Slices of one channel run side by side, the longest first, so that its rows and its table, which is small because slices
are short, are read from memory once. `serves` tells what is taken; anything else is left to torch's batched products.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from resolvent.ssm.toeplitz_triton_kernels import diagonal_kernel, gradient_kernel, product_kernel, table_kernel

SIZE = 128  # steps of a slice
ROWS, DEPTH, WARPS, STAGES = 128, 64, 4, 3  # sequences to a tile, steps to a product, warps and loads ahead


def serves(x: Tensor, size: int) -> bool:
    """bf16, whole slices and tiles, and a GPU that copies tiles by descriptor."""
    b, l = x.shape[1:]
    fits = x.dtype == torch.bfloat16 and x.is_contiguous() and size == SIZE and l % SIZE == 0 and b % ROWS == 0
    return fits and torch.cuda.get_device_capability(x.device) >= (9, 0)


def product(x: Tensor, table: Tensor, back: bool, onto: Tensor | None = None) -> Tensor:
    """x M, or with `back` x M', from a table (d, T, l); added to `onto` in place where that is given."""
    d, b, l = x.shape
    out = torch.empty_like(x) if onto is None else onto
    rows = TensorDescriptor.from_tensor(x.view(d * b, l), [ROWS, DEPTH])
    columns = TensorDescriptor.from_tensor(table.view(d * SIZE, l), [SIZE, DEPTH])
    with torch.cuda.device(x.device):
        product_kernel[(d * (b // ROWS) * (l // SIZE),)](
            rows, columns, out, b, l, BACK=back, ONTO=onto is not None, BB=ROWS, BT=SIZE, BK=DEPTH,
            num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out


def tables(kernel: Tensor, dtype: torch.dtype, T: int) -> tuple[Tensor, Tensor]:
    """ahead and back, (d, T, l) each, of kernel (d, l) in any real dtype."""
    d, l = kernel.shape
    kernel = kernel.contiguous()
    ahead, back = (torch.empty((d, T, l), dtype=dtype, device=kernel.device) for _ in range(2))
    with torch.cuda.device(kernel.device):
        table_kernel[(d, T)](kernel, ahead, back, l, T, BL=triton.next_power_of_2(l), num_warps=4)
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
