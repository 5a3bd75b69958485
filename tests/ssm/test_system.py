"""`System`: one input-output map in many realisations, against scipy's and python-control's simulators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.signal
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ssm import DPLR, Dense, Diagonal, System, conjugate_closed, discretise, dplr, hippo

F64 = torch.float64


def random_system(*bank: int, n: int = 4, m: int = 2, p: int = 3, steps: int | None = None) -> System:
    lead = bank if steps is None else (*bank, steps)
    A = 0.9 * torch.linalg.qr(torch.randn(*lead, n, n, dtype=F64))[0]
    B, C, D = (torch.randn(*lead, *shape, dtype=F64) for shape in ((n, m), (p, n), (p, m)))
    return System(Dense(A), B, C, D, 1.0, time_varying=steps is not None)


def complex_system(*bank: int, n: int = 4, m: int = 2, p: int = 3) -> System:
    lam = 0.9 * torch.exp(1j * torch.rand(*bank, n, dtype=F64))
    B, C = (torch.randn(*bank, *s, dtype=torch.complex128) for s in ((n, m), (p, n)))
    return System(Diagonal(lam), B, C, torch.randn(*bank, p, m, dtype=F64), 1.0)


@pytest.mark.parametrize("length", [1, 7, 64])
def test_simulate_matches_scipy(length: int) -> None:
    s, u, x0 = random_system(), torch.randn(length, 2, dtype=F64), torch.randn(4, dtype=F64)
    y, x = s.simulate(u, x0)
    control_form = s.delayed()
    parts = [t.numpy() for t in (control_form.A.dense(), control_form.B, control_form.C, control_form.D)]
    _, want, states = scipy.signal.dlsim((*parts, 1.0), u.numpy(), x0=x0.numpy())
    assert_close(y, torch.from_numpy(want))
    assert_close(control_form.simulate(u, x0)[0], torch.from_numpy(want))
    assert_close(x, s.A.dense() @ torch.from_numpy(states[-1]) + s.B @ u[-1])


def test_simulate_matches_python_control() -> None:
    control = pytest.importorskip("control", reason="python-control is in the parity extra")
    s, u = random_system(), torch.randn(50, 2, dtype=F64)
    d = s.delayed()
    outside = control.ss(*(t.numpy() for t in (d.A.dense(), d.B, d.C, d.D)), 1.0)
    want = control.forced_response(outside, inputs=u.numpy().T).outputs
    assert_close(s.simulate(u)[0], torch.from_numpy(np.ascontiguousarray(want.T)))


@pytest.mark.parametrize("bank", [(), (3,), (2, 3)])
@pytest.mark.parametrize("steps", [None, 9])
def test_delayed_is_the_same_map(bank: tuple[int, ...], steps: int | None) -> None:
    s, u = random_system(*bank, steps=steps), torch.randn(*bank, 9, 2, dtype=F64)
    d = s.delayed()
    assert d.delay
    assert d.delayed() is d
    x0 = torch.randn(*bank, 4, dtype=F64)
    assert_close(d.simulate(u, x0), s.simulate(u, x0))


@pytest.mark.parametrize("bank", [(), (3,)])
def test_real_realisation_gives_the_real_part(bank: tuple[int, ...]) -> None:
    s, u = complex_system(*bank), torch.randn(*bank, 20, 2, dtype=F64)
    r = s.real()
    assert not r.dtype.is_complex
    assert r.states == 2 * s.states
    assert_close(r.simulate(u)[0], s.simulate(u)[0].real)
    assert_close(r.delayed().simulate(u)[0], s.delayed().real().simulate(u)[0])


def test_real_of_a_real_system_keeps_its_order() -> None:
    s = random_system()
    assert s.real().states == 4
    assert s.real().B is s.B


@pytest.mark.parametrize("make", [random_system, complex_system])
@pytest.mark.parametrize("bank", [(3,), (2, 3)])
def test_block_diagonal_runs_the_bank_side_by_side(make: type, bank: tuple[int, ...]) -> None:
    s, u = make(*bank), torch.randn(*bank, 11, 2, dtype=F64)
    merged = s.block_diagonal()
    assert merged.bank == bank[:-1]
    assert type(merged.A) is type(s.A)
    y = merged.simulate(u.movedim(-3, -2).flatten(-2))[0]
    assert_close(y, s.simulate(u)[0].movedim(-3, -2).flatten(-2))


def test_block_diagonal_of_a_varying_system() -> None:
    s, u = random_system(3, steps=6), torch.randn(3, 6, 2, dtype=F64)
    y = s.block_diagonal().simulate(u.movedim(0, 1).flatten(1))[0]
    assert_close(y, s.simulate(u)[0].movedim(0, 1).flatten(1))
    lam = torch.rand(3, 6, 4, dtype=F64)
    s = replace(s, A=Diagonal(lam))
    y = s.block_diagonal().simulate(u.movedim(0, 1).flatten(1))[0]
    assert_close(y, s.simulate(u)[0].movedim(0, 1).flatten(1))


def test_block_diagonal_of_shared_parts_and_mixed_steps() -> None:
    """A and B shared over the channels, one step dt each: the bank comes from broadcasting."""
    A, B = hippo("legs", 4)
    s = System(A, B[:, None], torch.randn(3, 1, 4, dtype=F64), torch.zeros(1, 1, dtype=F64))
    s = discretise(s, torch.tensor([0.1, 0.2, 0.3], dtype=F64))
    u = torch.randn(3, 8, 1, dtype=F64)
    merged = s.block_diagonal()
    assert merged.dt == 1.0
    assert_close(merged.simulate(u[..., 0].mT)[0], s.simulate(u)[0][..., 0].mT)


def test_block_diagonal_without_a_bank_is_the_system_itself() -> None:
    s = random_system()
    assert s.block_diagonal() is s


def test_time_varying_simulation_is_the_recurrence() -> None:
    s, u = random_system(steps=5), torch.randn(5, 2, dtype=F64)
    x = torch.zeros(4, dtype=F64)
    for k in range(5):
        x = s.A.dense()[k] @ x + s.B[k] @ u[k]
        assert_close(s.simulate(u)[0][k], s.C[k] @ x + s.D[k] @ u[k])
    assert_close(s.simulate(u)[1], x)


def test_conjugate_halves_give_exactly_the_full_system() -> None:
    """The diagonal part of LegS: 2 Re(C x) on one half equals the full complex system and the dense real one."""
    lam, _, b, V = dplr("legs", 16)
    C, D = torch.randn(1, 16, dtype=F64), torch.randn(1, 1, dtype=F64)
    full = dplr("legs", 16, halves=False)
    c = C.to(V.dtype) @ V
    closed = discretise(conjugate_closed(lam, b[:, None], c, D), 0.05)
    whole = discretise(System(Diagonal(full[0]), full[2][:, None], C.to(V.dtype) @ full[3], D), 0.05)
    S = (full[3] @ torch.diag(full[0]) @ full[3].mH).real
    dense = discretise(System(S, hippo("legs", 16)[1][:, None], C, D), 0.05)
    half = discretise(System(Diagonal(lam), b[:, None], 2 * c, D), 0.05)
    u = torch.randn(40, 1, dtype=F64)
    y = half.simulate(u)[0].real
    for other in (closed, whole, dense):
        assert_close(other.simulate(u)[0].real, y)
    assert float(closed.simulate(u)[0].imag.abs().max()) < 1e-13


@pytest.mark.parametrize("form", ["dense", "diagonal", "dplr"])
def test_apply_is_the_matrix(form: str) -> None:
    lam, P, Q, x = (torch.randn(2, *s, dtype=torch.complex128) for s in ((4,), (4, 2), (4, 2), (4, 3)))
    A = {"dense": Dense(P @ Q.mH), "diagonal": Diagonal(lam), "dplr": DPLR(lam, P, Q)}[form]
    assert_close(A.apply(x), A.dense() @ x)
    assert A.lead == (2,)
    assert A.states == 4


def test_parts_are_brought_to_one_dtype() -> None:
    s = System(Diagonal(torch.ones(2, dtype=F64)), torch.ones(2, 1), torch.ones(1, 2) * 1j, torch.ones(1, 1), 1.0)
    assert {s.A.dtype, s.B.dtype, s.C.dtype, s.D.dtype, s.dtype} == {torch.complex128}
    y = s.simulate(torch.ones(2, 1, dtype=F64))[0]
    assert_close(y[:, 0], torch.tensor([1 + 2j, 1 + 4j], dtype=torch.complex128))


def test_bank_is_what_the_parts_broadcast_to() -> None:
    s = System(Diagonal(torch.rand(5, 4)), torch.rand(4, 1), torch.rand(2, 1, 1, 4), torch.rand(1, 1), 1.0)
    assert s.bank == (2, 5)
    assert s.simulate(torch.rand(2, 5, 3, 1))[0].shape == (2, 5, 3, 1)
    assert random_system(2, 3, steps=4).bank == (2, 3)


@pytest.mark.parametrize("length", [0, 1])
def test_short_simulations(length: int) -> None:
    s, x0 = random_system(3), torch.randn(4, dtype=F64)
    y, x = s.simulate(torch.zeros(5, 3, length, 2, dtype=F64), x0)
    assert y.shape == (5, 3, length, 3)
    assert x.shape == (5, 3, 4)
    want: Tensor = s.A.dense() @ x0 if length else x0.expand(3, 4)
    assert_close(x, want.expand(5, 3, 4))


def test_state_gradient_flows_through_a_simulation() -> None:
    s, u = random_system(), torch.randn(5, 2, dtype=F64)
    torch.autograd.gradcheck(s.simulate, (u.requires_grad_(), torch.randn(4, dtype=F64, requires_grad=True)))


def test_bad_input() -> None:
    A, B = hippo("legs", 4)
    C, D = torch.ones(1, 4, dtype=F64), torch.zeros(1, 1, dtype=F64)
    with pytest.raises(ValueError, match="second axis"):
        System(A, B, C, D)
    with pytest.raises(ValueError, match="that agree"):
        System(A, B[:, None], C, torch.zeros(2, 1, dtype=F64))
    with pytest.raises(ValueError, match="A has 4 states but B has 3"):
        System(A, B[:3, None], C[:, :3], D)
    with pytest.raises(ValueError, match="is discrete; give it a dt"):
        System(A[None], B[None, :, None], C[None], D[None], time_varying=True)
    s = System(A, B[:, None], C, D)
    with pytest.raises(ValueError, match="is continuous"):
        s.simulate(torch.zeros(3, 1, dtype=F64))
    with pytest.raises(ValueError, match="only a discrete system"):
        s.delayed()
    with pytest.raises(ValueError, match=r"expected u \(\.\.\., length, 1\), got \(3,\)"):
        discretise(s, 0.1).simulate(torch.zeros(3, dtype=F64))
    with pytest.raises(ValueError, match="varies over 4 steps but u has 5"):
        random_system(steps=4).simulate(torch.zeros(5, 2, dtype=F64))


def test_arrays_lists_and_whole_numbers_are_taken() -> None:
    A, B, C, D = np.array([[0, 1], [-1, -2]]), [[0], [1]], np.array([[1.0, 0.0]]), torch.tensor([[0]])
    system = System(A, B, C, D)  # type: ignore[arg-type]
    assert system.dtype == torch.float64
    assert_close(system.A.dense(), torch.tensor(A, dtype=torch.float64))
    with pytest.raises(TypeError, match="B must be a tensor, an array or nested lists of numbers, got list"):
        System(A, [["one"]], C, D)  # type: ignore[arg-type]
