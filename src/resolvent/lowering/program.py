"""A model as a small typed tree: what each part computes, in order of computation.

A chain is a tuple of nodes in sequence; the empty chain is the identity. A node reads its weights from its module at
run time, so a tree made once stays valid when weights change.

    Linear, Norm, Activation, Dropout, Scale, Mix, Factor, ...   pointwise in time, (..., d) -> (..., d')
    Filter, Recurrence, Attention, GatedAttention, KeyedFilter   along time, (b, l, d) -> (b, l, d)
    Skip                                                         a residual block around any of them
    Embedding, Pool, Head, Match, Network                        a whole model
    Opaque                                                       user code, which is run as a module
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from torch import Tensor, nn

from resolvent.blocks import activation
from resolvent.blocks.certified.head import CertifiedPooling
from resolvent.blocks.norm import NormKind

Chain = tuple["Node", ...]
Matrix = tuple[Tensor, Tensor | None]  # W (d_out, d_in) and b (d_out,)


@dataclass(frozen=True, eq=False)
class Node:
    name: str  # its dotted path in the model
    module: Any  # from which it reads weights


# -- pointwise in time ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Linear(Node):
    """W x + b, read from the module by `read`; `whole` is the map of which this is the upper or lower half."""

    read: Callable[[Any], Matrix]
    whole: Linear | None = None

    @property
    def weight(self) -> Tensor:
        return self.read(self.module)[0]

    @property
    def bias(self) -> Tensor | None:
        return self.read(self.module)[1]


@dataclass(frozen=True, eq=False)
class Activation(Node):
    kind: activation.Activation | Literal["ramp"]  # ramp: clamp(x, 0, 1)


@dataclass(frozen=True, eq=False)
class Dropout(Node):
    """The identity, except in training."""

    @property
    def active(self) -> bool:
        return bool(self.module.training and self.module.p > 0)


@dataclass(frozen=True, eq=False)
class Norm(Node):
    kind: NormKind


@dataclass(frozen=True, eq=False)
class Scale(Node):
    """then(of(x) * by(x)), with `plus`(x) added to the product if given; `title` names the multiplication."""

    title: str
    of: Chain
    by: Chain
    plus: Chain | None = None
    then: Chain = ()
    adaptive: bool = False  # the product is x itself, scaled


@dataclass(frozen=True, eq=False)
class Mix(Node):
    """A chain that mixes channels, named after its module."""

    inside: Chain


@dataclass(frozen=True, eq=False)
class Factor(Node):
    """x (..., d) times one number that depends on the parameters."""

    d: int
    read: Callable[[Any], Tensor]

    @property
    def value(self) -> Tensor:
        return self.read(self.module)


@dataclass(frozen=True, eq=False)
class Bounded(Node):
    """A map whose Lipschitz constant holds by construction (`module.gain()`), and its operations `inside`."""

    kind: Literal["gate", "pointwise"]
    inside: Chain


# -- along time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Filter(Node):
    """Each channel through its own linear time-invariant system, optionally followed by `silu` (moving average)."""

    kind: Literal["s4", "s4d", "dss", "ema", "shortconv"]

    @property
    def silu(self) -> bool:
        return self.kind == "ema" and bool(self.module.silu)


@dataclass(frozen=True, eq=False)
class Recurrence(Node):
    """A state with many inputs and outputs: linear and fixed, of prescribed gain, selective, or gated."""

    kind: Literal["s5", "lru", "l2ru", "normalised_lru", "s6", "scalar_s6", "rglru", "gru"]

    @property
    def selective(self) -> bool:
        """Whether its coefficients depend on its input."""
        return self.kind in ("s6", "scalar_s6", "rglru")

    @property
    def linear(self) -> bool:
        """Whether it is a fixed linear system."""
        return not self.selective and self.kind != "gru"


@dataclass(frozen=True, eq=False)
class Attention(Node):
    """Softmax attention with its own projections."""


@dataclass(frozen=True, eq=False)
class GatedAttention(Node):
    """Mega's: a moving average feeds single-head attention and two gates, with its own skip."""

    norm: Chain
    average: Chain
    scale: Chain
    dropout: Chain
    value: Linear
    base: Linear
    leave: Linear
    prenorm: bool


@dataclass(frozen=True, eq=False)
class KeyedFilter(Node):
    """H3's: keys are shifted, their outer product with the values is filtered, and read by queries."""

    query: Linear
    key: Linear
    value: Linear
    shift: Filter
    ssm: Chain
    scale: Chain
    out: Linear


@dataclass(frozen=True)
class Around:
    """The operations between layer and skip, if they are just final(W act(sigma(Wa y + ba) * y) + b)."""

    scale: Linear | None  # Wa, ba
    sigma: str
    act: str
    linear: Linear | None  # W, b
    final: str


@dataclass(frozen=True, eq=False)
class Skip(Node):
    """prenorm: x + branch(norm(x)), else norm(x + branch(x)); without `adds` only the branch."""

    norm: Chain
    layer: Chain
    scale: Chain
    mixer: Chain
    dropout: Chain
    prenorm: bool = True
    adds: bool = True

    @property
    def branch(self) -> Chain:
        return *self.layer, *self.scale, *self.mixer, *self.dropout

    @cached_property
    def around(self) -> Around | None:
        """The operations between layer and skip in this simple form; None if there is more."""
        match self.scale:
            case ():
                scale, sigma = None, "none"
            case (Scale(of=(), by=(Linear() as scale, Activation(kind=sigma)), plus=None, then=()),):
                pass
            case _:
                return None
        match self.mixer[0].inside if len(self.mixer) == 1 and isinstance(self.mixer[0], Mix) else self.mixer:
            case ():
                return Around(scale, sigma, "none", None, "none")
            case (Activation(kind=act),):
                return Around(scale, sigma, act, None, "none")
            case (Linear() as linear,):
                return Around(scale, sigma, "none", linear, "none")
            case (Activation(kind=act), Linear() as linear):
                return Around(scale, sigma, act, linear, "none")
            case (Linear() as linear, Activation(kind=final)):
                return Around(scale, sigma, "none", linear, final)
            case (Activation(kind=act), Linear() as linear, Activation(kind=final)):
                return Around(scale, sigma, act, linear, final)
        return None

    def end(self, x: Tensor, h: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """The block's output, from its input and its branch's output."""
        return end_block(x, h, norm, self.prenorm, self.adds)


def end_block(x: Tensor, h: Tensor, norm: Callable[[Tensor], Tensor], prenorm: bool, adds: bool) -> Tensor:
    y = x + h if adds else h
    return y if prenorm else norm(y)


# -- a whole model -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Embedding(Node):
    """Tokens (b, l) -> (b, l, d)."""


@dataclass(frozen=True, eq=False)
class Pool(Node):
    """(b, l, d) -> (b, d), or the state kept by `module` for "state"; "none" is the identity."""

    kind: CertifiedPooling


@dataclass(frozen=True, eq=False)
class Head(Node):
    hidden: Chain
    out: Chain


@dataclass(frozen=True, eq=False)
class Match(Node):
    """Two pooled documents -> logits."""

    hidden: Linear
    out: Linear


@dataclass(frozen=True, eq=False)
class Network(Node):
    """Entry, norm, blocks, norm, pooling, head; `module` is the stack of blocks, which keeps tables while frozen."""

    entry: Chain
    start: Chain
    dropout: Chain
    body: Chain
    end: Chain
    pool: Pool
    head: Head | Match

    @property
    def tower(self) -> Chain:
        return *self.entry, *self.start, *self.dropout, *self.body, *self.end


# -- user code ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Opaque(Node):
    """An unknown module, with the reason: it is a `stranger`, or one of ours that was changed.

    inside   its children, which may be known; how it calls them is not
    """

    why: str
    stranger: bool
    call: Literal["map", "norm", "layer"]  # how it is called: (x), (x, lengths) or (x, state, lengths)
    inside: Chain = ()

    def reason(self, wanted: str) -> str:
        """A message why it has no `wanted`."""
        return f"{self.why} has no {wanted}" if self.stranger else self.why


@dataclass(frozen=True, eq=False)
class Program:
    """A description: the module's chain, and every module inspected for it."""

    chain: Chain
    modules: tuple[nn.Module, ...]

    @property
    def network(self) -> Network | None:
        """Its network, if it is a whole model."""
        match self.chain:
            case (Network() as network,):
                return network
        return None


# -- walks -------------------------------------------------------------------------------------------------------------


def walk(chain: Chain) -> Iterator[Node]:
    """Every node of a chain and the nodes inside it, in order."""
    for node in chain:
        yield node
        for held in fields(node):
            if held.name != "whole":
                yield from walk(_nodes(getattr(node, held.name)))


def settle(chain: Chain) -> Chain:
    """The same without dropouts that are inactive in the present mode."""
    return tuple(_settle(node) for node in chain if not isinstance(node, Dropout) or node.active)


def _settle(node: Node) -> Node:
    inner: dict[str, Any] = {}
    for held in fields(node):
        value = getattr(node, held.name)
        if isinstance(value, tuple):
            inner[held.name] = settle(value)
        elif isinstance(value, Node):
            inner[held.name] = _settle(value)
    return replace(node, **inner) if inner else node


def _nodes(value: Any) -> Chain:
    if isinstance(value, Node):
        return (value,)
    return value if isinstance(value, tuple) else ()
