"""The components of a model by name: its state-space layers, linear maps, attention and adaptive scaling.

Those compared in Figures 3 and 4 of the study of deep SSMs under adversarial training, for its Table 3:

    ssm         the state-space layer: S4, DSS, S5, Mega's moving average, Mamba's S6, ...
    ads         adaptive scaling after it
    attention   an attention layer; in Mega, from the moving average (scaled, activated) through queries, keys, values
                and the gate r to U_h, without the block's output gate and skip
    linear      the channel mixing that follows: S4's and DSS's Linear, Mega's feed-forward part, Mamba's Linear out
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from resolvent.lowering import program as p
from resolvent.lowering.describe import outline
from resolvent.lowering.program import Node, walk

LABELS = ("ssm", "ads", "attention", "linear")
Part = str | tuple[str, str]


def components_of(model: nn.Module) -> dict[str, list[Part]]:
    """Label -> module names, or (from, to) pairs, in the order of the model; missing components are omitted.

    Examples:
        >>> len(rv.models.components_of(rv.build_model(rv.ModelConfig(d_model=8, layers=1)))) > 0
        True
    """
    found = [hit for node in walk(outline(model)) for hit in _hits(node)]
    if not found:
        raise ValueError(
            f"components_of: {type(model).__name__} holds no layer or block of this library; name its components "
            "yourself, as {label: [module names]}."
        )
    sorted_ = {label: [part for hit, part in found if hit == label] for label in LABELS}
    return {label: list(dict.fromkeys(parts)) for label, parts in sorted_.items() if parts}


def _hits(node: Node) -> Iterator[tuple[str, Part]]:
    match node:
        case p.Filter(kind="s4" | "s4d" | "dss" | "ema"):
            yield "ssm", node.name
        case p.Recurrence(kind="normalised_lru"):
            yield "ssm", f"{node.name}.layer"
        case p.Recurrence() if node.kind != "gru":
            yield "ssm", node.name
        case p.Scale(adaptive=True):
            yield "ads", node.name
        case p.Attention():
            yield "attention", node.name
        case p.GatedAttention():
            yield "attention", (node.base.name, node.leave.name)
        case p.Mix():
            yield "linear", node.name
        case p.KeyedFilter():
            yield "linear", node.out.name
        case p.Scale(then=(p.Linear() as out,)) if _is_temporal(node):
            yield "linear", out.name


def _is_temporal(node: p.Scale) -> bool:
    return any(isinstance(inner, p.Filter | p.Recurrence) for inner in walk((*node.of, *node.by)))
