"""A task as text, so that a user can check at a glance that the data were read as intended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from resolvent.data.task import Split, Task

_NAMES = 12  # more classes than this are not spelled out


def summarise(task: Task) -> str:
    """A few lines of text."""
    lines = [f"{task.name}: {_kind(task)}"]
    lines += [f"  {name:<11}{_split(task, split)}" for name, split in task.splits().items()]
    lines += [f"  {name:<11}{text}" for name, text in _facts(task).items() if text]
    lines += [f"  note       {note}" for note in task.notes]
    return "\n".join(lines)


def _kind(task: Task) -> str:
    what = f"{task.channels} channel{'s' * (task.channels != 1)}" if task.channels else f"{task.vocabulary} tokens"
    answer = "real targets" if task.classes is None else f"{task.classes} classes"
    return f"{'pairs of ' if task.pair else ''}sequences of {task.length} steps, {what} -> {answer}"


def _split(task: Task, split: Split) -> str:
    text = f"{len(split):,} samples"
    if not len(split):
        return text
    if split.lengths is not None:
        text += f", lengths {int(split.lengths.min())} to {int(split.lengths.max())}"
    if task.classes is not None and task.classes <= _NAMES:
        counts = torch.bincount(split.y.flatten().long().cpu(), minlength=task.classes)
        text += ", by class " + " ".join(str(int(count)) for count in counts)
    return text


def _facts(task: Task) -> dict[str, str]:
    bounds = "" if task.bounds is None else f"{task.bounds[0]:g} to {task.bounds[1]:g}"
    names = ", ".join(task.class_names[:_NAMES]) + (", ..." if len(task.class_names) > _NAMES else "")
    augment = "" if task.augment is None else str(task.augment)
    return {"classes": names, "bounds": bounds, "augment": augment, "licence": task.licence, "source": task.source}
