"""ONNX: written by torch's exporter, read by onnxruntime; both are optional packages."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from resolvent.usage.error import UsageError

OPSETS = range(18, 24)  # those that torch's exporter writes
NEEDED = ("onnx", "onnxscript", "onnxruntime")


def check_opset(opset: int | None) -> None:
    """Require the packages, and an opset that can be written."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise UsageError(f"export: ONNX needs {', '.join(absent)}; install with pip install 'resolvent[export]'.")
    if opset is not None and opset not in OPSETS:
        raise UsageError(f"export: expected an opset from {OPSETS[0]} to {OPSETS[-1]}, got {opset}.")


def onnx_bytes(program: Any, inputs: list[str], outputs: list[str], opset: int | None) -> bytes:
    """An exported program as ONNX; the exporter's own output is suppressed."""
    loud = logging.getLogger("torch.onnx")
    level = loud.level
    loud.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program, dynamo=True, input_names=inputs, output_names=outputs, opset_version=opset, verbose=False
            )
    finally:
        loud.setLevel(level)
    assert made is not None
    _drop_unused(made.model_proto.graph)
    return bytes(made.model_proto.SerializeToString())


def _drop_unused(graph: Any) -> None:
    """Drop unused constants, which the exporter leaves and onnxruntime warns about."""
    read = set(_list_read(graph)) | {held.name for held in graph.output}
    kept = [held for held in graph.initializer if held.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _list_read(graph: Any) -> Iterator[str]:
    """The names that nodes read, including those inside Scan and Loop."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _list_read(attribute.g)
                yield from (held.name for held in attribute.g.output)


def load_onnx(data: bytes, names: list[str]) -> Callable[..., Any]:
    """The file as a function of tensors, run by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    known = {held.name for held in session.get_inputs()}

    def call(*values: torch.Tensor) -> Any:
        given = {name: value.numpy() for name, value in zip(names, values, strict=True) if name in known}
        found = [torch.from_numpy(out) for out in session.run(None, given)]
        return found[0] if len(found) == 1 else tuple(found)

    return call
