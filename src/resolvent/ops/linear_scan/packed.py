"""Documents packed one after another in a row: where each starts, and where a scan then resets its state.

A packed row is marked once, at the first step of each document, for scans in both directions. A forward scan resets
its state on entering a marked step; a reverse one on entering a document's last step, the one before a mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

import torch
from torch import Tensor

from resolvent.runtime.transforms import is_exporting


def packed_starts(lengths: Tensor | Sequence[int], total: int | None = None, continued: bool = False) -> Tensor:
    """The first steps of documents of the given lengths packed one after another: `start` of a scan, bool (l,).

    lengths    (s,) integers, at least 1.
    total      the length of the row; their sum when None. The rest is padding, as a document of its own.
    continued  the first document began in an earlier row: step 0 is not marked, and h0 enters there.

    >>> rv.packed_starts([2, 1, 2], total=7).int()
    tensor([1, 0, 1, 1, 0, 1, 0], dtype=torch.int32)
    """
    sizes = _whole_numbers(lengths)
    total = int(sizes.sum()) if total is None else _whole(total)
    _check_sizes(sizes, total)
    marks = torch.zeros(total + 1, dtype=torch.bool, device=sizes.device)
    marks[0] = not continued
    return marks.index_fill(0, sizes.cumsum(0), True)[:total]


def _whole_numbers(lengths: Tensor | Sequence[int]) -> Tensor:
    try:
        sizes = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError) as wrong:  # torch's errors for non-tensors
        raise TypeError(
            f"packed_starts: expected lengths as whole numbers, got {type(lengths).__name__} ({wrong}); "
            "use torch.tensor([3, 5])."
        ) from wrong
    if sizes.dtype not in (torch.int64, torch.int32):
        what = "nothing" if sizes.numel() == 0 else str(sizes.dtype)
        raise TypeError(f"packed_starts: expected lengths as whole numbers, got {what}; use torch.tensor([3, 5]).")
    if sizes.dim() != 1 or sizes.numel() == 0:
        raise ValueError(
            f"packed_starts: expected lengths of shape (s,) with s >= 1, got {tuple(sizes.shape)}; "
            "call it for each row and stack the marks."
        )
    return sizes.long()


def _whole(total: int) -> int:
    try:
        return index(total)
    except TypeError as wrong:
        raise TypeError(
            f"packed_starts: expected total as a whole number of steps, got {total!r} of type {type(total).__name__}; "
            "use int(total)."
        ) from wrong


def _check_sizes(sizes: Tensor, total: int) -> None:
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(sizes):
        return  # values cannot be read while tracing
    low, used = int(sizes.min()), int(sizes.sum())
    if low < 1:
        raise ValueError(f"packed_starts: every length must be 1 at least, got {low}; leave empty documents out.")
    if used > total:
        raise ValueError(
            f"packed_starts: expected lengths that fit into a row of {total} steps, got {used} in sum; "
            "shorten the documents or make the row longer."
        )


@dataclass(frozen=True)
class Documents:
    """Rows split at their marks: x (s, longest, ...) with one document per row, zero beyond its length (s,).

    index   (b, l) twice: the document of each step of the packed rows, and the step within it
    ends    (b,) the last document of each row
    """

    x: Tensor
    lengths: Tensor
    index: tuple[Tensor, Tensor]
    ends: Tensor

    def joined(self, y: Tensor) -> Tensor:
        """Pack y (s, longest, ...) of the documents into their rows: (b, l, ...)."""
        return y[self.index]


def documents_of(where: str, x: Tensor, start: Tensor) -> Documents:
    """The documents of packed rows x (b, l, ...); a row's first step begins one, marked or not."""
    b, l = x.shape[:2]
    marks = forgetting(where, start, x.shape[:2], x.device, reverse=False).expand(b, l).clone()
    if is_exporting():
        raise ValueError(f"{where}: an export cannot cut packed documents (start) apart; export it with lengths.")
    marks[:, 0] = True
    at = torch.arange(l, device=x.device).expand(b, l)
    step = at - torch.where(marks, at, 0).cummax(1).values
    document = (marks.flatten().cumsum(0) - 1).view(b, l)
    lengths = torch.bincount(document.flatten())
    alone = x.new_zeros(lengths.shape[0], int(lengths.max()), *x.shape[2:]).index_put((document, step), x)
    return Documents(alone, lengths, (document, step), document[:, -1])


def forgetting(where: str, start: Tensor, rows: torch.Size, device: torch.device, reverse: bool) -> Tensor:
    """Where the scan resets its state, with the rank and the last axis of `rows` (..., l); other axes may be 1."""
    _check_start(where, start, rows, device)
    start = start.reshape((1,) * (len(rows) - start.dim()) + start.shape)
    start = start.expand(*start.shape[:-1], rows[-1])
    if not reverse:
        return start
    return torch.cat((start[..., 1:], torch.zeros_like(start[..., :1])), -1)


def _check_start(where: str, start: Tensor, rows: torch.Size, device: torch.device) -> None:
    if not isinstance(start, Tensor) or start.dtype != torch.bool:
        got = f"a tensor of {start.dtype}" if isinstance(start, Tensor) else type(start).__name__
        raise TypeError(f"{where}: expected start as a bool tensor, got {got}; packed_starts(lengths) makes one.")
    if start.device != device:
        raise ValueError(
            f"{where}: expected start on {device} where the input is, got {start.device}; "
            f"use start.to({str(device)!r})."
        )
    fits = all(s in (1, r) for s, r in zip(reversed(start.shape), reversed(rows), strict=False))
    if start.dim() > len(rows) or not fits:
        raise ValueError(
            f"{where}: expected start that broadcasts to {tuple(rows)}, one mark for each step of each row, "
            f"got {tuple(start.shape)}; give (l,) or all of it."
        )


def clear_starts(a: Tensor, reset: Tensor) -> Tensor:
    """a (..., l or 1, n) with zeros where the state is reset, reset (..., l)."""
    return torch.where(reset.unsqueeze(-1), 0, a)
