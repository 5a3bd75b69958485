"""Run properties on subjects: a crash is recorded as a failure and does not end the check."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from resolvent.conformance.properties import PROPERTIES, Property
from resolvent.conformance.result import Finding, Report, Result, Skip
from resolvent.conformance.subject import Subject, Traits

Listener = Callable[[Result], None]


@dataclass(frozen=True)
class Settings:
    """How thoroughly, in which dtype, from which seed and on which device to check.

    Examples:
        >>> rv.conformance.Settings(dtype=torch.float32).seed
        0
    """

    dtype: torch.dtype = torch.float64
    seed: int = 0
    full: bool = False
    device: str = "cpu"

    def to_json(self) -> dict[str, Any]:
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "seed": self.seed,
            "mode": "full" if self.full else "fast",
            "device": _name_device(torch.device(self.device)),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
        }


def check(
    factory: Callable[[], nn.Module],
    *,
    name: str | None = None,
    d_model: int | None = None,
    length: int = 131,
    settings: Settings | None = None,
    traits: Traits | None = None,
    listener: Listener | None = None,
) -> Report:
    """Check any layer that follows the contract: `factory` builds it, from torch's global seed.

    The layer needs no base class: forward(x, state, lengths), step(x_t, state) and initial_state(batch) are enough.
    Its width is read from `layer.d_model` unless given; no sequence is longer than `length`. Properties that do
    not apply are "n/a".

    Examples:
        >>> report = rv.conformance.check(lambda: rv.S5(2, 4), name="S5", length=9)  # doctest: +SKIP
    """
    settings = settings or Settings()
    layer = factory()
    width = d_model if d_model is not None else getattr(layer, "d_model", None)
    if not isinstance(width, int):
        raise ValueError(f"check: {type(layer).__name__} has no attribute d_model; pass d_model=... (its channels).")
    traits = traits or Traits(streams=not getattr(layer, "bidirectional", False))
    asked = settings.dtype, settings.seed, settings.full
    subject = Subject(factory, width, *asked, length=length, traits=traits, device=settings.device)
    label = name or type(layer).__name__
    return Report(tuple(run_case(label, "", subject, PROPERTIES, listener)), settings.to_json())


def run_case(
    layer: str, case: str, subject: Subject, properties: Iterable[Property], listener: Listener | None = None
) -> list[Result]:
    """All given properties of one subject."""
    results = []
    for each in properties:
        results.append(measure(layer, case, subject, each))
        if listener is not None:
            listener(results[-1])
    return results


def measure(layer: str, case: str, subject: Subject, prop: Property) -> Result:
    """One cell: the property's result, or its crash."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(), _one_thread():
            warnings.simplefilter("ignore")
            found = prop.measure(subject)
    except Exception as crash:
        found = Finding(float("inf"), 0.0, _shorten(crash))
    blank = Result(layer, case, prop.name, "n/a", seconds=round(time.perf_counter() - start, 3))
    if isinstance(found, Skip):
        return replace(blank, note=found.reason)
    status = "pass" if found.holds else "fail"
    return replace(blank, status=status, error=found.error, tolerance=found.tolerance, note=found.note)  # type: ignore[arg-type]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: subjects are tiny, and waking a second thread takes longer than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _name_device(device: torch.device) -> str:
    """The GPU by its name, others by their kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _shorten(crash: BaseException) -> str:
    """The first lines of a crash, short enough for a table's footnote."""
    text = " ".join(str(crash).split())
    message = f"{type(crash).__name__}: {text[:300]}" if text else type(crash).__name__
    return "; ".join([message, *getattr(crash, "__notes__", ())])
