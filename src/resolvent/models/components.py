"""Where the components of a model are: its state-space layers, linear maps, attention and adaptive scaling by name.

What the study of deep SSMs under adversarial training compares in its Figures 3 and 4, for its Table 3:

    ssm         the state-space layer: S4, DSS, S5, Mega's moving average, Mamba's S6, ...
    ads         adaptive scaling after it
    attention   an attention layer; in Mega, from the moving average (scaled, activated) through queries, keys, values
                and the gate r to U_h, without the block's output gate and skip
    linear      what mixes channels afterwards: S4's and DSS's Linear, Mega's feed-forward part, Mamba's Linear out
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from resolvent.blocks.ads import AdS
from resolvent.blocks.h3 import H3
from resolvent.blocks.hawk import Hawk
from resolvent.blocks.mamba import Mamba
from resolvent.blocks.mega import GatedAttention
from resolvent.blocks.mixer import MLP, GatedMLP, Mixer
from resolvent.layers.attention import Attention
from resolvent.models.build import LAYERS

LABELS = ("ssm", "ads", "attention", "linear")
Part = str | tuple[str, str]

_SSM = tuple(LAYERS.values())
_OUT: dict[type[nn.Module], str] = {Mamba: "out_proj", H3: "out", Hawk: "leave"}


def components_of(model: nn.Module) -> dict[str, list[Part]]:
    """Label -> module names, or (from, to) pairs, in the order of the model; a component that it lacks is left out."""
    found = [hit for name, module in model.named_modules() for hit in _hits(name, module)]
    if not found:
        raise ValueError(
            f"components_of: {type(model).__name__} holds no layer or block of this library; name its components "
            "yourself, as {label: [module names]}."
        )
    sorted_ = {label: [part for hit, part in found if hit == label] for label in LABELS}
    return {label: parts for label, parts in sorted_.items() if parts}


def _hits(name: str, module: nn.Module) -> Iterator[tuple[str, Part]]:
    prefix = f"{name}." if name else ""
    if isinstance(module, _SSM):
        yield "ssm", name
    elif isinstance(module, AdS):
        yield "ads", name
    elif isinstance(module, Attention):
        yield "attention", name
    elif isinstance(module, GatedAttention):
        yield "attention", (f"{prefix}base", f"{prefix}leave")
    elif isinstance(module, MLP | GatedMLP) or (isinstance(module, Mixer) and module.linear is not None):
        yield "linear", name
    elif type(module) in _OUT:
        yield "linear", prefix + _OUT[type(module)]
