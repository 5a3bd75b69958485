"""The selective scan in every backend: against the loop, closed forms, and its own pieces."""

from __future__ import annotations

import pytest
import torch
from linear_cases import every_backend
from selective_cases import double, draw, fast, slow, with_gradients
from torch import Tensor

from helpers import assert_close
from resolvent.ops.selective_scan.inputs import Inputs
from resolvent.scan import selective_scan, use

both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def check_against_loop(backend: str, x: Inputs, reverse: bool = False) -> None:
    values, gradients = with_gradients(slow, x, reverse)
    with use(backend):
        got_values, got_gradients = with_gradients(fast, x, reverse)
    assert_close(got_values, values)
    assert_close(got_gradients, gradients, gradient=True)


@every_backend
@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 65, 257])
@both_ways
def test_values_and_gradients_equal_the_loop(backend: str, length: int, reverse: bool) -> None:
    x = draw(2, length, 7, 4)
    check_against_loop(backend, x, reverse)


@every_backend
@pytest.mark.parametrize(("d", "n"), [(1, 1), (1, 17), (7, 16), (128, 4), (130, 17), (33, 1)])
def test_any_number_of_channels_and_states(backend: str, d: int, n: int) -> None:
    x = draw(1, 34, d, n)
    check_against_loop(backend, x)


@every_backend
@pytest.mark.parametrize("extras", [(), ("D",), ("z",), ("h0",), ("D", "z")], ids=lambda e: "-".join(e) or "none")
def test_optional_inputs_may_be_absent(backend: str, extras: tuple[str, ...]) -> None:
    x = draw(2, 35, 5, 3, extras=extras)
    check_against_loop(backend, x)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_narrow_dtypes_equal_the_loop_in_float64(backend: str, dtype: torch.dtype) -> None:
    x = draw(2, 70, 9, 4, dtype=dtype)
    values, gradients = with_gradients(slow, double(x))
    with use(backend):
        (y, h), got = with_gradients(fast, x)
    assert (y.dtype, h.dtype) == (dtype, torch.float32)
    assert [g.dtype for g in got] == [dtype] * len(got)
    assert_close((y, h), values, dtype=dtype)
    assert_close(got, gradients, dtype=dtype, gradient=True)


def test_half_inputs_with_wide_parameters_keep_each_dtype() -> None:
    x = draw(2, 20, 4, 3)
    mixed = x._replace(**{k: getattr(x, k).detach().bfloat16().requires_grad_() for k in ("u", "B", "C", "z")})
    mixed = mixed._replace(**{k: getattr(x, k).detach().float().requires_grad_() for k in ("A", "D", "dt", "h0")})
    (y, h), gradients = with_gradients(fast, mixed)
    assert (y.dtype, h.dtype) == (torch.bfloat16, torch.float32)
    assert [g.dtype for g in gradients] == [t.dtype for t in mixed if t is not None]
    assert_close(y, slow(double(mixed))[0], dtype=torch.bfloat16)


@every_backend
def test_autocast_changes_nothing_inside(backend: str) -> None:
    x = draw(2, 40, 4, 3, dtype=torch.float32)

    with use(backend):
        want = with_gradients(fast, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = with_gradients(fast, x)
    assert_close(got, want, tolerance=1e-6)  # the same operations in the same dtype; bfloat16 would be off by 1e-3


@every_backend
@both_ways
def test_pieces_with_the_carried_state_equal_the_whole(backend: str, reverse: bool) -> None:
    x = draw(2, 75, 3, 4)
    with use(backend):
        y, h = fast(x, reverse)
        state, parts = x.h0, []
        cuts = [(0, 10), (10, 11), (11, 60), (60, 75)]
        for start, stop in reversed(cuts) if reverse else cuts:
            u, dt, A, B, C, D, z, _ = (t[:, start:stop] if t.ndim == 3 and t.shape[1] == 75 else t for t in x)
            part, state = selective_scan(u, dt, A, B, C, D, z, state, reverse)
            parts.append(part)
    assert_close(torch.cat(parts[::-1] if reverse else parts, dim=1), y)
    assert_close(state, h)


@every_backend
def test_constant_coefficients_are_a_convolution(backend: str) -> None:
    """y = K * u with K_k = sum_n C_n exp(k dt A_n) dt B_n, by a matrix of shifted kernels."""
    l, d, n = 50, 3, 4
    x = draw(1, l, d, n, extras=())
    dt, B, C = x.dt[:, :1].expand(1, l, d), x.B[:, :1].expand(1, l, n), x.C[:, :1].expand(1, l, n)
    power = torch.arange(l, dtype=torch.float64)[:, None, None] * (dt[0, 0, :, None] * x.A)
    kernel = torch.einsum("n,ldn,d,n->ld", C[0, 0], power.exp(), dt[0, 0], B[0, 0])
    lag = torch.arange(l)[:, None] - torch.arange(l)
    toeplitz = torch.where((lag >= 0)[..., None], kernel[lag.clamp(min=0)], 0.0)  # (l, l, d)
    with use(backend):
        y, _ = selective_scan(x.u, dt, x.A, B, C)
    assert_close(y[0], torch.einsum("tsd,sd->td", toeplitz, x.u[0]))


@every_backend
def test_without_decay_it_is_masked_linear_attention(backend: str) -> None:
    x = draw(2, 90, 6, 5, extras=())
    with use(backend):
        y, _ = selective_scan(x.u, torch.ones_like(x.dt), torch.zeros_like(x.A), x.B, x.C)
    want = torch.tril(x.C @ x.B.transpose(1, 2)) @ x.u
    assert_close(y, want, tolerance=1e-12)  # exp(0) is exactly 1, so only the sums round


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_zero_step_holds_the_state_to_the_bit(backend: str, dtype: torch.dtype) -> None:
    x = draw(2, 40, 9, 4, dtype=dtype)
    dt = x.dt.detach().clone()
    dt[:, 25:] = 0
    with use(backend):
        _, held = fast(x._replace(dt=dt))
        _, short = fast(Inputs(*(t[:, :25] if t.shape[1:2] == (40,) else t for t in x._replace(dt=dt))))
    assert torch.equal(held, short)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_growing_states(backend: str, dtype: torch.dtype) -> None:
    x = draw(1, 40, 3, 2, dtype=dtype)
    x = x._replace(A=(-x.A).detach().requires_grad_())
    values, gradients = with_gradients(slow, double(x))
    assert values[1].abs().max() > 1e6
    with use(backend):
        got_values, got_gradients = with_gradients(fast, x)
    assert_close(got_values, values, dtype=dtype)
    assert_close(got_gradients, gradients, dtype=dtype, gradient=True)


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rate", [-80.0, -86.9, -100.0, -745.0, -1e30], ids=str)
def test_multipliers_that_underflow_forget_the_past(backend: str, dtype: torch.dtype, rate: float) -> None:
    x = draw(1, 5, 3, 2, dtype=dtype)
    x = x._replace(A=torch.full_like(x.A, rate).requires_grad_(), dt=torch.ones_like(x.dt).requires_grad_())
    with use(backend):
        (_, h), gradients = with_gradients(fast, x)
    assert_close(h, (x.u[:, -1, :, None] * x.B[:, -1, None, :]), dtype=dtype)
    assert all(torch.isfinite(g).all() for g in gradients)
    assert gradients[2].abs().max() < 1e-30


@every_backend
def test_nan_and_infinity_are_not_hidden(backend: str) -> None:
    x = draw(1, 6, 2, 2, extras=(), dtype=torch.float32)
    dt = x.dt.detach().clone()
    dt[0, 3, 0] = float("nan")
    with use(backend):
        y, _ = fast(x._replace(dt=dt))
        grown, _ = fast(x._replace(A=torch.full_like(x.A, 300.0)))
    assert torch.isnan(y[0, 3:, 0]).all()
    assert torch.isfinite(y[0, :3]).all()
    assert torch.isfinite(y[0, :, 1]).all()
    assert not torch.isfinite(grown).all()


@every_backend
def test_memory_layout_does_not_matter(backend: str) -> None:
    x = draw(2, 33, 5, 3)
    turned = Inputs(*(t.detach().mT.contiguous().mT.requires_grad_() if t.ndim > 1 else t for t in x))
    assert not turned.u.is_contiguous()
    with use(backend):
        want, got = with_gradients(fast, x), with_gradients(fast, turned)
    assert_close(got, want)


@every_backend
def test_only_the_last_state_or_only_some_inputs(backend: str) -> None:
    x = draw(2, 33, 5, 3)
    (want,) = torch.autograd.grad(slow(x)[1].sum(), x.B)
    fixed = Inputs(*(t.detach() for t in x))._replace(B=x.B)
    with use(backend):
        (got,) = torch.autograd.grad(fast(fixed)[1].sum(), x.B)
    assert_close(got, want, gradient=True)


def test_empty_sequences_pass_the_state_on() -> None:
    x = draw(2, 0, 3, 4)
    y, h = fast(x)
    assert y.shape == (2, 0, 3)
    assert torch.equal(h, x.h0)
    assert torch.equal(torch.autograd.grad(h.sum(), x.h0)[0], torch.ones_like(h))
    assert torch.equal(selective_scan(*x[:5])[1], torch.zeros_like(h))


@every_backend
@pytest.mark.parametrize("shape", [(0, 5, 3, 2), (2, 5, 3, 0), (2, 5, 0, 2)], ids=["batch", "states", "channels"])
def test_empty_axes(backend: str, shape: tuple[int, int, int, int]) -> None:
    x = draw(*shape)
    want = with_gradients(slow, x)
    with use(backend):
        assert_close(with_gradients(fast, x), want)


def _bad(name: str, change: object) -> dict[str, Tensor]:
    x = draw(2, 5, 3, 4)._asdict()
    x[name] = change(x[name]) if callable(change) else change
    return x


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("u", lambda t: t[0], ValueError, r"expected u of shape \(b, l, d\)"),
        ("dt", lambda t: t[:, :, :1], ValueError, r"expected dt of shape \(2, 5, 3\).*got \(2, 5, 1\)"),
        ("A", lambda t: t[None], ValueError, r"expected A of shape \(d, n\)"),
        ("B", lambda t: t.mT, ValueError, r"expected B of shape \(2, 5, 4\)"),
        ("C", lambda t: t[:1], ValueError, r"expected C of shape \(2, 5, 4\)"),
        ("D", lambda t: t[:2], ValueError, r"expected D of shape \(3,\)"),
        ("h0", lambda t: t.mT, ValueError, r"expected h0 of shape \(2, 3, 4\)"),
        ("A", lambda t: t.to(torch.complex128), TypeError, "real floating A"),
        ("u", lambda t: t.long(), TypeError, "real floating u"),
        ("B", lambda t: t.tolist(), TypeError, "expected a tensor for B, got list"),
        ("C", None, TypeError, "expected a tensor for C, got NoneType"),
        ("z", lambda t: t.to("meta"), ValueError, "expected z on cpu"),
    ],
)
def test_bad_input_is_refused(name: str, change: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        selective_scan(**_bad(name, change))
