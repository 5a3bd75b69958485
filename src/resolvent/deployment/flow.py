"""The data passed along with x through an exported form: the lengths, or the state of a stream.

Forms use only real numbers and plain torch operations, so that every runtime can execute them: a complex state is a
pair of real ones, a recurrence one scan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers.states import reverse
from resolvent.runtime.transforms import is_exporting


class Flow:
    """One pass: of whole sequences (b, l, ...) with `lengths` (b,), or of one step (b, ...) with a state."""

    def __init__(self, lengths: Tensor | None = None, state: list[Tensor] | None = None) -> None:
        self.lengths, self.state = lengths, state
        self.end: list[Tensor] = []  # the state after the step

    @property
    def steps(self) -> bool:
        return self.state is not None

    def take(self, count: int) -> tuple[Tensor, ...]:
        """The next tensors of the state, in the order of the parts."""
        assert self.state is not None
        taken, self.state = self.state[:count], self.state[count:]
        return tuple(taken)


def keep(part: nn.Module, **tensors: Tensor | None) -> None:
    """Tensors as constants of a part, each in the order of its own axes: torch's files hold no other without a word."""
    for name, tensor in tensors.items():
        held = None if tensor is None else tensor.detach().clone(memory_format=torch.contiguous_format)
        part.register_buffer(name, held)


class Series(nn.Module):
    """Parts in sequence."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        for part in self.parts:
            x = part(x, flow)
        return x


class Temporal(nn.Module):
    """A part with a state: `drive` computes its inputs from x, `advance` one step, `answer` the output.

    shapes   of its state's tensors, without the batch
    """

    shapes: tuple[tuple[int, ...], ...] = ()

    def drive(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x,)

    def advance(self, state: tuple[Tensor, ...], driven: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        """The state and the output after one more step; implemented by every part with a state."""
        raise NotImplementedError(f"{type(self).__name__}.advance")

    def answer(self, out: Tensor, x: Tensor) -> Tensor:
        return out

    def start(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.new_zeros(x.shape[0], *shape) for shape in self.shapes)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        if flow.steps:
            end, out = self.advance(flow.take(len(self.shapes)), self.drive(x))
            flow.end += end
            return self.answer(out, x)
        return self.answer(scan_steps(self.advance, self.start(x), self.drive(x)), x)


def scan_steps(advance: Callable[..., Any], start: tuple[Tensor, ...], driven: tuple[Tensor, ...]) -> Tensor:
    """The outputs of `advance` at every step of `driven` (b, l, ...): (b, l, ...). A loop, or one Scan in an export."""
    if not is_exporting():
        outs_at, state = [], start
        for now in zip(*(t.unbind(1) for t in driven), strict=True):
            state, out = advance(state, now)
            outs_at.append(out)
        return torch.stack(outs_at, 1)
    from torch._higher_order_ops.scan import scan

    def one(state: Any, now: Any) -> tuple[Any, Tensor]:
        end, out = advance(tuple(state), tuple(now))
        return list(end), out.clone()  # else output and state would be the same tensor

    _, outs = scan(one, list(start), [t.transpose(0, 1) for t in driven], dim=0)
    found: Tensor = outs.transpose(0, 1)
    return found


class BothWays(nn.Module):
    """`forth`(x) + the other direction of `back`; with `delay` that one sees only the strict future."""

    def __init__(self, forth: nn.Module, back: nn.Module, delay: bool) -> None:
        super().__init__()
        self.forth, self.back, self.delay = forth, back, delay

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        turned = reverse(x, flow.lengths)
        if self.delay:
            turned = nn.functional.pad(turned, (0, 0, 1, 0))[:, : x.shape[1]]
        return self.forth(x, flow) + reverse(self.back(turned, flow), flow.lengths)
