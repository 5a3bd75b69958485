"""One time step of a layer in one compiled call."""

from resolvent.ops.step.operation import Pair, Step, bank_step, is_unwatched, mimo_step, selective_step

__all__ = ["Pair", "Step", "bank_step", "is_unwatched", "mimo_step", "selective_step"]
