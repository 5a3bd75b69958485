"""The products of `toeplitz` on a GPU in one launch each, for bf16 and float32, any length and any batch.

Slices of one channel run concurrently, the longest first, so that its rows and its table, which is small because slices
are short, are read from memory once. Tables extend to the end of the last slice, beyond the end of x if necessary.
`serves` tells what is supported; other cases fall back to torch's batched products.

Matrix units use eleven significant bits of a float32. A float32 table is therefore stored as two, (2, d, T, l): the
rounded values and the remainders; a product of two such sums, in three parts, has float32 accuracy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from resolvent.ops.filter.toeplitz_triton_kernels import diagonal_kernel, gradient_kernel, product_kernel, table_kernel
from resolvent.runtime import chip
from resolvent.runtime.launch import on_device
from resolvent.runtime.trust import trust

SIZE = 128  # steps of a slice
ROWS = 128  # sequences per tile
DEPTH, WARPS, STAGES = 64, 4, 3  # steps per product, warps and prefetch stages in bf16
FINE_DEPTH, FINE_WARPS, FINE_STAGES = 32, 8, 2  # in float32


def serves(x: Tensor, size: int) -> bool:
    """Whether slices have the supported size, on a GPU with tile descriptors."""
    return x.is_contiguous() and x.shape[1] > 0 and takes(x, size, x.dtype)


def takes(like: Tensor, size: int, dtype: torch.dtype) -> bool:
    """Whether products in `dtype` of slices of that size run here, on the device of `like`."""
    fits = dtype in (torch.bfloat16, torch.float32) and size == SIZE
    return fits and like.is_cuda and chip.serves(like.device) and _is_proven(like, dtype)


def _is_proven(like: Tensor, dtype: torch.dtype) -> bool:
    """On a chip with less shared memory than the kernels were written for, whether a first product is right."""
    kind = "Toeplitz products", like.device.index, dtype
    return chip.capacity(like) >= 227 or trust(kind, lambda: agrees(like.device, dtype))


@torch.no_grad()
def agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products, their adjoints and a kernel's gradients agree with whole matrices."""
    l, fine = 2 * SIZE, dtype == torch.float32
    x = (torch.arange(2 * 3 * l, device=device, dtype=torch.float64) * 0.37).sin().view(2, 3, l)
    kernel = (torch.arange(2 * l, device=device, dtype=torch.float64) * 0.11).cos().view(2, l)
    ahead, back = tables(kernel, dtype, SIZE, fine)
    M = F.pad(kernel, (l - 1, 0)).unfold(-1, l, 1).flip(1)
    low = x.to(dtype)
    found = [(product(low, ahead, back=False), x @ M), (product(low, back, back=True), x @ M.mT)]
    if not fine:
        pairs = torch.einsum("dbs,dbt->dst", x, x)
        sums = torch.stack([pairs.diagonal(k, 1, 2).sum(-1) for k in range(l)], 1)
        found.append((kernel_gradient(low, low), sums))
    return all(float((a.double() - b).norm() / b.norm()) <= (1e-4 if fine else 2e-2) for a, b in found)


@torch.no_grad()
def linked_agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products with a link agree with whole matrices."""
    l, s = 2 * SIZE, SIZE // 2
    x, h, leave, kernel = (
        (torch.arange(n * m * k, device=device, dtype=torch.float64) ** 2 * 0.618).sin().view(n, m, k)
        for n, m, k in ((2, ROWS, l), (2, ROWS, s), (2, l, s), (1, 2, l))
    )
    M = F.pad(kernel[0], (l - 1, 0)).unfold(-1, l, 1).flip(1)
    low, link = x.to(dtype), (h.to(dtype), leave.to(dtype))
    ahead, back = tables(kernel[0], dtype, SIZE)
    found = [(product(low, ahead, back=False, link=link), x @ M + h @ leave.mT)]
    for start in (x, 3 * x):
        got = product(low, back, back=True, onto=start.to(dtype), link=link)
        found.append((got, x @ M.mT + start + h @ leave.mT))
    return all(float((a.double() - b).norm() / b.norm()) <= 2e-2 for a, b in found)


def product(
    x: Tensor, table: Tensor, back: bool, onto: Tensor | None = None, link: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """x M, or with `back` x M', from a table (d, T, L) or (2, d, T, L) of l rounded up to whole slices; added to `onto`
    in place where it is given.

    `link`, in bf16 alone: h (d, b, s) and a table (d, l, s), whose product h table' is added.
    """
    d, b, l = x.shape
    fine = table.dim() == 4
    depth, warps, stages = (FINE_DEPTH, FINE_WARPS, FINE_STAGES) if fine else (DEPTH, WARPS, STAGES)
    if chip.capacity(x) < 227:
        warps = 8  # matrix units with register operands need more threads to hold them
    out = torch.empty_like(x) if onto is None else onto
    rows = TensorDescriptor.from_tensor(_align(x).flatten(0, 1), [ROWS, depth])
    columns = TensorDescriptor.from_tensor(table.view(-1, table.shape[-1]), [SIZE, depth])
    states, leave = rows, columns
    if link is not None:
        states, leave = (
            TensorDescriptor.from_tensor(_align(t.contiguous()).flatten(0, 1), [size, depth])
            for t, size in zip(link, (ROWS, SIZE), strict=True)
        )
    with on_device(x):
        product_kernel[(d * triton.cdiv(b, ROWS) * triton.cdiv(l, SIZE),)](
            rows, columns, states, leave, out, b, l, d, states.shape[1], BACK=back, ONTO=onto is not None,
            EVEN=b % ROWS == 0, WHOLE=l % SIZE == 0, FINE=fine, LINKED=link is not None, BB=ROWS, BT=SIZE, BK=depth,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return out


def _align(x: Tensor) -> Tensor:
    """x, or a zero-padded copy: descriptors need rows aligned to sixteen bytes."""
    step = 16 // x.element_size()
    return F.pad(x, (0, -x.shape[-1] % step)) if x.shape[-1] % step or x.data_ptr() % 16 else x


def tables(kernel: Tensor, dtype: torch.dtype, T: int, fine: bool = False) -> tuple[Tensor, Tensor]:
    """ahead and back, (d, T, l) each, of kernel (d, l) in any real dtype; `fine`: (2, d, T, l), coarse and rest."""
    d, l = kernel.shape
    kernel = (kernel.float() if fine else kernel).contiguous()
    shape = (2, d, T, l) if fine else (d, T, l)
    ahead, back = (torch.empty(shape, dtype=dtype, device=kernel.device) for _ in range(2))
    with on_device(kernel):
        table_kernel[(d, T)](kernel, ahead, back, l, T, FINE=fine, BL=triton.next_power_of_2(l), num_warps=4)
    return ahead, back


def kernel_gradient(x: Tensor, gy: Tensor) -> Tensor:
    """∂k (d, l) in float32: products of every pair of slices at one distance, then sums along their diagonals."""
    d, b, l = x.shape
    n = triton.cdiv(l, SIZE)
    pairs = torch.empty((d, n, SIZE, SIZE), dtype=torch.float32, device=x.device)
    sums = torch.empty((d, n, 2 * SIZE), dtype=torch.float32, device=x.device)
    with on_device(x):
        gradient_kernel[(d * n,)](x, gy, pairs, b, l, n, WHOLE=l % SIZE == 0, BT=SIZE, BB=64, num_warps=8, num_stages=3)
        diagonal_kernel[(d * n,)](pairs, sums, BT=SIZE, num_warps=4)
    early, late = sums.view(d, n, 2, SIZE).unbind(2)  # lags q T - T + j and q T + j
    found = late.clone()
    found[:, :-1] += early[:, 1:]
    return found.reshape(d, n * SIZE)[:, :l]
