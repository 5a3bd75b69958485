"""Layers that break the contract in one way each: they prove that the property which guards this way can fail."""

from __future__ import annotations

from typing import Any

import torch
from sample_layers import Leaky, Stranger
from torch import Tensor

from resolvent.ssm.system import System


class ForgetsTime(Leaky):
    """Each chunk of uneven steps starts from nothing."""

    def _uneven(self, x: Tensor, dt: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return super()._uneven(x, dt, torch.zeros_like(state), lengths)


class OtherTime(Leaky):
    """An even step lasts two."""

    def _uneven(self, x: Tensor, dt: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return super()._uneven(x, 2 * dt, state, lengths)


class ForgetsState(Leaky):
    """Starts from zero whatever it is handed."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return super()._sequence(x, torch.zeros_like(state), lengths)


class WrongFinalState(Leaky):
    """Hands out the state before the last step."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, _ = super()._sequence(x, state, lengths)
        return y, torch.cat([state[:, None], self.scan(x, state)], 1)[:, -2]


class OtherStep(Leaky):
    """Its step forgets the direct term."""

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y_t, state = super()._step(x_t, state)
        return y_t - 1e-6 * x_t, state


class OtherSystem(Leaky):
    """Hands over a delayed output: another convention than the library's."""

    def system(self) -> System:
        return super().system().delayed().__class__(**{**vars(super().system()), "delay": True})


class SpoilsState(Leaky):
    """Writes into the caller's state."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, end = super()._sequence(x, state, lengths)
        if not state.requires_grad:
            state += 1
        return y, end


class SeesFuture(Leaky):
    """Centres its input over time."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return super()._sequence(x - x.mean(1, keepdim=True), state, lengths)


class LosesGradient(Leaky):
    """Its parallel pass cuts the graph through the decay."""

    def scan(self, x: Tensor, h: Tensor) -> Tensor:
        hs = []
        for x_t in x.unbind(1):
            h = self.a().detach() * h + (1 - self.a()) * x_t
            hs.append(h)
        return torch.stack(hs, 1)


class _OnceOnly(torch.autograd.Function):
    """x^3 / 3 whose gradient is right and cut off: what a hand-written backward often is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3 / 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return g * x.detach() ** 2


class NoSecondGradient(Leaky):
    """Right values and first gradients; the parallel pass has no second ones."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, end = super()._sequence(x, state, lengths)
        return _OnceOnly.apply(y), end

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y_t, state = super()._step(x_t, state)
        return y_t**3 / 3, state


class WrongGradient(Leaky):
    """Steps and passes share one wrong backward, so only finite differences can tell."""

    def a(self) -> Tensor:
        a = 0.999 * torch.sigmoid(self.w)
        return a.detach() + 2 * (a - a.detach())


class IgnoresLengths(Leaky):
    """Returns the state at the padded end."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return super()._sequence(x, state, None)


class LeaksPadding(Stranger):
    """Multiplies padding by zero: NaN * 0 is NaN."""

    def forward(self, x: Tensor, state: Tensor | None = None, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mask = 1.0 if lengths is None else (torch.arange(x.shape[1]) < lengths[:, None])[..., None].to(x.dtype)
        y, end = super().forward(x * mask, state)
        return y * mask, end


class LosesDigits(Leaky):
    """Computes in bfloat16 inside, whatever it is given."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, end = super()._sequence(x, state, lengths)
        return y if self.dtype == torch.float64 else y.bfloat16().to(y.dtype), end


class LosesHalf(Leaky):
    """Overflows on half inputs: subtracts a large constant in their dtype."""

    def forward(self, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        return super().forward((x + 300) - 300, state, lengths)


class CastsBackward(Leaky):
    """Rounds its gradients to a bit or two where `backward()` meets autocast."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, end = super()._sequence(x, state, lengths)
        return _Casting.apply(y), end


class _Casting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        g = gradients[0]
        return torch.round(g) if torch.is_autocast_enabled("cpu") else g


class CountsCalls(Leaky):
    """Another layer at each call: what is computed again is not what was."""

    calls = 0

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return super()._sequence(x * self.calls, state, lengths)


class BreaksGraph(Leaky):
    """Looks at a number in Python."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if float(x.detach().abs().max()) > 1e9:
            x = x.clamp(-1e9, 1e9)
        return super()._sequence(x, state, lengths)


class LeavesTorch(Leaky):
    """Goes through numpy for the values: no transform of torch.func can follow."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, end = super()._sequence(x, state, lengths)
        return y + torch.from_numpy(x.detach().numpy() * 0), end


class _Doubled(torch.autograd.Function):
    """2 x, with a wrong tangent."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:  # type: ignore[override]
        return t


class WrongTangent(Leaky):
    """Reverse mode is right, forward mode is not."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, end = super()._sequence(x, state, lengths)
        return _Doubled.apply(y), end


class MixesBatch(Leaky):
    """Normalises over the batch: a sample's gradient is no longer its own."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return super()._sequence(x - x.mean(0, keepdim=True), state, lengths)


class KeepsTables(Leaky):
    """Its table outlives the frozen() context."""

    def a(self) -> Tensor:
        if self._tables is None:
            return 0.999 * torch.sigmoid(self.w)
        if not hasattr(self, "kept"):
            self.kept = (0.999 * torch.sigmoid(self.w)).detach()
        return self.kept


class NeverFreezes(Leaky):
    """Its frozen() leaves parameters trainable."""

    def frozen(self) -> Any:
        from contextlib import nullcontext

        return nullcontext(self)


class Rolls(Leaky):
    """Adds noise that a seed does not fix."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, end = super()._sequence(x, state, lengths)
        return y + 1e-13 * torch.rand(()), end


class HidesNumbers(Leaky):
    """A number that decides the output and is not saved."""

    def __init__(self, d_model: int = 3, **options: Any) -> None:
        super().__init__(d_model, **options)
        self.hidden = float(torch.rand(()))

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, end = super()._sequence(x, state, lengths)
        return self.hidden * y, end


class Explodes(Leaky):
    """a = w, free to leave the unit circle."""

    def a(self) -> Tensor:
        return self.w


class AcceptsAnything(Leaky):
    """Casts and reshapes whatever comes."""

    def forward(self, x: Any, state: Any = None, lengths: Any = None) -> tuple[Tensor, Any]:
        x = torch.as_tensor(x, dtype=self.dtype).reshape(1, -1, self.d_model)
        return super().forward(x, None, None)


class HalfBlind(Leaky):
    """Says that it looks both ways and does not."""

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return torch.zeros_like(x)


class WrongWay(Leaky):
    """Its second direction forgets to turn the padded sequence around."""

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return super()._backward_sequence(x.flip(1), lengths) + super()._backward_sequence(x, lengths)


class StreamsBothWays(Leaky):
    """Takes steps although its second direction cannot."""

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self._step(x_t, torch.zeros_like(x_t) if state is None else state)


class Drifts(Leaky):
    """Loses a hundredth of its float32 state at every step."""

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return super()._step(x_t, 0.99 * state if self.dtype == torch.float32 else state)


class NeedsSteps(Leaky):
    """Takes no empty sequence: the last step is asked for before there is one."""

    def forward(self, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        if x.shape[1] == 0:
            raise IndexError("nothing at 0")
        return super().forward(x, state, lengths)
