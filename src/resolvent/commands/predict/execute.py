"""`resolvent predict`: from a run and a file to labels and probabilities, with the accuracy if labels are known."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from resolvent.commands.predict.options import Predict
from resolvent.data import load_task, task_names
from resolvent.data.preparation.like import Raw, read_like
from resolvent.data.readers.file import SUFFIXES
from resolvent.disk import write_text
from resolvent.predictor.predictor import Predictor, load
from resolvent.usage.destination import require_writable
from resolvent.usage.device import require_device
from resolvent.usage.error import UsageError

SHOWN = 10  # rows on the terminal


def run(request: Predict) -> int:
    """Print and write; 0 when done. User errors are UsageErrors."""
    console = Console(soft_wrap=True, highlight=False)
    if request.out is not None:
        require_writable(request.out, "--out")
    device = require_device(request.device)
    try:
        made = load(request.run, checkpoint=request.checkpoint, device=device, missing=request.new.missing)
        raw = read_samples(made, request.file, request.new.label, request.new.reading().header)
        outputs = made.outputs(raw)
        score = None if raw.y is None else made.measure(outputs, raw.y)
    except (ValueError, TypeError, OSError, ImportError) as wrong:
        raise UsageError(str(wrong).removeprefix("load: ").removeprefix("from_file: ")) from wrong
    rows = list(table(made, raw, outputs))
    show(rows, console, request.out)
    for note in raw.notes:
        console.print(f"note: {note}", markup=False)
    _tell(made, outputs, score, console)
    if request.out is not None:
        _write(rows, request.out)
        console.print(f"predictions: {request.out}")
    return 0


def read_samples(made: Predictor, file: str, label: str | None = None, header: bool | None = None) -> Raw:
    """A file, or a task's test split, as model inputs."""
    path = Path(file)
    if path.is_dir() and file not in task_names():
        raise UsageError(f"{file!r} is a folder, which training maps; give a file ({', '.join(SUFFIXES)}).")
    if path.suffix.lower() not in SUFFIXES:
        test = load_task(file).test.unpack()
        return Raw(made.preprocess(test.x, test.lengths), test.y, test.lengths)
    raw = read_like(path, made.preprocess, label=label, header=header)
    return replace(raw, x=made.preprocess(raw.x, raw.lengths))


def table(made: Predictor, raw: Raw, outputs: torch.Tensor) -> Any:
    """One dict per sample: its id, label if known, the prediction, and class probabilities."""
    answers = made.answers(outputs)
    shares = None if made.classes is None else made.probabilities(outputs)
    for i in range(len(raw)):
        row: dict[str, Any] = {"id": raw.ids[i] if raw.ids and raw.ids[i] else str(i)}
        if raw.y is not None:
            row["label"] = _word(made, raw.y[i])
        if shares is None:
            row |= _targets(np.asarray(answers[i]).reshape(-1))
        else:
            row["prediction"] = str(answers[i])
            row |= {f"p({name})": float(p) for name, p in zip(made.classes or (), shares[i], strict=True)}
        yield row


def _word(made: Predictor, answer: torch.Tensor) -> str:
    if made.classes is None:
        return " ".join(f"{float(v):.9g}" for v in answer.reshape(-1))
    return str(made.classes[int(answer)])


def _targets(values: np.ndarray) -> dict[str, float]:
    names = ["prediction"] if len(values) == 1 else [f"prediction {k}" for k in range(len(values))]
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def show(rows: list[dict[str, Any]], console: Console, out: Path | None) -> None:
    """Print the first rows, with the predicted class's probability; `out` receives all."""
    made = Table(box=None, pad_edge=False)
    shown = [name for name in rows[0] if not name.startswith("p(")][:6] if rows else []
    for name in (*shown, *(["probability"] if any(name.startswith("p(") for name in (rows or [{}])[0]) else [])):
        made.add_column(name)
    for row in rows[:SHOWN]:
        cells = [f"{row[name]:.6g}" if isinstance(row[name], float) else row[name] for name in shown]
        share = row.get(f"p({row.get('prediction')})")
        made.add_row(*cells, *([] if share is None else [f"{share:.1%}"]))
    console.print(made, markup=False)
    if len(rows) > SHOWN:
        console.print(f"... and {len(rows) - SHOWN} more" + ("" if out else ": --out FILE.csv writes all of them"))


def _tell(made: Predictor, outputs: torch.Tensor, score: float | None, console: Console) -> None:
    count = len(outputs)
    if made.classes is not None:
        counts = Counter(str(answer) for answer in made.answers(outputs))
        message = ", ".join(f"{name} {counts[str(name)]}" for name in made.classes[:20])
        console.print(f"{count} samples: {message}", markup=False)
    else:
        console.print(f"{count} samples")
    if score is not None and made.classes is None:  # the score is of a sample: the sum over its values
        console.print(f"mean squared error {-score * count / outputs.numel():.6g}")
    elif score is not None:
        console.print(f"accuracy {score:.2%} ({round(score * count)} of {count})")


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["id", "prediction"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())
