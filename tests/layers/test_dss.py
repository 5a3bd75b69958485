"""DSS against the paper's formulas written out, and what tells its two kernels apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers.dss import DSS
from resolvent.ssm.hippo import dplr


def z_of(layer: DSS) -> tuple[Tensor, Tensor]:
    """lam (n,) and z = dt lam with its separate steps, (d, n)."""
    re = -layer.decay.exp() if layer.kernel == "exp" else layer.decay
    lam = torch.complex(re, layer.frequency)
    dt = layer.log_dt.exp()
    return lam, torch.complex(dt[:, :1] * re, dt[:, -1:] * layer.frequency)


def exp_kernel(layer: DSS, W: Tensor, length: int) -> Tensor:
    lam, z = z_of(layer)
    weight = torch.view_as_complex(W) * (torch.exp(z) - 1) / lam
    return torch.einsum("dn,dnl->dl", weight, torch.exp(z[..., None] * torch.arange(length))).real


def softmax_kernel(layer: DSS, W: Tensor, length: int) -> Tensor:
    """The row softmax of z l, shifted by its largest term, then W / lam with the regularised reciprocal."""
    lam, z = z_of(layer)
    exponent = z[..., None] * torch.arange(length)  # (d, n, l)
    top = torch.where(z.real > 0, exponent[..., -1], exponent[..., 0])[..., None]
    e = torch.exp(exponent - top)
    x = lam * e.sum(-1)
    weight = torch.view_as_complex(W) * x.conj() / (x.abs() ** 2 + 1e-7)
    return torch.einsum("dn,dnl->dl", weight, e).real


def response(layer: DSS, length: int) -> Tensor:
    u = torch.zeros(1, length, layer.d_model, dtype=torch.float64)
    u[:, 0] = 1
    y = layer(u)[0][0].T.clone()
    y[:, 0] -= layer.D
    return y


def spread(layer: DSS) -> DSS:
    """Some states that decay, some that grow, one that does neither."""
    with torch.no_grad():
        layer.decay.copy_(torch.linspace(-3, 3, layer.d_state) if layer.d_state % 2 else torch.zeros(layer.d_state))
    return layer


@pytest.mark.parametrize("separate", [True, False])
def test_exp_kernel_is_the_formula(separate: bool) -> None:
    layer = DSS(3, 8, separate_dt=separate).double()
    assert layer.log_dt.shape == (3, 2 if separate else 1)
    assert_close(response(layer, 140), exp_kernel(layer, layer.W, 140))


@pytest.mark.parametrize("length", [1, 2, 64, 140])
def test_softmax_kernel_is_the_formula(length: int) -> None:
    for n in (7, 8):
        layer = spread(DSS(3, n, kernel="softmax").double())
        assert_close(response(layer, length), softmax_kernel(layer, layer.W, length))


def test_softmax_closed_form_with_its_parenthesis() -> None:
    """(e^z - 1) / (lam (e^{L z} - 1)), where the whole difference is the denominator."""
    layer = DSS(2, 4, kernel="softmax", separate_dt=False).double()
    lam, z = z_of(layer)
    L = 50
    factor = (torch.exp(z) - 1) / (lam * (torch.exp(L * z) - 1))
    e = torch.exp(z[..., None] * torch.arange(L))
    want = torch.einsum("dn,dnl->dl", torch.view_as_complex(layer.W) * factor, e).real
    assert_close(response(layer, L), want, tolerance=1e-6)  # the closed form has no regulariser: 1e-7 / |lam S|^2


def test_exp_kernels_are_prefixes_and_softmax_kernels_are_not() -> None:
    exp = DSS(2, 6).double()
    assert_close(response(exp, 100)[:, :40], response(exp, 40))
    softmax = DSS(2, 6, kernel="softmax").double()
    long, short = response(softmax, 100)[:, :40], response(softmax, 40)
    assert float((long - short).abs().max()) > 1e-2 * float(short.abs().max())


def test_declared_length_fixes_the_kernel() -> None:
    declared, free = DSS(2, 6, kernel="softmax", length=100).double(), DSS(2, 6, kernel="softmax").double()
    free.load_state_dict(declared.state_dict())
    assert_close(response(declared, 40), response(free, 100)[:, :40])
    assert_close(response(declared, 100), response(free, 100))


def test_without_a_length_each_sequence_has_the_kernel_of_its_own() -> None:
    for bidirectional in (False, True):
        layer = spread(DSS(2, 7, kernel="softmax", bidirectional=bidirectional).double())
        x, lengths = torch.randn(3, 90, 2, dtype=torch.float64), torch.tensor([1, 90, 66])
        y, _ = layer(x, lengths=lengths)
        for i, n in enumerate(lengths.tolist()):
            assert_close(y[i : i + 1, :n], layer(x[i : i + 1, :n])[0])


@pytest.mark.parametrize("kernel", ["exp", "softmax"])
def test_backward_direction_sees_the_strict_future(kernel: str) -> None:
    layer, x = DSS(2, 5, kernel=kernel, bidirectional=True).double(), torch.randn(2, 70, 2, dtype=torch.float64)
    formula = exp_kernel if kernel == "exp" else softmax_kernel
    assert layer.W_back is not None
    ahead, behind = formula(layer, layer.W, 70), formula(layer, layer.W_back, 70)
    want = x * layer.D
    for t in range(70):
        for s in range(70):
            want[:, t] += (ahead[:, t - s] if s <= t else behind[:, s - t - 1]) * x[:, s]
    assert_close(layer(x)[0], want)


def test_fast_growth_is_held_and_finite_in_single_precision() -> None:
    layer = DSS(2, 4, kernel="softmax", length=300)
    with torch.no_grad():
        layer.decay.fill_(1e3)
    x = torch.randn(1, 300, 2)
    y, _ = layer(x)
    assert_close(y, layer.double()(x.double())[0], dtype=torch.float32)


def test_starts_from_the_spectrum_of_legs_of_twice_the_size() -> None:
    layer = DSS(2, 16).double()
    assert_close(layer.frequency, dplr("legs", 32)[0].imag, tolerance=1e-7)  # kept in float32 before the cast
    assert_close(layer.decay.exp(), torch.full((16,), 0.5, dtype=torch.float64), tolerance=1e-7)


def test_streaming_softmax_needs_a_length_and_stops_at_it() -> None:
    free, x = DSS(2, 4, kernel="softmax"), torch.randn(1, 6, 2)
    _, state = free(x)
    for call in (lambda: free.step(x[:, 0]), lambda: free(x, state), free.system):
        with pytest.raises(ValueError, match="length="):
            call()
    layer = DSS(2, 4, kernel="softmax", length=8)
    _, state = layer(x)
    assert state[1].tolist() == [6]
    for call in (lambda: layer(x, state), lambda: layer(torch.randn(1, 9, 2))):
        with pytest.raises(ValueError, match="8 steps"):
            call()
    for _ in range(2):
        _, state = layer.step(x[:, 0], state)
    with pytest.raises(ValueError, match="got 9"):
        layer.step(x[:, 0], state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "exponential"}, "kernel must be one of"),
        ({"length": 10}, 'no meaning for kernel="exp"'),
        ({"kernel": "softmax", "length": 0}, "length must be at least 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DSS(4, **options)  # type: ignore[arg-type]
