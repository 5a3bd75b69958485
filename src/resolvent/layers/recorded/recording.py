"""One recorded pass: its input at a fixed address, its outputs and gradients where the graphs write them.

Forward and backward are a CUDA graph each. What the backward pass needs of the forward, its input included, stays in
the recording's memory between the two; it can therefore serve only one pass at a time (`Lease`). The buffer for the
gradient of the output is shared by passes of the same shape. Callers receive copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.ops.step.recorded import flatten, unflatten
from resolvent.runtime.graph.cuda_graph import GRAPHS, enqueueing

Call = Callable[[Tensor, Tensor | None], Any]  # (x, lengths) -> (y, state)
_places: weakref.WeakValueDictionary[Any, Tensor] = weakref.WeakValueDictionary()


class Lease:
    """Held by the pass whose values a recording keeps for its backward; deleting it frees the recording."""

    __slots__ = ("__weakref__",)


class Recording:
    """`call`, the pass of a replica, on inputs like x and lengths; `trains`: including the backward pass to x and
    parameters, from y or, with `ends`, from the last state too.

    `rounded` is the dtype to which the pass itself first rounds x, and finally y: x, y and their gradients are stored
    in it, at half the size, and cast when they are copied anyway.
    """

    def __init__(
        self, module: nn.Module, call: Call, x: Tensor, lengths: Tensor | None, parameters: list[nn.Parameter],
        trains: bool, ends: bool = False, rounded: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self.ends, self.dtype = ends, x.dtype
        self.module, self.call, self.trains, device = module, call, trains, x.device
        self.places = [p.data_ptr() for p in parameters]
        self.x = x.detach().to(rounded or x.dtype, copy=True, memory_format=torch.contiguous_format)
        self.lengths = None if lengths is None else lengths.clone()
        self.leaf = self.x.data.requires_grad_(trains and x.requires_grad)  # its version is not that of x
        self.wanted = [trains and p.requires_grad for p in parameters]
        self.asked = [p for p, want in zip(parameters, self.wanted, strict=True) if want]
        self.lease: Callable[[], Lease | None] = _no_lease
        self.outputs: list[Tensor] = []
        self.form: Any = None
        self.order: list[int] = []  # of outputs in a compiled graph (`node`)
        self.slope: Tensor | None = None  # of x
        self.slopes: list[Tensor] = []  # of the parameters that have one
        graph = GRAPHS[device.type]
        graph.aside(self._forward, device)
        self.heads = [i for i, t in enumerate(self.outputs) if i == 0 or (ends and t.requires_grad)]
        self.g = [_place(f"g {i}", self.outputs[i]) for i in self.heads]
        if trains:
            with enqueueing:
                self._fill()
                graph.aside(self._backward, device)
        self.want = [t.detach().clone() for t in (*self.outputs, *self._found())]
        self.outputs, self.slope, self.slopes = [], None, []
        self.forward = graph(self._forward, device, apart=trains)  # other passes run before the backward
        self.backward = graph(self._backward, device) if trains else None

    def agrees(self, close: Callable[[Tensor, Tensor], bool]) -> bool:
        """Whether the replays reproduce the results of the calls themselves."""
        with enqueueing:
            self.forward.replay()
            if self.backward is not None:
                self._fill()  # other threads may have overwritten it
                self.backward.replay()
            found, want = [*self.outputs, *self._found()], self.want
            del self.want
            return all(close(t.detach(), w) for t, w in zip(found, want, strict=True))

    def _fill(self) -> None:
        """Fill the gradients of the outputs with fixed numbers, without using the user's random generator."""
        for i, g in zip(self.heads, self.g, strict=True):
            g.copy_(self.outputs[i].detach())

    def _found(self) -> list[Tensor]:
        return self.slopes if self.slope is None else [self.slope, *self.slopes]

    def _forward(self) -> None:
        leaves: list[Any] = []
        with torch.set_grad_enabled(self.trains):
            self.form = flatten(self.call(self.leaf, self.lengths), leaves)
        self.there = [leaf is not None for leaf in leaves]  # a bidirectional layer has no state
        self.outputs = [leaf for leaf in leaves if leaf is not None]
        if not all(isinstance(t, Tensor) for t in self.outputs):
            raise RuntimeError("its state holds something that is no tensor")

    def _backward(self) -> None:
        inputs = [*([self.leaf] if self.leaf.requires_grad else []), *self.asked]
        heads = [self.outputs[i] for i in self.heads]
        found = list(torch.autograd.grad(heads, inputs, self.g, retain_graph=True, allow_unused=True))
        self.slope = found.pop(0) if self.leaf.requires_grad else None
        self.known = [g is not None for g in found]
        self.slopes = [g for g in found if g is not None]

    # -- replays ---------------------------------------------------------------------------------------------------

    def is_free(self) -> bool:
        return self.lease() is None

    def take(self) -> Lease:
        lease = Lease()
        self.lease = weakref.ref(lease)
        return lease

    def release(self) -> None:
        self.lease = _no_lease

    def reads(self, parameters: Iterable[Tensor]) -> bool:
        """Whether these parameters still have the addresses that the graphs read."""
        return self.places == [p.data_ptr() for p in parameters]

    def run(self, x: Tensor, lengths: Tensor | None) -> list[Tensor]:
        """y and the tensors of the last state."""
        with enqueueing:
            self.x.copy_(x)
            if self.lengths is not None and lengths is not None:
                self.lengths.copy_(lengths)
            self.forward.replay()
            y, *ends = (t.detach() for t in self.outputs)
            return [y.to(self._given(y), copy=True), *(t.clone() for t in ends)]

    def answers(self, g: Sequence[Tensor | None]) -> bool:
        """Whether the graph accepts exactly these gradients of the outputs."""
        return all(t is None or i in self.heads or not self.outputs[i].requires_grad for i, t in enumerate(g))

    def run_back(self, g: Sequence[Tensor | None]) -> tuple[Tensor | None, list[Tensor | None]]:
        """The gradients of x and of all parameters from those of the outputs; None for those without one."""
        assert self.backward is not None
        with enqueueing:
            for i, place in zip(self.heads, self.g, strict=True):
                own = g[i]
                place.zero_() if own is None else place.copy_(own)
            self.backward.replay()
            slope = None if self.slope is None else self.slope.to(self._given(self.slope), copy=True)
            known = iter(torch._foreach_mul(self.slopes, 1.0) if self.slopes else ())  # copies, in one call
        there = iter(self.known)
        return slope, [next(known) if want and next(there) else None for want in self.wanted]

    def _given(self, t: Tensor) -> torch.dtype:
        """The dtype in which y, or a gradient of x, is returned."""
        return self.dtype if self.x.dtype != self.dtype else t.dtype

    def join(self, outputs: Iterable[Tensor]) -> Any:
        known = iter(outputs)
        return unflatten(self.form, [next(known) if there else None for there in self.there])


def _no_lease() -> None:
    return None


def _place(name: str, like: Tensor) -> Tensor:
    """A buffer like this tensor, shared by all recordings of its shape."""
    key = name, like.shape, like.dtype, like.device
    found = _places.get(key)
    if found is None:
        found = _places[key] = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return found
