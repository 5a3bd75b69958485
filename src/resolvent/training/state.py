"""The state of a run on disk: one safetensors file for weights, optimiser and bookkeeping, moved into place whole.

    folder/config.json                       what is trained, how, on what; another configuration is refused by field
    folder/metrics.jsonl                     one line an epoch
    folder/checkpoint/state.safetensors      everything that the next step needs; its header holds the bookkeeping
    folder/checkpoint/best/                  weights of the best epoch by validation, best_by_test/ those by test
    folder/checkpoint/last/                  weights of the last epoch, when the run is complete
    folder/summary.json                      written last: the run is complete

Random numbers need no saving: those of every step follow from the seed and the number of the step.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks.store import fingerprint, first_difference
from resolvent.disk import replace

Save = Callable[[Any, Path], Any]  # (model, folder): `models.save_model` fits
WEIGHTS = "model.safetensors"


class DamagedState(ValueError):
    """A file of the run does not hold what was written; nothing was changed."""


@dataclass
class Ledger:
    """Where a run stands: steps done, sums over the epoch so far (loss, score, samples), one row an epoch."""

    step: int = 0
    tally: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    rows: list[dict[str, Any]] = field(default_factory=list)


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, folder: str | Path, config: dict[str, Any], save: Save | None = None) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"fit: {str(self.folder)!r} is a file; give a folder, which need not exist yet.")
        self.save = save or save_weights
        self.state = self.folder / "checkpoint" / "state.safetensors"
        self.state.parent.mkdir(parents=True, exist_ok=True)
        for part in self.folder.rglob(".*.part"):  # left by a killed writer
            part.unlink(missing_ok=True)
        self._admit(config)

    # -- the state -------------------------------------------------------------------------------------------------

    def store(self, model: nn.Module, optimiser: torch.optim.Optimizer, ledger: Ledger) -> None:
        tensors = _held({"model": model.state_dict(), "optimiser": _optimiser_tensors(optimiser)})
        header = {"ledger": json.dumps(asdict(ledger)), "sha256": _digest(tensors)}
        _write_tensors(self.state, tensors, header)

    def restore(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> Ledger | None:
        """Fill model and optimiser; None when nothing was stored yet."""
        if not self.state.is_file():
            self._require_fresh()
            return None
        tensors, header = _read_tensors(self.state)
        if _digest(tensors) != header.get("sha256"):
            told = f"fit: {self.state} is damaged (its checksum differs); remove it to train from the start."
            raise DamagedState(told)
        model.load_state_dict(_under("model", tensors))
        _fill_optimiser(optimiser, _under("optimiser", tensors))
        ledger = Ledger(**json.loads(header["ledger"]))
        self._rewrite_metrics(ledger.rows)
        return ledger

    # -- what people read ------------------------------------------------------------------------------------------

    def append(self, row: dict[str, Any]) -> None:
        """One more line of metrics.jsonl; after a kill the file is made anew from the stored state."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def keep(self, name: str, model: nn.Module) -> None:
        self.save(model, self.state.parent / name)

    def kept(self, name: str) -> dict[str, Tensor]:
        path = self.state.parent / name / WEIGHTS
        tensors, header = _read_tensors(path)
        known = _known_sum(header)
        if known is not None and known != _digest(tensors):
            raise DamagedState(f"fit: {path} is damaged (its checksum differs); remove {self.state} to train again.")
        return tensors

    def summarise(self, summary: dict[str, Any]) -> None:
        self._write_json("summary.json", summary)

    def summary(self) -> dict[str, Any] | None:
        """What a complete run wrote; None before that, and where it is damaged: it is then made again."""
        path = self.folder / "summary.json"
        try:
            held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        except ValueError as wrong:  # of JSON or of UTF-8
            warnings.warn(f"fit: {path} is damaged ({wrong}) and is made again.", stacklevel=3)
            return None
        return held if isinstance(held, dict) else None

    def _rewrite_metrics(self, rows: list[dict[str, Any]]) -> None:
        """The lines as the state knows them. What is there may end early, as a kill leaves it; damage is set aside."""
        path, text = self.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
        there = path.read_bytes() if path.is_file() else b""
        if not text.encode().startswith(there):
            aside = path.with_name(f"{path.name}.damaged")
            os.replace(path, aside)
            at = _first_wrong_line(there, text.encode())
            warnings.warn(
                f"fit: line {at} of {path} is not what was written; the file is made again, the old one is {aside}.",
                stacklevel=2,
            )
        replace(path, lambda part: part.write_text(text, encoding="utf-8"))

    def _require_fresh(self) -> None:
        """A run without a state has not begun; one that claims to be complete has lost it."""
        summary = self.folder / "summary.json"
        if summary.is_file():
            raise DamagedState(f"fit: {self.state} is gone, but {summary} is there; remove it to train from the start.")
        (self.folder / "metrics.jsonl").unlink(missing_ok=True)

    def _write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1) + "\n"
        replace(self.folder / name, lambda part: part.write_text(text, encoding="utf-8"))

    def _admit(self, config: dict[str, Any]) -> None:
        path = self.folder / "config.json"
        if not path.is_file():
            self._write_json("config.json", config)
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as wrong:  # of JSON or of UTF-8
            raise ValueError(f"fit: {path} is no configuration of a run ({wrong}); use an empty folder.") from wrong
        if fingerprint(found) != fingerprint(config):
            where, then, now = first_difference(found, config) or ("config", "?", "?")
            raise ValueError(
                f"fit: {str(self.folder)!r} holds a run of another configuration: {where} was {then!r} there and is "
                f"{now!r} now; use another folder, or the old settings to go on."
            )


def save_weights(model: nn.Module, folder: Path) -> None:
    """The weights alone, under the name that `models.save_model` uses too."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = _held({"": model.state_dict()})
    _write_tensors(folder / WEIGHTS, tensors, {"sha256": _digest(tensors)})


def _known_sum(header: dict[str, str]) -> str | None:
    """The checksum that weights carry: `models.save_model` keeps it among the settings."""
    if "sha256" in header:
        return header["sha256"]
    try:
        known: str | None = json.loads(header.get("config", "{}")).get("sha256")
    except (ValueError, AttributeError):
        return "unreadable"
    return known


def _first_wrong_line(there: bytes, meant: bytes) -> int:
    """Counted from 1."""
    lines = zip(there.splitlines(), [*meant.splitlines(), *[b""] * there.count(b"\n")], strict=False)
    return next((i for i, (a, b) in enumerate(lines, 1) if a != b), 1)


def _held(parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
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


def _digest(tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.numel():
            found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    from safetensors.torch import save_file

    replace(path, lambda part: save_file(tensors, part, metadata=header))


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as wrong:
        raise DamagedState(f"fit: {path} cannot be read ({wrong}); remove it to train from the start.") from wrong
