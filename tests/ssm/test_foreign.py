"""Systems of other packages keep their transfer functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import signal

import resolvent as rv
from helpers import assert_close
from resolvent.ssm import as_system

A, B, C = np.array([[0.0, 1.0], [-4.0, -0.5]]), np.array([[0.0], [1.0]]), np.array([[1.0, 0.3]])
D = np.array([[0.7]])
W = np.array([0.0, 0.3, 1.1, 2.9])


def gain(system: object) -> np.ndarray:
    return rv.analysis.frequency_response(as_system(system), W).flatten().numpy()


def test_continuous_systems_of_scipy() -> None:
    want = signal.freqresp(signal.StateSpace(A, B, C, D), W)[1]
    forms = signal.StateSpace(A, B, C, D), signal.TransferFunction(*signal.ss2tf(A, B, C, D)), (A, B, C, D)
    for form in forms:
        np.testing.assert_allclose(gain(form), want, atol=1e-10)
    assert as_system(forms[0]).dt is None


def test_discrete_systems_are_in_the_form_of_textbooks() -> None:
    """y_k reads x_k before u_k enters it: the same matrices without the delay are another system."""
    found = signal.cont2discrete((A, B, C, D), 0.1)
    want = signal.dfreqresp(signal.dlti(*found[:4], dt=0.1), W)[1]
    np.testing.assert_allclose(gain(found), want, atol=1e-10)
    np.testing.assert_allclose(gain(signal.dlti(*found[:4], dt=0.1)), want, atol=1e-10)
    without = rv.analysis.frequency_response(rv.System(*found[:4], dt=0.1), W).flatten().numpy()
    assert np.abs(without - want).max() > 0.01


def test_systems_of_python_control() -> None:
    control = pytest.importorskip("control", reason="needs pip install '.[parity]'")
    continuous = control.ss(A, B, C, D)
    discrete = control.c2d(continuous, 0.1)
    others = control.tf([1.0], [1.0, 0.4, 1.0]), control.ss([[0.5]], [[1]], [[1]], 0, True)
    for system in (continuous, discrete, *others):
        norm = rv.analysis.hinf_norm(as_system(system))
        assert float(norm) == pytest.approx(float(control.norm(system, "inf")), rel=1e-4)
    assert as_system(discrete).dt == 0.1
    assert as_system(discrete).delay


def test_a_system_stays_itself_and_others_are_refused() -> None:
    system = rv.System(A, B, C, D)
    assert as_system(system) is system
    with pytest.raises(TypeError, match="python-control or scipy"):
        as_system(3)


def test_a_number_for_feedthrough() -> None:
    assert rv.System(A, B, C, 0).D.tolist() == [[0.0]]
    assert rv.System(A, np.eye(2), C, 0).D.tolist() == [[0.0, 0.0]]
    with pytest.raises(ValueError, match="that agree"):
        rv.System(A, np.eye(2), C, 1.5)


def test_numpy_goes_all_the_way() -> None:
    system = rv.System(0.1 * A, B, C, D, dt=1.0, delay=True)
    y, _ = system.simulate(np.ones((5, 1)))
    again = system.simulate(torch.ones(5, 1, dtype=torch.float64))
    assert_close(y, again[0])
    layer = rv.L2RU.from_system(0.1 * A, B, C, D, None, 3.0)
    assert layer.certificate().holds
    assert_close(layer(torch.ones(1, 5, 1, dtype=torch.float64))[0][0], y)


def test_a_norm_in_one_line() -> None:
    one = str(rv.analysis.hinf_norm(rv.System([[-1.0]], [[1.0]], [[2.0]], 0)))
    assert one == "H-infinity norm 2 at frequency 0, between 2 and 2"
    assert "not stable" in str(rv.analysis.hinf_norm(rv.System([[1.0]], [[1.0]], [[2.0]], 0)))
