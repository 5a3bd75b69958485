"""Systems of other packages as `System` values: python-control, scipy.signal, plain matrices."""

from __future__ import annotations

from typing import Any

from resolvent.ssm.system import System


def as_system(system: Any) -> System:
    """A system of python-control or scipy.signal, or a tuple (A, B, C, D) or (A, B, C, D, dt), as a `System`.

    Discrete systems of those packages are in the textbook's form, x_{k+1} = A x_k + B u_k, y_k = C x_k + D u_k; they
    become `System(..., delay=True)`, which has the same transfer function. Transfer functions are realised
    by their own package.

    Examples:
        >>> from scipy.signal import TransferFunction
        >>> lowpass = rv.ssm.as_system(TransferFunction([1.0], [1.0, 0.4, 1.0]))
        >>> print(f"{float(rv.analysis.hinf_norm(lowpass)):.4f}")
        2.5516
    """
    if isinstance(system, System):
        return system
    if isinstance(system, tuple | list) and len(system) in (4, 5):
        return _in_textbook_form(*system)
    if not hasattr(system, "A") and not hasattr(system, "to_ss"):
        raise TypeError(
            "as_system: expected a system of python-control or scipy.signal, or (A, B, C, D) then dt where it is "
            f"discrete, got {type(system).__name__}."
        )
    realised = system if hasattr(system, "A") else system.to_ss()
    return _in_textbook_form(realised.A, realised.B, realised.C, realised.D, system.dt)


def _in_textbook_form(A: Any, B: Any, C: Any, D: Any, dt: Any = None) -> System:
    """dt None or 0: continuous; True, both packages' notation for an unspecified step: 1."""
    step = None if dt is None or dt == 0 else float(dt)
    return System(A, B, C, D, step, delay=step is not None)
