"""The properties of every layer: one small function each, listed here in the order of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from resolvent.conformance.properties import (
    derivatives,
    directions,
    padding,
    precision,
    refusals,
    stability,
    streaming,
    time,
    tracing,
    transforms,
    upkeep,
)
from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject


@dataclass(frozen=True)
class Property:
    """A name for the table and the function that measures it.

    A `costly` one runs on each layer's first case, and on all with --full; a `single` one only on the first.
    """

    name: str
    measure: Callable[[Subject], Finding | Skip]
    costly: bool = False
    single: bool = False


PROPERTIES: tuple[Property, ...] = (
    Property("chunks", streaming.chunks),
    Property("steps", streaming.steps),
    Property("dense truth", streaming.dense),
    Property("state in, out", streaming.state),
    Property("causality", streaming.causality),
    Property("uneven steps", time.uneven),
    Property("gradients", derivatives.first),
    Property("gradcheck", derivatives.finite_differences),
    Property("second gradients", derivatives.second),
    Property("lengths", padding.values),
    Property("lengths, gradients", padding.gradients),
    Property("float32", precision.float32),
    Property("bfloat16", precision.bfloat16),
    Property("autocast, backward", precision.autocast),
    Property("torch.compile", transforms.check_compiled, costly=True),
    Property("one graph, lengths", tracing.many_lengths, costly=True),
    Property("export, dynamic", tracing.dynamic_export, costly=True),
    Property("meta device", tracing.meta),
    Property("checkpointing", tracing.checkpointing),
    Property("vmap", transforms.check_vectorised),
    Property("jvp", transforms.tangents),
    Property("per-sample grads", transforms.per_sample),
    Property("frozen", upkeep.check_frozen),
    Property("determinism", upkeep.determinism),
    Property("save, load", upkeep.saving),
    Property("stability", stability.stability),
    Property("both directions", directions.both_directions),
    Property("bad input", refusals.refusals),
    Property("long stream", streaming.long_stream, single=True),
)
