"""How a description is made: rules by exact class, and refusals.

@rule(nn.ReLU, reads=("inplace",))
def _relu(to, module, name): ...           # -> the chain that such a module is
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch import nn

from resolvent.layers.untouched import has_hooks, has_own_methods
from resolvent.lowering import program as p
from resolvent.lowering.program import Chain
from resolvent.runtime.graph.watched import GLOBAL_HOOKS

Rule = Callable[["Describer", Any, str], Chain]
Own = TypeVar("Own", bound=Rule)
Call = Literal["map", "norm", "layer"]

RULES: dict[type[nn.Module], Rule] = {}
READS: dict[type[nn.Module], tuple[str, ...]] = {}  # the settings that a module's description depends on
FORWARDS: dict[type[nn.Module], Any] = {}  # at the time of the rule


class Unknown(ValueError):
    """It is unknown what a module computes; the message says why."""

    def __init__(self, why: str, stranger: bool = False) -> None:
        super().__init__(why)
        self.stranger = stranger


def rule(*kinds: type[nn.Module], reads: tuple[str, ...] = ()) -> Callable[[Own], Own]:
    """Register the decorated function as the rule for exactly these classes."""

    def keep(made: Own) -> Own:
        for kind in kinds:
            RULES[kind], READS[kind], FORWARDS[kind] = made, reads, kind.forward
        return made

    return keep


class Describer:
    """A description in progress; without `strict`, changed modules are treated as unchanged."""

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self.seen: list[nn.Module] = []

    def chain(self, module: nn.Module, name: str, call: Call = "map") -> Chain:
        """The chain of `module` at the dotted path `name`; `call` says how it is called if opaque."""
        self.seen.append(module)
        try:
            if self.strict:
                check_untouched(module)
            return self._rule(module)(self, module, name)
        except Unknown as why:
            children = module.named_children()
            inside = tuple(node for place, child in children for node in self.chain(child, join(name, place), "layer"))
            return (p.Opaque(name, module, str(why), why.stranger, call, inside),)

    def exactly(self, module: nn.Module, kind: type[nn.Module]) -> None:
        """Check a child that has no node of its own."""
        self.seen.append(module)
        if self.strict:
            check_untouched(module, kind)

    def linear(self, module: nn.Module, name: str) -> p.Linear:
        """A child that must be a linear map; otherwise the whole is unknown."""
        match self.chain(module, name):
            case (p.Linear() as found,):
                return found
            case (p.Opaque() as unknown,):
                raise Unknown(unknown.why, unknown.stranger)
        raise Unknown(f"{name} ({type(module).__name__}) is no linear map")

    def filter(self, module: nn.Module, name: str) -> p.Filter:
        match self.chain(module, name, "layer"):
            case (p.Filter() as found,):
                return found
            case (p.Opaque() as unknown,):
                raise Unknown(unknown.why, unknown.stranger)
        raise Unknown(f"{name} ({type(module).__name__}) is no filter")

    def _rule(self, module: nn.Module) -> Rule:
        kind = type(module)
        base = next((known for known in kind.__mro__ if known in RULES), None)
        if base is None:
            raise Unknown(kind.__name__, stranger=True)
        if base is not kind and self.strict:
            raise Unknown(f"{kind.__name__}, a subclass of {base.__name__} whose own code is not known,", stranger=True)
        if kind.forward is not FORWARDS[base] and self.strict:
            raise Unknown(f"{kind.__name__}.forward was replaced: what it computes is not known")
        return RULES[base]


def join(name: str, place: str) -> str:
    return f"{name}.{place}" if name else place


def check_untouched(module: nn.Module, kind: type[nn.Module] | None = None) -> None:
    """Require exactly class `kind`, if given, and no hook or replaced method."""
    name = type(module).__name__
    if kind is not None and type(module) is not kind:
        raise Unknown(f"{name} is not {kind.__name__} itself: what its own code computes is not known")
    if has_hooks(module):
        raise Unknown(f"{name} has hooks, which may change what it computes; remove them")
    if has_own_methods(module):
        raise Unknown(f"{name} has a method that was replaced on the instance: what it computes is not known")
    if any(GLOBAL_HOOKS):
        raise Unknown(f"{name} runs under hooks for all modules (torch.nn.modules.module); remove them")
