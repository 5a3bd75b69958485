"""`resolvent export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Export:
    """Write a trained model, with its preprocessing, as one file for other programs: torch's pt2, or ONNX.

    $ resolvent export runs/train/mine-s4d-standard/seed-0 --to onnx --out deployed

    model.onnx takes raw sequences of any batch and length, with their lengths; step.onnx one step and the state of a
    stream; export.json names inputs, state, channels and classes. Both are compared with the model before they are
    kept. ONNX needs the extra `export`.

    Exit status: 0 done, 2 bad usage.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run, of one of its checkpoints, or of a saved model."""
    to: Literal["pt2", "onnx"] = "pt2"
    """Which kind of file."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Where the files go; RUN/export when left out."""
    opset: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """The opset of ONNX, 18 to 23."""
    checkpoint: Literal["best", "last", "best_by_test"] = "best"
    """Which weights of a run."""

    def execute(self) -> int:
        from rich.console import Console

        from resolvent.deployment.write import export
        from resolvent.predictor import load
        from resolvent.usage.destination import require_writable
        from resolvent.usage.error import UsageError

        folder = self.out or self.run / "export"
        require_writable(folder / f"model.{self.to}", "--out")
        try:
            ready = load(self.run, checkpoint=self.checkpoint)
        except FileNotFoundError as absent:
            raise UsageError(str(absent)) from absent
        console = Console(stderr=True)
        try:
            with console.status(f"tracing, writing and comparing {self.to}"):
                made = export(ready, folder, self.to, opset=self.opset)
        except UsageError as wrong:
            raise UsageError(str(wrong).removeprefix("export: ")) from wrong
        print(f"{made.sequence}: whole sequences, any batch and length")
        print(f"{made.step}: one step and its state" if made.step else f"no step form: {made.no_step}")
        print(f"{made.card}: names, shapes, classes; outputs differ from the model's by {made.largest_error:.0e}")
        return 0
