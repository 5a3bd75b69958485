"""A table as people have them: three channels in their own units, uneven lengths, gaps, classes that are words."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CLASSES = ("calm", "gusty", "storm")


def write_weather(path: Path, samples: int, seed: int, *, noise: float = 1.0, gaps: float = 0.06) -> Path:
    draw = np.random.default_rng(seed)
    columns = ("wind", "pressure", "kelvin")
    lines = [f"id,time,{','.join(columns)},weather"]
    for i in range(samples):
        kind, length = i % 3, int(draw.integers(10, 19))
        t = np.arange(length)
        wave = np.sin((0.3, 1.1, 2.2)[kind] * t + draw.uniform(0, 6.28))
        values = {
            "wind": 7 + 2 * wave + 0.3 * noise * draw.normal(size=length),
            "pressure": 101_300 + 40 * np.roll(wave, 1) + 8 * noise * draw.normal(size=length),
            "kelvin": 288 + 0.5 * wave + 0.1 * noise * draw.normal(size=length),
        }
        hidden = draw.random((length, 3)) < gaps
        for k in range(length):
            cells = ["" if hidden[k, c] else f"{values[name][k]:.6g}" for c, name in enumerate(columns)]
            lines.append(f"station{i},{k},{','.join(cells)},{CLASSES[kind]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
