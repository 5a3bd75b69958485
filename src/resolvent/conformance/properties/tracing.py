"""Tracing a pass: one graph for many lengths, exports with dynamic sizes, the meta device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.utils.checkpoint import checkpoint

from resolvent.conformance import drive
from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject
from resolvent.conformance.tolerance import GRADIENTS, VALUES, distance

LENGTHS = (131, 19, 77, 100, 64, 128, 65, 97, 2, 53)  # of which the first is traced
GRAPHS = 2  # a graph for whole blocks and one for less


class Outputs(nn.Module):
    """The layer without its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        y: Tensor = self.layer(x, lengths=lengths)[0]
        return y


def many_lengths(subject: Subject) -> Finding | Skip:
    """Ten lengths under torch.compile: two graphs at most, no complex number in them, eager values and gradients."""
    if not subject.traits.open_lengths:
        return Skip("its graph depends on the length")
    model, graphs = Outputs(subject.build()), []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return _aot(graph, inputs)

    complex_nodes: list[str] = []

    def _aot(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd

        return aot_autograd(fw_compiler=look, bw_compiler=look)(graph, inputs)

    def look(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        from torch._functorch.aot_autograd import make_boxed_func

        values = {node.name: node.meta.get("val") for node in graph.graph.nodes}
        complex_nodes.extend(name for name, val in values.items() if isinstance(val, Tensor) and val.is_complex())
        return make_boxed_func(graph)

    torch._dynamo.reset()
    fast = torch.compile(model, backend=backend, fullgraph=True)
    worst = 0.0
    for length in _lengths(subject):
        x = subject.input(length).requires_grad_()
        torch._dynamo.mark_dynamic(x, 1)
        got, want = (_values_and_gradients(subject, model, run, x) for run in (fast, model))
        worst = max(worst, distance(got, want))
    torch._dynamo.reset()
    if len(graphs) > GRAPHS:
        return Finding(float("inf"), 0.0, f"{len(graphs)} graphs for {len(LENGTHS)} lengths")
    if complex_nodes:
        return Finding(float("inf"), 0.0, f"complex numbers in the graph: {', '.join(complex_nodes[:4])}")
    return Finding(worst, GRADIENTS[subject.dtype])


def _lengths(subject: Subject) -> list[int]:
    return [min(length, subject.length) for length in LENGTHS]


def dynamic_export(subject: Subject) -> Finding | Skip:
    """`torch.export` with dynamic batch and length, and with padding: the program's outputs at other sizes equal the
    layer's."""
    if not subject.traits.open_lengths:
        return Skip("its graph depends on the length")
    model = Outputs(subject.build())
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=2, max=4096)
    open_sizes = {0: batch, 1: length}, {0: batch}
    got, want = [], []
    for count in (1, 2):  # x alone, and with lengths
        given = _pad(subject, subject.batch, subject.length)[:count]
        program = export(model, given, dynamic_shapes=open_sizes[:count]).module()
        with torch.no_grad():
            for sizes in ((subject.batch, subject.length), (2, 2), (5, min(64, subject.length))):
                given = _pad(subject, *sizes)[:count]
                got.append(program(*given))
                want.append(model(*given))
    return Finding(distance(got, want), VALUES[subject.dtype])


def _pad(subject: Subject, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """x, and lengths of which the first is the full length."""
    x = subject.input(length, batch)
    return x, (length - torch.arange(batch, device=x.device) % length).clamp(min=1)


def meta(subject: Subject) -> Finding | Skip:
    """On the meta device, where there are no values: the shapes and dtypes of a pass."""
    if not subject.traits.open_lengths:
        return Skip("it is not said that a pass may be traced")
    layer = subject.build().to("meta")
    x = subject.input()
    y, _ = layer(x.to("meta"))
    right = y.device.type == "meta" and y.shape == x.shape and y.dtype == x.dtype
    return Finding(0.0 if right else float("inf"), 0.0, "" if right else f"got {tuple(y.shape)} in {y.dtype}")


def checkpointing(subject: Subject) -> Finding | Skip:
    """`torch.utils.checkpoint`, both variants: the gradients of the pass itself."""
    model = Outputs(subject.build())
    x = subject.input().requires_grad_()
    want = _values_and_gradients(subject, model, model, x)
    found = 0.0
    for reentrant in (False, True):

        def run(x_in: Tensor, again: bool = reentrant) -> Tensor:
            y: Tensor = checkpoint(model, x_in, use_reentrant=again)
            return y

        x_own = x.detach().clone().requires_grad_()
        drive.objective(subject, run(x_own)).backward()
        got = [x_own.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in drive.parameters(model))]
        model.zero_grad()
        found = max(found, distance(got, want[1]))
    return Finding(found, GRADIENTS[subject.dtype])


def _values_and_gradients(subject: Subject, layer: nn.Module, run: Any, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    y = run(x)
    return y, drive.gradients(drive.objective(subject, y), [x, *drive.parameters(layer)])
