"""Rows of runs as TensorBoard's event files, one folder per run, by TensorBoard's own writer (extra `tensorboard`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from resolvent.report.log.tracked import Row, Tracked, place_below, scalars, times
from resolvent.report.page import MissingPackage

OURS = ".resolvent"  # suffix of our event files


class TensorBoardLog:
    """Writes below `out`; a restarted run replaces what an earlier call wrote of it."""

    def __init__(self, out: Path) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise MissingPackage("log needs tensorboard; install with: pip install 'resolvent[tensorboard]'") from None
        self.out, self._make = out, EventFileWriter
        self._open: dict[Path, Any] = {}

    def begin(self, run: Tracked) -> None:
        place = place_below(self.out, run.name)
        if place in self._open:
            self._open.pop(place).close()
        place.mkdir(parents=True, exist_ok=True)
        for old in place.glob(f"events.out.tfevents.*{OURS}"):
            old.unlink()
        self._open[place] = self._make(str(place), filename_suffix=OURS)
        self._write(run, 0, times(run)[0], _text("settings", json.dumps(run.settings, indent=1)))

    def add(self, run: Tracked, rows: tuple[Row, ...]) -> None:
        moments = times(run)[len(run.rows) - len(rows) :]
        for row, moment in zip(rows, moments, strict=True):
            self._write(run, int(row["step"]), moment, _values(scalars(row)))
        self._flush(run)

    def finish(self, run: Tracked) -> None:
        """Write the final results, at the last step."""
        self._write(run, int(run.rows[-1]["step"]), run.ended, _values(run.found))
        self._flush(run)

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()
        self._open.clear()

    def where(self) -> str:
        return f"tensorboard --logdir {self.out} shows them"

    def _write(self, run: Tracked, step: int, moment: float, values: list[Any]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        event = event_pb2.Event(wall_time=moment, step=step, summary=summary_pb2.Summary(value=values))
        self._open[place_below(self.out, run.name)].add_event(event)

    def _flush(self, run: Tracked) -> None:
        self._open[place_below(self.out, run.name)].flush()


def _values(numbers: dict[str, float]) -> list[Any]:
    from tensorboard.compat.proto import summary_pb2

    return [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]


def _text(tag: str, text: str) -> list[Any]:
    """A page of TensorBoard's text panel, which reads Markdown: four spaces keep JSON verbatim."""
    from tensorboard.compat.proto import summary_pb2, tensor_pb2, tensor_shape_pb2
    from tensorboard.plugins.text.metadata import create_summary_metadata

    shown = "\n".join(f"    {line}" for line in text.splitlines())
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    tensor = tensor_pb2.TensorProto(dtype="DT_STRING", string_val=[shown.encode()], tensor_shape=shape)
    return [summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=create_summary_metadata(tag, ""))]
