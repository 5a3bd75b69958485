"""The state of a run on disk: one safetensors file for weights, optimiser and bookkeeping, replaced atomically.

    folder/config.json                       what is trained, how, on what; a different one is refused by field
    folder/metrics.jsonl                     one line per epoch
    folder/checkpoint/state.safetensors      everything that the next step needs; its header holds the bookkeeping
    folder/checkpoint/best/                  weights of the best epoch by validation, best_by_test/ those by test
    folder/checkpoint/last/                  weights of the last epoch, when the run is complete
    folder/summary.json                      written last: the run is complete

State and summary carry digests that include the configuration: files of another run are rejected.
Random numbers need not be stored: those of a step depend only on the seed and the step number.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.disk import Damaged, check_same, fingerprint, read_json, write_json, write_text
from resolvent.disk.tensors import read_tensors, sealed_tensors, write_tensors
from resolvent.training.step.average import Average

Save = Callable[[Any, Path], Any]  # (model, folder): `models.save_model` fits
WEIGHTS, CONFIG, SUMMARY, METRICS = "model.safetensors", "config.json", "summary.json", "metrics.jsonl"
LEDGER = "ledger"  # key in the state's header
AGAIN = "remove it to train from the start."


class DamagedState(ValueError):
    """A file of the run does not contain what was written; nothing was changed."""


@dataclass
class Ledger:
    """The progress of a run: steps done, sums over the epoch so far (loss, score, samples), one row per epoch, and the
    number of averaged weights."""

    step: int = 0
    tally: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    rows: list[dict[str, Any]] = field(default_factory=list)
    averaged: int = 0


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, folder: str | Path, config: dict[str, Any], save: Save | None = None) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"fit: {str(self.folder)!r} is a file; give a folder, which need not exist yet.")
        self.save = save or save_weights
        self.of = fingerprint(config)
        self.state = self.folder / "checkpoint" / "state.safetensors"
        self.state.parent.mkdir(parents=True, exist_ok=True)
        for part in self.folder.rglob(".*.part"):  # left by a killed writer
            part.unlink(missing_ok=True)
        self._admit(config)

    # -- the state -------------------------------------------------------------------------------------------------

    def store(self, model: nn.Module, optimiser: torch.optim.Optimizer, average: Average, ledger: Ledger) -> None:
        parts = {"model": model.state_dict(), "optimiser": _optimiser_tensors(optimiser), "average": average.weights}
        ledger.averaged = average.count
        write_tensors(self.state, _flatten(parts), LEDGER, asdict(ledger), self.of)

    def restore(self, model: nn.Module, optimiser: torch.optim.Optimizer, average: Average) -> Ledger | None:
        """Fill model, optimiser and average; None when nothing is stored yet."""
        if not self.state.is_file():
            self._require_fresh()
            return None
        tensors, notes = self._collect()
        try:
            ledger = Ledger(**notes)
            model.load_state_dict(_under("model", tensors))
            _fill_optimiser(optimiser, _under("optimiser", tensors))
            own = model.state_dict()
            average.weights = {name: t.to(own[name].device) for name, t in _under("average", tensors).items()}
            average.count = ledger.averaged
        except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as wrong:
            if sealed_tensors(self.state, LEDGER):
                raise
            raise DamagedState(f"fit: {self.state} is no state of this run ({wrong}); {AGAIN}") from wrong
        self._rewrite_metrics(ledger.rows)
        return ledger

    def _collect(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        try:
            tensors, notes = read_tensors(self.state, LEDGER, self.of)
        except Damaged as wrong:
            raise DamagedState(f"fit: {wrong}; {AGAIN}") from wrong
        if notes is None:
            raise DamagedState(f"fit: {self.state} is damaged: its header has no ledger; {AGAIN}")
        return tensors, notes

    # -- readable files ------------------------------------------------------------------------------------------

    def append(self, row: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl; after a kill the file is rewritten from the stored state."""
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def keep(self, name: str, model: nn.Module) -> None:
        self.save(model, self.state.parent / name)

    def kept(self, name: str) -> dict[str, Tensor]:
        try:
            return read_tensors(self.state.parent / name / WEIGHTS, "config")[0]
        except Damaged as wrong:
            raise DamagedState(f"fit: {wrong}; remove {self.state} to train again.") from wrong

    def summarise(self, summary: dict[str, Any]) -> None:
        write_json(self.folder / SUMMARY, summary, self.of)

    def summary(self) -> dict[str, Any] | None:
        """The summary of a complete run; None before that, and if damaged: it is then recomputed."""
        path = self.folder / SUMMARY
        try:
            return read_json(path, self.of) if path.is_file() else None
        except Damaged as wrong:
            warnings.warn(f"fit: {wrong} and is made again.", stacklevel=3)
            return None

    def _rewrite_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Rewrite the lines from the state. A file cut short by a kill is replaced; a damaged one is renamed."""
        path, text = self.folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows)
        there = path.read_bytes() if path.is_file() else b""
        if not text.encode().startswith(there):
            aside = path.with_name(f"{path.name}.damaged")
            os.replace(path, aside)
            at = _first_wrong_line(there, text.encode())
            warnings.warn(
                f"fit: line {at} of {path} is not what was written; the file is made again, the old one is {aside}.",
                stacklevel=2,
            )
        write_text(path, text)

    def _require_fresh(self) -> None:
        """A run without a state must not have begun; one that claims to be complete has lost its state."""
        summary = self.folder / SUMMARY
        if summary.is_file():
            raise DamagedState(f"fit: {self.state} is gone, but {summary} is there; remove it to train from the start.")
        (self.folder / METRICS).unlink(missing_ok=True)

    def _admit(self, config: dict[str, Any]) -> None:
        path = self.folder / CONFIG
        if not path.is_file():
            write_json(path, config)
            return
        try:
            found = read_json(path)
        except Damaged as wrong:
            self._readmit(config, wrong)
            return
        check_same(without_private(found), config, f"fit: {str(self.folder)!r} holds a run")
        self.of = fingerprint(found)

    def _readmit(self, config: dict[str, Any], wrong: Damaged) -> None:
        """Set aside a damaged configuration and rewrite it if the state confirms that it matches."""
        if self.state.is_file():
            self._collect()
            if not sealed_tensors(self.state, LEDGER):
                raise DamagedState(f"fit: {wrong}, and {self.state}, of an older version, does not tell what it is of; "
                                   "remove both to train from the start.")  # fmt: skip
        aside = self.folder / f"{CONFIG}.damaged"
        os.replace(self.folder / CONFIG, aside)
        warnings.warn(f"fit: {wrong}; it is written again, the old one is {aside}.", stacklevel=5)
        write_json(self.folder / CONFIG, config)


def without_private(config: Any) -> Any:
    """A configuration without the private fields that older versions wrote."""
    if isinstance(config, dict):
        return {name: without_private(value) for name, value in config.items() if not name.startswith("_")}
    return [without_private(value) for value in config] if isinstance(config, list) else config


def save_weights(model: nn.Module, folder: Path) -> None:
    """The weights alone, under the file name that `models.save_model` uses."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / WEIGHTS, _flatten({"": model.state_dict()}), "config", {})


def _first_wrong_line(there: bytes, meant: bytes) -> int:
    """Counted from 1."""
    lines = zip(there.splitlines(), [*meant.splitlines(), *[b""] * there.count(b"\n")], strict=False)
    return next((i for i, (a, b) in enumerate(lines, 1) if a != b), 1)


def _flatten(parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """One flat dict; shared storage is cloned, since the format stores each tensor once."""
    return {
        f"{part}/{name}" if part else name: tensor.detach().cpu().contiguous().clone()
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def _under(part: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}/"): t for name, t in tensors.items() if name.startswith(f"{part}/")}


def _optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return {f"{i}/{name}": torch.as_tensor(value) for i, entry in state.items() for name, value in entry.items()}


def _fill_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        i, name = key.split("/", 1)
        state.setdefault(int(i), {})[name] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
