"""L2RU: a linear recurrence whose L2 gain is at most a prescribed gamma for any parameter values.

Massai and Ferrari-Trecate 2025, "Free parametrization of L2-bounded state space models":

    x_{k+1} = A x_k + B u_k,    y_k = C x_k + D u_k,    x_0 = 0         =>         sum |y|^2 <= gamma^2 sum |u|^2

Unlike the other layers this one has the delay of the control literature: y_k reads the state before u_k enters, and D
carries the direct path. The bounded-real lemma is about (A, B, C, D) of this form, and converting to the undelayed one
needs A^-1, which may not exist. `system()` therefore returns a System with `delay=True`: the layer, exactly.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from resolvent.init.ring import check_ring
from resolvent.layers import checks
from resolvent.layers.contract import Layer, Spec
from resolvent.layers.groups import group_parameters
from resolvent.layers.l2ru import run as l2ru_run
from resolvent.layers.l2ru.forms import (
    LOG_LIMIT,
    Complete,
    ComplexDiagonal,
    Contraction,
    DenseContraction,
    FreeForm,
    Matrices,
    gain_of,
    prescribed_gain,
    rotations,
    round_contraction,
)
from resolvent.layers.l2ru.storage import contraction_of
from resolvent.ops import plain
from resolvent.ops.modes import Opaque, Parameters
from resolvent.ops.pairs import Pair, stack_parts
from resolvent.runtime.transforms import is_traced
from resolvent.ssm.bounded_real import BoundedReal, bounded_real
from resolvent.ssm.contraction import rounding_margin
from resolvent.ssm.system import Dense, System, conjugate_closed
from resolvent.usage.numbers import check_choice

Form = Literal["complete", "contraction", "diagonal", "dense"]
FORMS: tuple[Form, ...] = ("complete", "contraction", "diagonal", "dense")
FULL = ("complete", "dense")  # forms whose A is a full matrix, run by odd-even halving
RINGS = {"contraction": (0.9, 0.99, math.pi), "diagonal": (0.96, 0.999, 0.1)}  # initial r_min, r_max, max_phase
CLASSES: dict[str, type[FreeForm]] = {
    "complete": Complete,
    "contraction": Contraction,
    "diagonal": ComplexDiagonal,
    "dense": DenseContraction,
}
UNDECAYED = ("log_gamma", "free.alpha", "free.turning.nu_log", "free.turning.theta_log")


class L2RU(Layer):
    """Linear recurrence with prescribed L2 gain, (b, l, d) -> (b, l, d).

    d_state          real states of "complete" (must be d_model, or None) and "dense"; otherwise pairs of states, kept
                     as complex numbers; d_model of them when None
    gamma            the gain; its initial value with `trainable_gamma`
    form             "complete": every square system with that gain, A a full matrix;
                     "contraction": states rotated in pairs, K_raw / max(1, |K_raw|);
                     "diagonal": states rotated in pairs with lam unscaled. These two scan in O(l);
                     "dense": any number of real states and a full matrix A, K_raw / max(1, |K_raw|)
    r_min, r_max, max_phase   ring of the initial lam of the forms with pairs; None: .9, .99, pi and .96, .999, .1
    lr               learning rate of everything in `optim_groups`; None keeps the optimiser's

    The state is in coordinates where the storage function is |z|^2: real (b, d), or complex (b, d_state).

    Examples:
        >>> layer = rv.L2RU(4, gamma=0.5)
        >>> x = torch.randn(2, 50, 4)
        >>> bool(layer(x)[0].norm() <= 0.5 * x.norm())
        True
    """

    starts_from_none = True

    def __init__(
        self,
        d_model: int,
        d_state: int | None = None,
        gamma: float = 1.0,
        *,
        trainable_gamma: bool = False,
        form: Form = "diagonal",
        r_min: float | None = None,
        r_max: float | None = None,
        max_phase: float | None = None,
        lr: float | None = None,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, check_finite=check_finite)
        check_choice("L2RU", "form", form, FORMS)
        checks.check_positive("L2RU", d_state=d_model if d_state is None else d_state)
        _check_gamma(gamma)
        self.d_state = d_model if d_state is None else d_state
        self.form, self.lr = form, lr
        self._option = form if trainable_gamma else f"{form} {float(gamma)!r}"
        self.log_gamma = nn.Parameter(torch.tensor(math.log(gamma))) if trainable_gamma else None
        if form == "complete":
            _check_square(d_model, self.d_state)
        self.free = _parametrisation(form, d_model, self.d_state, (r_min, r_max, max_phase))

    @classmethod
    def from_system(cls, A: Tensor, B: Tensor, C: Tensor, D: Tensor, P: Tensor | None, gamma: float) -> L2RU:
        """A layer of form "dense" that is the system x_{k+1} = A x_k + B u_k, y_k = C x_k + D u_k of gain below gamma.

        A (n, n), B (n, m), C (p, n), D (p, m) real; P (n, n) a storage proving the gain, computed when None. The layer
        is as wide as the larger of m and p: it ignores inputs beyond m, and outputs beyond p are zero.
        Tensors, or anything `torch.as_tensor` takes.
        """
        A, B, C, D = (torch.as_tensor(matrix) for matrix in (A, B, C, D))
        K = contraction_of(A, B, C, D, gamma, P)
        layer = cls(max(D.shape), A.shape[0], gamma, form="dense").to(torch.float64)
        assert isinstance(layer.free, DenseContraction)
        with torch.no_grad():
            layer.free.K.copy_(K / rounding_margin(K.shape[0]))
        return layer

    @property
    def fixed_gamma(self) -> float | None:
        """The gain if it is not trained; kept as text, which `torch.compile(dynamic=True)` does not make a symbol."""
        return next(map(float, self._option.split()[1:]), None)

    @property
    def gamma(self) -> Tensor:
        """The prescribed gain, a positive number."""
        return prescribed_gain(self.fixed_gamma, self.log_gamma, self.anchor)

    def gain(self) -> float:
        """An upper bound of the layer's L2 gain, which is its Lipschitz constant: gamma, as `certificate()` proves."""
        return float(self.gamma.detach())

    def matrices(self, x: Tensor | None = None) -> Matrices:
        """(A, B, C, D) in the layer's dtype, as a forward pass over x uses them."""
        if is_traced(x) and not plain.is_chosen():
            A, *rest = self.cached("traced matrices", self._opaque_matrices)
            return Matrices(A if self.form in FULL else Pair(*A.unbind(-1)), *rest)
        key = "plain matrices" if is_traced(x) else "matrices"
        return self.cached(key, lambda: round_contraction(self.free(self.gamma), self.dtype))

    def _opaque_matrices(self) -> list[Tensor]:
        """As one node of a traced graph; A complex in pairs (p, 2)."""
        own = list(self.free.parts()) + ([] if self.log_gamma is None else [self.log_gamma])
        made: list[Tensor] = MATRICES.operator(own, self._option, 0, False)
        return made

    def system(self) -> System:
        """The layer as one discrete system in the delayed form (`delay=True`)."""
        K = self.matrices()
        if not K.A.is_complex():
            return System(Dense(K.A), K.B, K.C, K.D, 1.0, delay=True)
        B = torch.complex(K.B[0::2], K.B[1::2])
        C = torch.complex(K.C[:, 0::2], -K.C[:, 1::2])
        return dataclasses.replace(conjugate_closed(K.A, B, C / 2, K.D, 1.0), delay=True)

    def certificate(self) -> BoundedReal:
        """The bounded-real inequality of the matrices that the forward pass uses, checked in float64 with P = I.

        P = I holds in the coordinates z in which the layer keeps its state. It proves the gain in exact arithmetic of
        the rounded weights; the float32 rounding of the pass's products is not covered.
        """
        K = Matrices(*(t.detach() for t in self.matrices()))
        A = rotations(K.A.to(torch.complex128)) if K.A.is_complex() else K.A.double()
        system = System(Dense(A), K.B.double(), K.C.double(), K.D.double(), 1.0, delay=True)
        return bounded_real(system, self.gain(), torch.eye(A.shape[0], dtype=A.dtype, device=A.device))

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.d_state), self.dtype if self.form in FULL else self.complex_dtype)

    def optim_groups(self) -> list[dict[str, Any]]:
        """gamma, alpha, nu and theta without weight decay."""
        own: dict[str, Any] = {} if self.lr is None else {"lr": self.lr}
        special = {name: dict(own) for name, _ in self.named_parameters()}
        for name in UNDECAYED:
            special[name] = {**own, "weight_decay": 0.0}
        return group_parameters(self, special)

    def _derive_all(self) -> None:
        self.matrices()

    def _sequence(self, x: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return l2ru_run.sequence(self.matrices(x), x, state, lengths)

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return l2ru_run.step(self.matrices(x_t), x_t, state)


def _make_matrices(parameters: Parameters, option: str, T: int, delay: bool) -> list[Tensor]:
    """From the free parameters and log_gamma, or the fixed gain in `option`."""
    form, *fixed = option.split()
    like = parameters[0]
    own, gain = (parameters, None) if fixed else (parameters[:-1], parameters[-1])
    fill = torch.full  # `torch.tensor` would copy a number to the device and synchronise
    gamma = fill((), float(fixed[0]), dtype=torch.float64, device=like.device) if gain is None else gain_of(gain)
    return [stack_parts(t) for t in round_contraction(CLASSES[form].make(gamma, *own), like.dtype)]


def _shapes(parameters: Parameters, option: str, T: int, delay: bool) -> list[tuple[int, ...]]:
    form = option.split()[0]
    if form in FULL:
        n = parameters[0].shape[0]
        d = n if form == "complete" else parameters[1].shape[0]
        return [(n, n), (n, d), (d, n), (d, d)]
    p, d = parameters[0].shape[0], parameters[2].shape[1]
    return [(p, 2), (2 * p, d), (d, 2 * p), (d, d)]


MATRICES = Opaque("l2ru_matrices", _make_matrices, _shapes)


def _parametrisation(
    form: Form, d: int, d_state: int, given: tuple[float | None, float | None, float | None]
) -> Complete | Contraction | ComplexDiagonal | DenseContraction:
    if form in FULL:
        if any(value is not None for value in given):
            raise ValueError(
                f'L2RU: form="{form}" has a full matrix A and no ring; leave r_min, r_max and max_phase at None, '
                'or use form="diagonal".'
            )
        return Complete(d) if form == "complete" else DenseContraction(d, d_state)
    r_min, r_max, max_phase = (own if value is None else value for own, value in zip(RINGS[form], given, strict=True))
    check_ring("L2RU", r_min, r_max, max_phase)
    make = Contraction if form == "contraction" else ComplexDiagonal
    return make(d, d_state, r_min, r_max, max_phase)


def _check_gamma(gamma: float) -> None:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        raise TypeError(f"L2RU: gamma must be a number, got {gamma!r} of type {type(gamma).__name__}.")
    if not 0 < gamma < math.exp(LOG_LIMIT):
        raise ValueError(f"L2RU: gamma, the gain, must be positive and below {math.exp(LOG_LIMIT):.0e}, got {gamma}.")


def _check_square(d_model: int, d_state: int) -> None:
    if d_state != d_model:
        raise ValueError(
            f'L2RU: form="complete" is square, d_state must equal d_model={d_model} or be None, got {d_state}; '
            'use form="dense", "contraction" or "diagonal" for another number of states.'
        )
