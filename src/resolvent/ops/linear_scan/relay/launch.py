"""`kernel` called from torch: the split of a scan into chunks held on chip, and its launch."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from resolvent.ops.linear_scan.relay.kernel import relay_kernel
from resolvent.ops.linear_scan.relay.reports import draw_words, group_size
from resolvent.runtime.launch import either, on_device

if TYPE_CHECKING:
    from resolvent.ops.linear_scan.triton import Job

WIDTH = 32  # adjacent words, all present: with fewer, Triton 3.6 fails to compile some cases


class Relay(NamedTuple):
    """Chunks of `side` x `steps` steps by bn words; `per` adjacent words per thread; `group` chunks per group."""

    steps: int
    side: int
    bn: int
    per: int
    warps: int
    chunks: int
    group: int
    registers: int | None = None  # most per thread, without marks


@lru_cache(maxsize=4096)
def cut_relay(l: int, twice: bool) -> Relay:
    """The split of rows of l steps of words with one number or, `twice`, two.

    As measured: (1, 65536, 256) real numbers in chunks of 128 steps take 0.098 ms with 80 registers, three programs per
    multiprocessor, and 0.119 with the compiler's choice; (8, 4096, 64) complex ones, in chunks of 128 as
    well, 0.027 with two words per thread and 0.040 with one.
    """
    return arrange(l, 8, 2, 8) if twice else arrange(l, 16, 1, 8)._replace(registers=80)


def arrange(l: int, steps: int, per: int, warps: int, width: int = WIDTH) -> Relay:
    side = 32 * warps * per // width
    chunks = -(-l // (side * steps))
    return Relay(steps, side, width, per, warps, chunks, group_size(chunks))


def run_relay(
    job: Job,
    plan: Relay,
    out: Tensor,
    before: Tensor | None,
    states: Tensor | None,
    ga: Tensor | None,
) -> None:
    """Fill `out`, and `ga` if given; arrays are kernel arguments."""
    a, b = job.words
    n, marks = b.shape[-1], job.marks
    parts = 2 if job.pairs or (job.b.is_complex() and not (job.constant and marks is None)) else 1
    words = b if plan.chunks == 1 else draw_words(job.rows, plan.chunks, plan.group, parts * n, b.device)
    even = n % plan.bn == 0 and job.l % (plan.steps * plan.side) == 0
    with on_device(b):
        relay_kernel[(job.rows * plan.chunks * -(-n // plan.bn),)](
            a, b, words, out, either(states, b), either(before, b), either(ga, b), marks,
            job.l, n // plan.per, job.rows, plan.chunks, plan.group,
            job.a.numel() // (job.a.shape[-2] * job.n), job.div, 1,
            DOWN=job.down, CONSTANT=job.constant, COMPLEX=job.b.is_complex(), PAIRS=job.pairs, ADJOINT=job.adjoint,
            GRADIENT=ga is not None, GIVEN=before is not None, PACKED=marks is not None,
            SHARED=marks is not None and len(marks) == 1, EVEN=even, CUT=plan.chunks > 1,
            STEPS=plan.steps, SIDE=plan.side, BN=plan.bn, PER=plan.per, num_warps=plan.warps,
            maxnreg=plan.registers if marks is None else None,
        )  # fmt: skip
