"""A sample before and after an attack: every channel, over its valid steps; a square one also as an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resolvent.report.figures.figure import MUTED, SERIES, SIZE, blank, dress, legend_above, svg

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

FRAMES = 16  # most channels with separate frames; more become rows of an image
ROW = 0.42  # inches of one such frame


def example_svg(example: dict[str, Any]) -> Markup:
    """Clean and attacked over time, a frame for each channel."""
    clean, moved = example["clean"], example["attacked"]
    channels = len(clean[0]) if clean else 0
    figure = _frames(clean, moved, channels) if channels <= FRAMES else _heat(clean, moved)
    return svg(figure, f"example{example['index']}{example['prediction']}{clean}")


def _frames(clean: list[list[float]], moved: list[list[float]], channels: int) -> Figure:
    if channels <= 1:
        figure, axes = blank()
        every = [axes]
    else:
        figure, every = _stack(channels)
    for k, axes in enumerate(every):
        axes.plot([row[k] for row in clean], lw=1.1, color=MUTED, label="clean" if k == 0 else None)
        axes.plot([row[k] for row in moved], lw=1.1, color=SERIES[1], label="attacked" if k == 0 else None)
        if channels > 1:
            axes.set_ylabel(str(k), rotation=0, labelpad=8)
            axes.tick_params(labelbottom=k == channels - 1)
    every[-1].set_xlabel("step")
    legend_above(every[0])
    return figure


def _stack(channels: int) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE[0], max(SIZE[1], 0.9 + ROW * channels)), layout="constrained")
    every = list(figure.subplots(channels, 1, sharex=True))
    for axes in every:
        dress(axes, small=7)
        axes.locator_params(axis="y", nbins=2)
    return figure, every


def _heat(clean: list[list[float]], moved: list[list[float]]) -> Figure:
    """Channels as rows: the sample above, the perturbation below."""
    figure, every = _stack(2)
    added = [[b - a for a, b in zip(was, now, strict=True)] for was, now in zip(clean, moved, strict=True)]
    for axes, values, words in zip(every, (clean, added), ("clean, by channel", "added, by channel"), strict=True):
        axes.grid(visible=False)
        axes.imshow([list(row) for row in zip(*values, strict=True)], aspect="auto", cmap="gray")
        axes.set_ylabel(words, rotation=90)
    every[-1].set_xlabel("step")
    return figure


def image_svg(example: dict[str, Any], key: str) -> Markup | str:
    """The sequence as an image, if its length is a square and its values are in [0, 1]; else nothing."""
    from markupsafe import Markup

    rows = example[key]
    side = math.isqrt(len(rows))
    values = [v for row in rows for v in row]
    if not side or side * side != len(rows) or side > 32 or len(rows[0]) not in (1, 3):
        return ""
    if min(values) < 0 or max(values) > 1:
        return ""
    cells = [
        f'<rect x="{i % side}" y="{i // side}" width="1.02" height="1.02" fill="{_shade(row)}"/>'
        for i, row in enumerate(rows)
    ]
    head = f'<svg viewBox="0 0 {side} {side}" shape-rendering="crispEdges" aria-hidden="true">'
    return Markup(f"{head}{''.join(cells)}</svg>")


def _shade(row: Sequence[float]) -> str:
    r, g, b = (round(255 * v) for v in (row if len(row) == 3 else [1 - row[0]] * 3))
    return f"#{r:02x}{g:02x}{b:02x}"
