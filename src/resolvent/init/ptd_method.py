"""PTD, perturb then diagonalise: a nearby matrix that can be diagonalised with well conditioned eigenvectors.

Yu, Nigmetov, Morozov, Mahoney, Erichson 2024, "Robustifying state-space models for long sequences via approximate
diagonalization". HiPPO-LegS has real eigenvalues -1, ..., -n whose eigenvectors are numerically dependent (kappa grows
like 5.83^n), so diagonal models replace it by its normal part, whose transfer function has spikes that LegS's has not.
PTD looks for a small E such that A + E = V diag(lam) V^-1 with a moderate kappa(V), and starts the diagonal model from

    Lambda = diag(lam),    B <- V^-1 B,    C <- C_0 V

    ptd("legs", 32)                               shipped for n = 2, 4, 8, 16, 32, 64, 128: no search
    ptd("legs", 48)                               searched: about half a minute
    ptd("legs", 512, how=Search(rounds=0))        the closed form that searches start from
    ptd(A, B=B, objective=CodeObjective(lam=3))   any square matrix, any of the objectives
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from resolvent.init import ptd_store
from resolvent.init.ptd_frame import frame_of
from resolvent.init.ptd_objective import Objective, SteadyObjective
from resolvent.init.ptd_result import PTD, measure_ptd
from resolvent.init.ptd_search import Found, Search, search
from resolvent.init.ptd_start import gaussian, towards_skew
from resolvent.ssm.hippo import hippo

SINGULAR = 1e12  # eigenvectors that are conditioned worse than this cannot be inverted to any digits


def ptd(
    matrix: Tensor | str,
    n: int | None = None,
    *,
    B: Tensor | None = None,
    objective: Objective | None = None,
    how: Search | None = None,
    complex_E: bool = False,
    recompute: bool = False,
) -> PTD:
    """Perturb a square matrix such that it can be diagonalised accurately, and report how accurately.

    matrix     (n, n), real or complex; or the name of a HiPPO matrix ("legs", "legt", "lagt", "fout") with its size n
    B          input matrix (n,) or (n, m) of the transfer function to be preserved; a HiPPO name has its own.
               Without B the transfer term of the objective drops out and `distance` is None (B = identity asks for the
               whole resolvent)
    objective  SteadyObjective (the default), CodeObjective or PaperObjective
    how        search settings
    complex_E  also search complex E. For a real matrix the spectrum is then not closed under conjugation: a real
               system becomes complex, no conjugate half can be kept, and layers refuse it
    recompute  search even if a result is shipped; implied by `how`

    The result says whether the search converged and what to try if not.

    Examples:
        >>> found = rv.init.ptd("legs", 16)  # stored in the package: nothing is searched for
        >>> found.V.shape, found.lam.shape
        (torch.Size([16, 16]), torch.Size([16]))
    """
    with torch.device("cpu"):
        objective = objective or SteadyObjective()
        usual = B is None and how is None and objective == SteadyObjective() and not (complex_E or recompute)
        if usual and isinstance(matrix, str) and ptd_store.holds(matrix, n):
            return ptd_store.load(_size(n))
        how = how or Search()
        how = replace(how, pairs=not complex_E) if isinstance(matrix, str) else how
        A, B = _system(matrix, n, B)
        return _search_perturbation(A, B, objective, how, complex_E)


def diagonalise(matrix: Tensor | str, E: Tensor, n: int | None = None, *, B: Tensor | None = None) -> PTD:
    """A + E diagonalised for a given E, with the same measurements, without a search.

    Examples:
        >>> A, B = rv.ssm.hippo("legs", 4)
        >>> rv.init.diagonalise(A, torch.zeros_like(A)).relative_size
        0.0
    """
    with torch.device("cpu"):
        A, B = _system(matrix, n, B)
        E = _check(E, len(A))
        frame = frame_of(A + E)
        lam, V = frame.spectrum(frame.factors(frame.start()))
        if float(torch.linalg.cond(V)) > SINGULAR:
            raise ValueError(
                f"diagonalise: A + E has no usable basis of eigenvectors (kappa = {float(torch.linalg.cond(V)):.1e}): "
                "it is defective or nearly so; use a larger E, or ptd(A) to look for one."
            )
        return _judge(A, measure_ptd(A, V, lam, B, E))


def closed_form(matrix: Tensor | str, n: int | None = None, *, share: float = 0.1, B: Tensor | None = None) -> PTD:
    """E = share (mu I - (A + A^*) / 2): one of the starting points of searches, immediate and for any size.

    For HiPPO-LegS this is E = share P P^T with A + P P^T normal; share=0.1 gives kappa < 20, D = 0.07 and a relative
    size of 0.08 at every n.

    Examples:
        >>> rv.init.closed_form("legs", 8, share=0.1).kappa < 1e4
        True
    """
    with torch.device("cpu"):
        A, B = _system(matrix, n, B)
        return diagonalise(A, share * towards_skew(A), B=B)


def random_perturbation(
    matrix: Tensor | str, n: int | None = None, *, size: float = 0.1, seed: int = 0, B: Tensor | None = None
) -> PTD:
    """The baseline: a Gaussian E with ||E||_2 = size ||A||_2 instead of a searched one.

    It lowers kappa as 1 / size, but spectra are unstable from about n = 32 on, and the transfer function is far off.

    Examples:
        >>> round(rv.init.random_perturbation("legs", 8, size=0.1).relative_size, 3)
        0.1
    """
    if not 0 < size < float("inf"):
        raise ValueError(f"random_perturbation: expected size > 0 (a share of ||A||_2), got {size}; try 0.1.")
    with torch.device("cpu"):
        A, B = _system(matrix, n, B)
        return diagonalise(A, gaussian(A, size, seed), B=B)


def _search_perturbation(A: Tensor, B: Tensor | None, objective: Objective, how: Search, complex_E: bool) -> PTD:
    begun = time.process_time()
    found = search(A.to(torch.complex128) if complex_E else A, B, objective, how)
    result = measure_ptd(A, found.V, found.lam, B)
    seconds = time.process_time() - begun
    searched = replace(result, objective=objective, value=found.value, converged=found.settled, message=_story(found))
    return _judge(A, replace(searched, rounds=found.rounds, seconds=seconds))


def _story(found: Found) -> str:
    if found.rounds == 0 and found.settled:
        return "closed form, not searched."
    if not found.value < float("inf"):
        return "not converged: the objective is infinite at every start; lower its weights, or scale the matrix."
    if found.settled:
        return f"converged in {found.rounds} rounds."
    return (
        f"not converged: the objective still changed by {found.change:.1e} of itself in the last of {found.rounds} "
        "rounds; raise rounds or steps of Search, or its tolerance."
    )


def _judge(A: Tensor, result: PTD) -> PTD:
    """Add warnings: instability, an inaccurate basis, a lost symmetry."""
    notes, bad = [result.message], False
    if result.max_real >= 0 and float(torch.linalg.eigvals(A).real.max()) < 0:
        notes.append(
            f"A is stable but A + E is not (largest real part {result.max_real:.3g}): raise `hinge` or `size` of "
            "SteadyObjective."
        )
        bad = True
    if not result.kappa < SINGULAR or not result.backward_error < 1e-10:
        notes.append(f"kappa = {result.kappa:.1e} leaves no digits: lower the weight of E's size in the objective.")
        bad = True
    if result.distance == float("inf"):
        notes.append("An eigenvalue lies on the imaginary axis: D is infinite, and the search left the response out.")
    if not A.is_complex() and not result.conjugate_closed:
        notes.append("E is complex and A real: the spectrum is not closed under conjugation, no half can be kept.")
    return replace(result, message=" ".join(notes), converged=result.converged and not bad)


def _system(matrix: Tensor | str, n: int | None, B: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if isinstance(matrix, str):
        A, own_B = hippo(matrix, _size(n))
        return A, _columns(A, own_B if B is None else B)
    A = _check(matrix, n)
    return A, _columns(A, B)


def _size(n: int | None) -> int:
    if n is None:
        raise ValueError('ptd: a HiPPO matrix needs its size; write ptd("legs", 32).')
    return n


def _check(matrix: Tensor, n: int | None) -> Tensor:
    """A square finite matrix in float64 or complex128 on the CPU."""
    if not isinstance(matrix, Tensor):
        raise TypeError(
            f"ptd: expected a square tensor or the name of a HiPPO matrix, got {type(matrix).__name__}; "
            "use torch.as_tensor(matrix)."
        )
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"ptd: expected a square matrix (n, n), got {tuple(matrix.shape)}; treat a bank one by one.")
    if n is not None and n != len(matrix):
        raise ValueError(f"ptd: expected a matrix of size {n}, got {tuple(matrix.shape)}; leave n out or correct it.")
    A = matrix.detach().cpu().to(torch.complex128 if matrix.is_complex() else torch.float64)
    if not bool(torch.isfinite(torch.view_as_real(A) if A.is_complex() else A).all()):
        raise ValueError("ptd: expected finite entries, got NaN or infinity; check how the matrix was made.")
    return A


def _columns(A: Tensor, B: Tensor | None) -> Tensor | None:
    """B as (n, m) in A's precision."""
    if B is None:
        return None
    if not isinstance(B, Tensor) or B.dim() not in (1, 2) or B.shape[0] != len(A):
        got = tuple(B.shape) if isinstance(B, Tensor) else type(B).__name__
        raise ValueError(f"ptd: expected B of shape ({len(A)},) or ({len(A)}, m), got {got}; it drives the states.")
    if not bool(torch.isfinite(torch.view_as_real(B) if B.is_complex() else B).all()):
        raise ValueError("ptd: expected a finite B, got NaN or infinity.")
    if B.is_complex() and not A.is_complex():
        raise ValueError("ptd: expected a real B beside a real matrix, got a complex one; make both complex.")
    return B.detach().cpu().to(A.dtype).reshape(len(A), -1)
