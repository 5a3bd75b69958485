"""From the parameters of a diagonal layer to the tables of its blocked pass: one operation, with its gradients."""

from resolvent.ops.modes.dense import DenseSource, flat_blocks
from resolvent.ops.modes.operation import Kind, Modes, Source
from resolvent.ops.opaque import Opaque, Parameters

__all__ = ["DenseSource", "Kind", "Modes", "Opaque", "Parameters", "Source", "flat_blocks"]
