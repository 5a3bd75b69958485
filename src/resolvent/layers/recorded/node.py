"""A layer's pass in a compiled graph: opaque forward and backward nodes, which replay the eager pass's recordings.

An operator takes tensors, not modules. A layer therefore has a ticket, a number in a tensor, which a graph receives
like a parameter: layers of one kind share compiled code, and the node looks up the layer it runs for.
The forward node returns a handle (`ops.kept`) for the recording that awaits its backward pass, or for the autograd
graph of an unrecorded pass. If the handle was lost (copied, used, recomputed), the pass is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers.recorded import operation
from resolvent.layers.recorded.known import tickets
from resolvent.layers.recorded.recording import Recording
from resolvent.layers.recorded.replica import replicate_with
from resolvent.layers.recorded.signature import How, is_signed
from resolvent.ops import kept
from resolvent.ops.library import recording, separate, shorten
from resolvent.ops.step.recorded import flatten
from resolvent.runtime.memory import lacks_memory
from resolvent.runtime.transforms import as_run, forward_mode, gradients_by_graph, is_transformed

Precision = tuple[torch.dtype, bool]  # of autocast around the layer; inside the node autocast is off
# Its replays are CUDA graphs already, and it is not replayed during another capture.
_TAGS = torch.Tag.pt2_compliant_tag, torch.Tag.cudagraph_unsafe


def may_be_node(layer: Any) -> bool:
    """Whether passes of this layer may be nodes; asked once per graph, when it is traced.

    The compiler has to see user code, dropout and transforms, but does not trace into torch's recurrent units; buffers
    are not passed to a node.
    """
    if is_transformed() or forward_mode() or not is_signed(layer) or next(layer.buffers(), None) is not None:
        return False
    if any(isinstance(own, nn.RNNBase) for own in layer.modules()):
        return False
    return tickets.get(int(layer._ticket)) is layer  # not the ticket of the layer this one was copied from


def arrange(state: Any) -> Any:
    """The state, or its description, with dict entries in a fixed order."""
    if isinstance(state, dict):
        return {name: arrange(state[name]) for name in sorted(state)}
    return tuple(map(arrange, state)) if type(state) is tuple else state


def run(layer: Any, x: Tensor, lengths: Tensor | None, spec: Sequence[Any]) -> tuple[Tensor, list[Tensor]]:
    """y and the tensors of the last state, as described by `spec`; traced."""
    parameters, records, device = list(layer.parameters()), torch.is_grad_enabled(), x.device.type
    needs = [records and t.requires_grad for t in (x, *parameters)]
    sizes = [len(spec), *(n for own in spec for n in (len(own.shape), *own.shape))]  # autograd takes no empty list
    kinds = " ".join([str(own.dtype) for own in spec])
    precision = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    y, *ends = _forward(x, parameters, lengths, layer._ticket, needs, sizes, kinds, *precision)
    own = zip(ends[:-1], spec, strict=True)  # as real pairs: compilers generate no code for complex
    return y, [torch.view_as_complex(t) if part.dtype.is_complex else t for t, part in own]


# -- executed inside a node --------------------------------------------------------------------------------------------


class _Waiting:
    """A recording between forward and backward pass, with its lease."""

    def __init__(self, found: operation.Found) -> None:
        self.kind, self.own, self.lease, _ = found

    def slopes(self, g: list[Tensor | None], parameters: list[Tensor]) -> list[Tensor | None] | None:
        """The gradients of x and parameters; None where the recording does not provide them."""
        turned = self._reorder(g)
        if not self.own.reads(parameters):
            self.kind.give_up()
            return None
        if not self.own.answers(turned):
            self.kind.widen()
            return None
        slope, found = self.own.run_back(turned)
        return [slope, *found]

    def _reorder(self, g: list[Tensor | None]) -> list[Tensor | None]:
        """Gradients of a node's outputs, reordered to the recording's own order of states."""
        if all(t is None for t in g[1:]):
            return g
        numbers: Any = range(len(self.own.outputs))
        order = _list(self.own.join(numbers))
        turned: list[Tensor | None] = [None] * len(order)
        for t, i in zip(g, order, strict=True):
            turned[i] = t if t is None or not self.own.outputs[i].is_complex() else torch.view_as_complex(t)
        return turned


class _Graph:
    """A pass run without a recording, from inputs (x and parameters) to outputs."""

    def __init__(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        self.inputs, self.outputs = inputs, outputs

    def slopes(self, g: list[Tensor | None], needs: list[bool], again: bool) -> list[Tensor | None]:
        """The gradients of x and parameters; `again`: retain the graph."""
        pairs = [(y, t) for y, t in zip(self.outputs, g, strict=True) if t is not None and y.requires_grad]
        wanted = [t for t, need in zip(self.inputs, needs, strict=True) if need]
        ends, slopes = [end for end, _ in pairs], [slope for _, slope in pairs]
        found = iter(torch.autograd.grad(ends, wanted, slopes, retain_graph=again, allow_unused=True))
        return [next(found) if need else None for need in needs]


def _list(result: Any) -> list[Any]:
    """y and the tensors of the last state, in the order of a node."""
    leaves: list[Any] = []
    flatten(arrange(result), leaves)
    return [leaf for leaf in leaves if leaf is not None]


def _order(own: Recording) -> list[int]:
    """The positions of a node's outputs in the recording."""
    if not own.order:
        numbers: Any = range(len(own.outputs))
        own.order = _list(own.join(numbers))
    return own.order


def _replay(
    ticket: Tensor, parameters: list[Tensor], x: Tensor, lengths: Tensor | None, needs: list[bool], how: How
) -> list[Tensor] | None:
    """The node's outputs by a free recording, with little overhead; None where there is none."""
    if how.records:
        kept.let_go()  # releases recordings whose handles are gone
    found = operation.look_up(_find(ticket), x, lengths, how)
    taken = None if found is None else found[2].take()
    if found is None or taken is None:
        return None
    (owned, _, kind), (own, lease) = found, taken
    if not own.reads(parameters) or own.wanted != needs[1:]:
        return None
    try:
        outputs = own.run(x, lengths)
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        return None
    given = _give([outputs[i] for i in _order(own)])
    return [*given, kept.mark(ticket, _Waiting((kind, own, lease, owned)) if how.records else None)]


def _find(number: Tensor) -> Any:
    layer = tickets.get(int(number))
    if layer is None:
        raise RuntimeError("the layer of this compiled pass is gone; keep it until the pass has been used.")
    return layer


def _call(layer: Any, x: Tensor, lengths: Tensor | None) -> Any:
    return layer._pass(x, lengths)


def _run_with(layer: Any, x: Tensor, lengths: Tensor | None, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The pass as separate operations with these tensors as its parameters; real outputs, as a node returns."""
    own: Any = replicate_with(layer, dict(zip(layer.parameters(), parameters, strict=True)), {})
    return [torch.view_as_real(t) if t.is_complex() else t for t in _list(_call(own, x, lengths))]


def _holds(layer: Any, parameters: list[Tensor]) -> bool:
    """Whether these are the layer's own parameters: the memory that its recordings read."""
    return [p.data_ptr() for p in layer.parameters()] == [p.data_ptr() for p in parameters]


def _learn(
    layer: Any, parameters: list[Tensor], x: Tensor, lengths: Tensor | None, needs: list[bool]
) -> tuple[list[Tensor], Any]:
    """The outputs, and what is saved for the backward pass."""
    kept.let_go()  # releases recordings whose handles are gone

    def recorded() -> Any:
        x_own = x.detach().requires_grad_(needs[0])
        found = operation.find(layer, _call, x_own, lengths) if _holds(layer, parameters) else None
        if found is None or found[1].wanted != needs[1:]:
            return None
        return _list(found[1].join(found[1].run(x, lengths))), _Waiting(found)

    def plain() -> Any:
        """With copies of the inputs: compiled code reuses their memory once its own work is done."""
        own = [t.detach().requires_grad_(need) for t, need in zip((x.clone(), *parameters), needs, strict=True)]
        made = _run_with(layer, own[0], None if lengths is None else lengths.clone(), own[1:])
        capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
        return [t.detach().clone() for t in made], None if capturing else _Graph(own, made)

    outputs, waiting = operation.run_either(recorded, plain)
    return outputs, waiting


def _give(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Lay out the outputs as a node's."""
    return [(torch.view_as_real(t) if t.is_complex() else t).contiguous() for t in outputs]


def _run_forward(
    x: Tensor,  # first: a node runs on the device of its first tensor
    parameters: list[Tensor], lengths: Tensor | None, ticket: Tensor, needs: list[bool], sizes: list[int], kinds: str,
    half: torch.dtype, autocast: bool,
) -> list[Tensor]:  # fmt: skip
    quick = _replay(ticket, parameters, x, lengths, needs, How(needs[0], any(needs), autocast, half))
    if quick is not None:
        return quick
    layer, waiting = _find(ticket), None
    with as_run(), recording(), torch.autocast(x.device.type, half, enabled=autocast):
        if any(needs):
            outputs, waiting = _learn(layer, parameters, x, lengths, needs)
        else:
            with torch.no_grad():
                if _holds(layer, parameters):
                    made = _list(operation.run(layer, _call, x.detach(), lengths))
                else:
                    made = _run_with(layer, x, lengths, parameters)
                outputs = separate([t.detach() for t in made], x, *parameters)
        return [*_give(outputs), kept.mark(ticket, waiting)]


def _fake_forward(
    x: Tensor, parameters: Any, lengths: Any, ticket: Tensor, needs: Any, sizes: Any, kinds: str, *_: Any
) -> Any:
    rest, ends = list(sizes[1:]), []
    for kind in kinds.split():
        dtype: torch.dtype = getattr(torch, kind.removeprefix("torch."))
        rank, *rest = rest
        shape, rest = rest[:rank], rest[rank:]
        own = ([*shape, 2], dtype.to_real()) if dtype.is_complex else (shape, dtype)
        ends.append(x.new_empty(own[0], dtype=own[1]))
    return [x.new_empty(x.shape), *ends, kept.fake_mark(ticket)]


def _run_backward(
    g: list[Tensor], asked: list[int], mark: Tensor, ticket: Tensor, parameters: list[Tensor], x: Tensor,
    lengths: Tensor | None, needs: list[bool], count: int, half: torch.dtype, autocast: bool,
) -> list[Tensor]:  # fmt: skip
    given: list[Tensor | None] = [None] * count
    for i, t in zip(asked, g, strict=True):
        given[i] = t
    inputs, (found, again) = [x, *parameters], kept.take(mark) or (None, False)
    slopes = found.slopes(given, parameters) if isinstance(found, _Waiting) else None
    if slopes is not None:
        return _give(_fill(slopes, inputs, needs))
    with as_run(), recording(), torch.no_grad():
        if isinstance(found, _Graph):
            slopes = found.slopes(given, needs, again)
        else:
            slopes = _run_again(_find(ticket), inputs, lengths, given, needs, (half, autocast))
        return _give(separate(_fill(slopes, inputs, needs), *inputs, *g))


def _fake_backward(
    g: Any, asked: Any, mark: Any, ticket: Any, parameters: Any, x: Tensor, lengths: Any, needs: Any, *_: Any
) -> Any:
    return [t.new_empty(t.shape) for t, need in zip((x, *parameters), needs, strict=True) if need]


def _fill(slopes: Sequence[Tensor | None], inputs: Sequence[Tensor], needs: list[bool]) -> list[Tensor]:
    """The required gradients; zeros where there is none."""
    wanted = [(t, own) for t, own, need in zip(slopes, inputs, needs, strict=True) if need]
    return [torch.zeros_like(own) if t is None else t for t, own in wanted]


def _run_again(
    layer: Any,
    inputs: list[Tensor],
    lengths: Tensor | None,
    g: Sequence[Tensor | None],
    needs: list[bool],
    how: Precision,
) -> list[Tensor | None]:
    """The same by recomputing the pass; of any order where gradients are recorded."""

    def again(x: Tensor, *parameters: Tensor) -> list[Tensor]:
        with torch.autocast(x.device.type, how[0], enabled=how[1]):
            return _run_with(layer, x, lengths, parameters)

    return list(gradients_by_graph(again, inputs, g, needs))


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, parameters, lengths, ticket, ctx.needs, _, _, *ctx.how = inputs
    ctx.save_for_backward(output[-1], ticket, lengths, x, *parameters)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, g: list[Tensor | None]) -> tuple[Any, ...]:
    (mark, ticket, lengths, x, *parameters), own = ctx.saved_tensors, g[:-1]
    if torch.is_grad_enabled():
        with as_run():
            gx, *found = _run_again(_find(ticket), [x, *parameters], lengths, own, ctx.needs, ctx.how)
    else:
        asked = [i for i, t in enumerate(own) if t is not None]
        given = [t.contiguous() for t in own if t is not None]
        rest = mark, ticket, parameters, x, lengths, ctx.needs, len(own), *ctx.how
        slopes = iter(_backward(given, asked, *rest))
        gx, *found = (next(slopes) if need else None for need in ctx.needs)
    return gx, found, *(None,) * 7


def _register(name: str, run: Any, fake: Any) -> Any:
    """Like `torch.library.custom_op` without its checks at every call, each of which takes as long as a replay."""
    _library.define(name + torch.library.infer_schema(run, mutates_args=()), tags=_TAGS)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"resolvent::{name}", fake, lib=_library)
    operator = getattr(torch.ops.resolvent, name).default
    shorten(operator, run)
    return operator


_library = torch.library.Library("resolvent", "FRAGMENT")
_forward = _register("layer_pass", _run_forward, _fake_forward)
_backward = _register("layer_pass_backward", _run_backward, _fake_backward)
torch.library.register_autograd("resolvent::layer_pass", _gradients, setup_context=_save, lib=_library)
