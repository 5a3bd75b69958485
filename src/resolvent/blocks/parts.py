"""What each layer, map and block contributes to a model's Lipschitz constant: `parts_of(module, name)` -> a chain.

Constants are of the module in evaluation mode (dropout is then the identity, and no part). A module that is not known
here is a part without a constant: a bound is never guessed.
"""

from __future__ import annotations

import math
from functools import singledispatch

from torch import nn

from resolvent.blocks.ads import AdS
from resolvent.blocks.gate import Gate
from resolvent.blocks.h3 import H3
from resolvent.blocks.hawk import Hawk
from resolvent.blocks.linear_parts import NO_GAIN, SILU_SLOPE, linear_parts, system_parts, widened
from resolvent.blocks.lipschitz import LipschitzResidual
from resolvent.blocks.mamba import Mamba
from resolvent.blocks.mega import GatedAttention
from resolvent.blocks.mixer import MLP, GatedMLP, Mixer
from resolvent.blocks.norm import BatchNorm, LayerNorm, NoNorm, RMSNorm, ScaleNorm
from resolvent.blocks.normalised import NormalisedLRU
from resolvent.blocks.pointwise import Pointwise
from resolvent.blocks.projection import Projection
from resolvent.blocks.residual import Residual
from resolvent.blocks.sandwich import Sandwich, SandwichMLP
from resolvent.blocks.spectral import Spectral
from resolvent.blocks.stack import Stack
from resolvent.layers.attention import Attention
from resolvent.layers.contract import Layer
from resolvent.layers.rglru import RGLRU
from resolvent.layers.s6 import S6
from resolvent.layers.scalar_s6 import ScalarS6
from resolvent.ssm.part import Part

# sup |f'|. GELU: f' = Phi(x) + x phi(x), f'' = phi(x) (2 - x^2) vanishes at x = sqrt(2), where
# f' = (1 + erf(1)) / 2 + exp(-1) / sqrt(pi) = 1.128904...; its least value is 1 - that, so smaller in size.
# The tanh form has its largest slope 1.128993... at 1.418504 (rounded up).
GELU = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi)
GELU_TANH = 1.128994

PRODUCT = "a product of features has no Lipschitz constant: its slope in one factor is the other, which is unbounded"
SELECTIVE = "its recurrence depends on its input, " + PRODUCT
ATTENTION = "attention scores are products of features, and dot-product attention has no Lipschitz constant"


@singledispatch
def parts_of(module: nn.Module, name: str) -> list[Part]:
    """The chain of parts that `module`, at the dotted place `name`, stands for; empty for an identity."""
    return [Part(name, "pointwise", None, reason=f"{type(module).__name__} has no known Lipschitz constant")]


def chain(*named: tuple[nn.Module, str]) -> list[Part]:
    return [part for module, name in named for part in parts_of(module, name)]


# -- pointwise functions and linear maps -------------------------------------------------------------------------------


@parts_of.register(nn.Identity)
@parts_of.register(nn.Dropout)
@parts_of.register(NoNorm)
def _identity(module: nn.Module, name: str) -> list[Part]:
    return []


@parts_of.register(nn.GELU)
@parts_of.register(nn.SiLU)
@parts_of.register(nn.ReLU)
@parts_of.register(nn.Tanh)
@parts_of.register(nn.Sigmoid)
def _activation(module: nn.Module, name: str) -> list[Part]:
    slopes: dict[type, float] = {nn.SiLU: SILU_SLOPE, nn.ReLU: 1.0, nn.Tanh: 1.0, nn.Sigmoid: 0.25}
    if isinstance(module, nn.GELU):
        return [Part(name, "pointwise", GELU if module.approximate == "none" else GELU_TANH)]
    return [Part(name, "pointwise", slopes[type(module)])]


@parts_of.register(nn.Linear)
@parts_of.register(Projection)
def _linear(module: nn.Linear | Projection, name: str) -> list[Part]:
    return linear_parts(name, module.weight, module.bias)


@parts_of.register(Spectral)
def _spectral(module: Spectral, name: str) -> list[Part]:
    return linear_parts(name, module.matrix(), module.bias)


@parts_of.register(nn.Sequential)
def _sequential(module: nn.Sequential, name: str) -> list[Part]:
    return chain(*((child, f"{name}.{i}") for i, child in enumerate(module)))


@parts_of.register(Sandwich)
@parts_of.register(SandwichMLP)
@parts_of.register(Gate)
def _lipschitz_map(module: Sandwich | SandwichMLP | Gate, name: str) -> list[Part]:
    return [Part(name, "gate" if isinstance(module, Gate) else "pointwise", module.gain())]


@parts_of.register(AdS)
def _ads(module: AdS, name: str) -> list[Part]:
    return [Part(name, "gate", None, reason="adaptive scaling sigma(W y) * y: " + PRODUCT)]


# -- norms -------------------------------------------------------------------------------------------------------------


@parts_of.register(LayerNorm)
@parts_of.register(RMSNorm)
@parts_of.register(ScaleNorm)
def _instance_norm(module: LayerNorm | RMSNorm | ScaleNorm, name: str) -> list[Part]:
    by = "the standard deviation" if isinstance(module, LayerNorm) else "the root mean square"
    least = f"only eps = {module.eps:g} bounds its slope there, at {module.eps**-0.5:.0f} times the weight"
    return [Part(name, "norm", None, reason=f"{type(module).__name__} divides by {by}: unbounded near zero, {least}")]


@parts_of.register(BatchNorm)
def _batch_norm(module: BatchNorm, name: str) -> list[Part]:
    """With running statistics it is a diagonal linear map."""
    if module.training:
        return [Part(name, "norm", None, reason="BatchNorm in training couples the samples of a batch; call eval()")]
    scale = module.weight.detach().double().abs() / (module.running_var.double() + module.eps).sqrt()
    return [Part(name, "norm", float(scale.max())), Part(f"{name}.bias", "bias", 1.0, reason=NO_GAIN)]


# -- layers ------------------------------------------------------------------------------------------------------------


@parts_of.register(Layer)
def _layer(module: Layer, name: str) -> list[Part]:
    """Time-invariant layers by their systems; blocks and others have an entry of their own."""
    return system_parts(module, name)


@parts_of.register(S6)
@parts_of.register(ScalarS6)
@parts_of.register(RGLRU)
def _selective(module: Layer, name: str) -> list[Part]:
    return [Part(name, "selective", None, reason=f"{type(module).__name__}: {SELECTIVE}")]


@parts_of.register(Attention)
@parts_of.register(GatedAttention)
def _attention(module: Layer, name: str) -> list[Part]:
    return [Part(name, "attention", None, reason=ATTENTION)]


# -- scaffolds ---------------------------------------------------------------------------------------------------------


@parts_of.register(Stack)
def _stack(module: Stack, name: str) -> list[Part]:
    return chain(*((block, f"{name}.blocks.{i}") for i, block in enumerate(module.blocks)))


@parts_of.register(Pointwise)
def _pointwise(module: Pointwise, name: str) -> list[Part]:
    return parts_of(module.inner, f"{name}.inner")


@parts_of.register(Residual)
def _residual(module: Residual, name: str) -> list[Part]:
    norm = parts_of(module.norm, f"{name}.norm")
    branch = chain((module.layer, f"{name}.layer"), (module.ads, f"{name}.ads"), (module.mixer, f"{name}.mixer"))
    branch = [*norm, *branch] if module.prenorm else branch
    body = [Part(name, "residual", parts=tuple(branch))] if module.skip else branch
    return body if module.prenorm else [*body, *norm]


@parts_of.register(LipschitzResidual)
def _lipschitz_residual(module: LipschitzResidual, name: str) -> list[Part]:
    branch = chain((module.layer, f"{name}.layer"), (module.sigma, f"{name}.sigma"))
    share = float(module.share().detach().double())
    return [Part(name, "residual", parts=tuple(branch)), Part(f"{name}.share", "linear", share)]


@parts_of.register(NormalisedLRU)
def _normalised(module: NormalisedLRU, name: str) -> list[Part]:
    return [Part(name, "system", module.gain(), widened(module.system()))]


@parts_of.register(Mixer)
def _mixer(module: Mixer, name: str) -> list[Part]:
    act = parts_of(module.act, f"{name}.act")
    if module.linear is None:
        return act
    linear = parts_of(module.linear, f"{name}.linear")
    final = parts_of(module.final, f"{name}.final")
    if module.kind == "linear":
        return [*act, *linear, *final]
    if module.down is not None:
        return [*act, *linear, *act, *parts_of(module.down, f"{name}.down"), *final]
    return [*act, Part(name, "gate", None, reason=f"{module.kind} multiplies by a sigmoid: {PRODUCT}"), *final]


@parts_of.register(MLP)
def _mlp(module: MLP, name: str) -> list[Part]:
    return chain((module.up, f"{name}.up"), (module.act, f"{name}.act"), (module.down, f"{name}.down"))


@parts_of.register(GatedMLP)
@parts_of.register(H3)
def _gated(module: GatedMLP | H3, name: str) -> list[Part]:
    return [Part(name, "gate", None, reason=f"{type(module).__name__} multiplies its branches: {PRODUCT}")]


@parts_of.register(Mamba)
@parts_of.register(Hawk)
def _selective_block(module: Mamba | Hawk, name: str) -> list[Part]:
    inner, place = (module.ssm, "ssm") if isinstance(module, Mamba) else (module.rglru, "rglru")
    reason = f"{type(module).__name__} multiplies its branches, and {type(inner).__name__}: {SELECTIVE}"
    return [Part(name, "selective", None, parts=tuple(parts_of(inner, f"{name}.{place}")), reason=reason)]
