"""S4 and S4D of state-spaces/s4: a block (S4Block of models/s4/s4.py, S4D of models/s4/s4d.py) or example.py's model.

The released S4 (kernel "dplr") trains C~ = C (I - A_bar^L), L its `l_kernel`; we keep C itself, so the factor is
undone: C = (I - (A_bar^L)^T)^-1 C~ over both conjugate halves.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.blocks.mixer import Mixer
from resolvent.blocks.residual import Residual
from resolvent.models.build import make_layer
from resolvent.models.config import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.foreign.fill import Take, Weights, fill, fill_model, take
from resolvent.models.layer_config import S4Config, S4DConfig
from resolvent.models.model import Model

Discretisation = Literal["zoh", "bilinear"]
UNTRAINED = ("l_kernel", "omega", "z", "step_params")


def import_s4(
    weights: Weights, *, discretisation: Discretisation | None = None, prenorm: bool = False, norm_eps: float = 1e-5
) -> Residual | Model:
    """A block as `Residual` without norm and skip, (b, l, d) -> (b, l, d); or example.py's S4Model as a model.

    discretisation   None: "bilinear" for S4, "zoh" for S4D
    prenorm          of the whole model; example.py's default is False
    """
    whole = "encoder.weight" in weights
    first = "s4_layers.0." if whole else ""
    config = _layer_config(weights, first, discretisation)
    d = weights.shape(f"{first}output_linear.0.weight", _rank(weights, first))[1]
    if not whole:
        block = Residual(make_layer(d, config), mixer=Mixer(d, "glu"), norm="none", skip=False)
        return fill(block, weights, _block(weights, "", "", config), _list_untrained(weights))
    layers = weights.count("s4_layers.")
    settings = ModelConfig(
        ChannelsConfig(weights.shape("encoder.weight", 2)[1]),
        ResidualConfig(config, "glu"),
        ClassifierConfig(weights.shape("decoder.weight", 2)[0]),
        d_model=d,
        layers=layers,
        norm_eps=norm_eps,
        prenorm=prenorm,
    )
    table: dict[str, Take] = {}
    for own, other in (("tower.entry.", "encoder."), ("head.out.", "decoder.")):
        table |= {f"{own}{name}": take(f"{other}{name}") for name in ("weight", "bias")}
    for i in range(layers):
        own = f"tower.body.blocks.{i}."
        table |= _block(weights, own, f"s4_layers.{i}.", config)
        table |= {f"{own}norm.{name}": take(f"norms.{i}.{name}") for name in ("weight", "bias")}
    return fill_model(settings, weights, table, _list_untrained(weights))


def _rank(weights: Weights, before: str) -> int:
    """The mixing map is a Linear (2d, d) in S4Block and a Conv1d (2d, d, 1) in the small S4D."""
    name = f"{before}output_linear.0.weight"
    return weights[name].dim() if name in weights and weights[name].dim() == 3 else 2


def _list_untrained(weights: Weights) -> list[str]:
    return [name for name in weights.tensors if name.split(".")[-1] in UNTRAINED]


def _kernel(weights: Weights, before: str) -> str:
    return (
        f"{before}layer.kernel."
        if any(n.startswith(f"{before}layer.") for n in weights.tensors)
        else f"{before}kernel."
    )


def _layer_config(weights: Weights, before: str, given: Discretisation | None) -> S4Config | S4DConfig:
    kernel = _kernel(weights, before)
    if f"{kernel}log_A_real" in weights:  # the small S4D
        n = weights.shape(f"{kernel}log_A_real", 2)[1]
        return S4DConfig(2 * n, "lin", discretisation=given or "zoh")
    directions, d, n, _ = weights.shape(f"{kernel}C", 4)
    if directions > 2:
        raise ValueError(f"import_weights: expected one channel, or two directions of it, got {directions} in C.")
    both = directions == 2
    if f"{kernel}P" not in weights:
        return S4DConfig(2 * n, "lin", discretisation=given or "zoh", bidirectional=both)
    rank, shared, _, _ = weights.shape(f"{kernel}P", 4)
    n_ssm = 1 if shared == 1 else d
    return S4Config(2 * n, n_ssm=n_ssm, rank=rank, discretisation=given or "bilinear", bidirectional=both)


def _block(weights: Weights, own: str, other: str, config: S4Config | S4DConfig) -> dict[str, Take]:
    mixing = {
        f"{own}mixer.linear.weight": take(f"{other}output_linear.0.weight", change=lambda W: W.flatten(1)),
        f"{own}mixer.linear.bias": take(f"{other}output_linear.0.bias"),
    }
    kernel, ours = _kernel(weights, other), f"{own}layer."
    if f"{kernel}log_A_real" in weights:
        return mixing | _small(kernel, ours, f"{other}D")
    return mixing | _full(weights, kernel, ours, f"{other}layer.D", config)


def _small(kernel: str, own: str, D: str) -> dict[str, Take]:
    """The small S4D has no B: B = 1."""
    one = lambda C: torch.stack([torch.ones_like(C[..., 0]), torch.zeros_like(C[..., 0])], -1)  # noqa: E731
    return {
        f"{own}log_decay": take(f"{kernel}log_A_real"),
        f"{own}frequency": take(f"{kernel}A_imag"),
        f"{own}log_dt": take(f"{kernel}log_dt"),
        f"{own}B": take(f"{kernel}C", change=one),
        f"{own}C": take(f"{kernel}C"),
        f"{own}D": take(D),
    }


def _full(weights: Weights, kernel: str, own: str, D: str, config: S4Config | S4DConfig) -> dict[str, Take]:
    d = weights.shape(f"{kernel}C", 4)[1]
    copies = config.n_ssm if isinstance(config, S4Config) else d
    table = {
        f"{own}log_decay": take(f"{kernel}A_real", change=lambda t: _tile(t, copies)),
        f"{own}frequency": take(f"{kernel}A_imag", change=lambda t: -_tile(t, copies)),  # theirs is -Im(lam)
        f"{own}B": take(f"{kernel}B", change=lambda t: _tile(t[0], copies)),
        f"{own}log_dt": take(f"{kernel}inv_dt", change=lambda t: t[:, 0]),
        f"{own}D": take(D, change=lambda t: t[0]),
    }
    if isinstance(config, S4DConfig):
        return table | _directions(own, (f"{kernel}C",), lambda C, *_: C, config.bidirectional)
    table[f"{own}P"] = take(f"{kernel}P", change=lambda t: _tile(t.movedim(0, 2), copies))  # (s, n, r, 2)
    names = tuple(f"{kernel}{name}" for name in ("C", "A_real", "A_imag", "P", "inv_dt"))
    if f"{kernel}l_kernel" not in weights:
        return table | _directions(own, names, lambda C, *_: C, config.bidirectional)
    length = int(weights[f"{kernel}l_kernel"])
    return table | _directions(own, names, lambda *t: undo_truncation(*t, length=length), config.bidirectional)


def _directions(own: str, names: tuple[str, ...], change: Any, both: bool) -> dict[str, Take]:
    table = {f"{own}C": take(*names, change=lambda *t: change(*t)[0])}
    return table | {f"{own}C_back": take(*names, change=lambda *t: change(*t)[1])} if both else table


def _tile(t: Tensor, copies: int) -> Tensor:
    """Channel h of theirs uses copy h mod s."""
    return t if t.shape[0] == copies else t.repeat(copies // t.shape[0], *[1] * (t.dim() - 1))


def undo_truncation(C: Tensor, A_real: Tensor, A_imag: Tensor, P: Tensor, inv_dt: Tensor, *, length: int) -> Tensor:
    """C of C~ = (I - (A_bar^L)^T) C: C (c, h, n, 2), A_real, A_imag (s, n), P (r, s, n, 2), inv_dt (h, 1)."""
    if length == 0:  # never run: C~ is still C
        return C
    h = C.shape[1]
    lam = _tile(torch.complex(-torch.exp(A_real), -A_imag), h)  # (h, n)
    low = _tile(torch.view_as_complex(P.contiguous()).movedim(0, 2), h)  # (h, n, r)
    lam, low = (torch.cat([t, t.conj()], 1) for t in (lam, low))  # both halves
    A = torch.diag_embed(lam) - low @ low.mH  # (h, 2n, 2n)
    half = inv_dt[:, :1, None].exp() / 2 * A
    eye = torch.eye(A.shape[-1], dtype=A.dtype)
    A_bar = torch.linalg.solve(eye - half, eye + half)
    end = torch.linalg.matrix_power(A_bar, length)
    given = torch.view_as_complex(C.contiguous())
    both = torch.cat([given, given.conj()], -1)  # (c, h, 2n)
    found = torch.linalg.solve((eye - end).mT, both[..., None])[..., 0]
    return torch.view_as_real(found[..., : given.shape[-1]])
