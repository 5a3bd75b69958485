"""Hostile data files and options: whatever is given, one line and a status, never a traceback.

python tests/hostile/options.py COUNT [FIRST [SECONDS]]     one line of JSON at the end
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
from damage import DAMAGES
from scene import call, run_cases

from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    LRUConfig,
    ModelConfig,
    ResidualConfig,
    build_model,
    save_model,
)

TEXTS = ("", " ", "-1", "0", "1e400", "-1e400", "nan", "inf", "-inf", "1/0", "8/0", "0x10", "10" * 30, "1e-400", "½",
         "x", "null", "[]", "{}", '{"a":', "[" * 5000, "../..", "/etc/passwd", "C:\\x", "a\x00b", "s4", "digits",
         "ö" * 300, "1,2,3", "0.1 0.2", "--eps", "-", "True", "memory://x", "nosuch://y", "\n", "%s%n")  # fmt: skip
COMMANDS = {
    "attack": ("--preset", "--norm", "--eps", "--bounds", "--data", "--samples", "--batch-size", "--seed", "--kwargs",
               "--device", "--out", "--checkpoint", "--bounds-raw", "--eps-raw", "--label", "--limit", "--missing",
               "--weights"),
    "predict": ("--checkpoint", "--device", "--label", "--missing", "--out"),
    "certify": ("--norm", "--eps", "--data", "--samples", "--preset", "--smoothing", "--noise-samples", "--seed",
                "--json", "--bounds", "--bounds-raw", "--eps-raw", "--label", "--missing"),
    "analyse": ("--preset", "--init", "--n", "--out", "--json", "--figures", "--seed", "--attribution"),
    "run": ("--only", "--size", "--seeds", "--workers", "--device", "--precision", "--evaluate-every", "--attack-batch",
            "--data", "--test", "--label", "--missing", "--scale", "--layer", "--objective", "--norm", "--eps",
            "--epochs", "--batch-size", "--lr", "--width", "--layers", "--ads", "--attack-steps", "--beta", "--block",
            "--bounds", "--bounds-raw", "--class-weights", "--eps-raw", "--gamma", "--group", "--init", "--name",
            "--out", "--preset"),
    "verdicts": ("--paper", "--save", "--commit", "--markdown"),
    "report": ("--out", "--title", "--fetch-limit"),
    "check": ("--layer", "--module", "--kwargs", "--dtype", "--device", "--seed"),
    "bench": ("--layer", "--batch", "--length", "--device"),
}  # fmt: skip
ARRAYS = ("npz", "safetensors", "csv", "ts")


class Options:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = ModelConfig(ChannelsConfig(2), ResidualConfig(LRUConfig(4), mixer="linear"), ClassifierConfig(2), 4, 1)
        self.model = save_model(build_model(config), folder / "model")
        self.wrong: list[str] = []
        self.outcomes: Counter[str] = Counter()
        x = np.linspace(0, 1, 120, dtype=np.float32).reshape(12, 5, 2)
        self.arrays = {"x": x, "y": np.arange(12) % 2}

    def case(self, number: int) -> None:
        chance = random.Random(number)
        arguments = self._data(chance) if chance.random() < 0.5 else self._line(chance)
        said = call(*arguments)
        self.outcomes[f"{arguments[0]} {said.status}"] += 1
        if said.bad:
            self.wrong.append(f"case {number}: {arguments!r:.300}: {said.status} {said.err[-300:]}")

    def _data(self, chance: random.Random) -> list[str]:
        """A data file, damaged, for an attack or for training's first look at it."""
        ending = chance.choice(ARRAYS)
        path = self.folder / f"data.{ending}"
        if path.is_dir():
            path.rmdir()
        self._write(path)
        chance.choice(DAMAGES)(path, [path], chance)
        reader = chance.choices(("run", "attack", "predict", "certify"), (4, 4, 1, 1))[0]
        if reader == "run":
            return ["run", "train", "--data", str(path), "--dry-run", "--layer", "lru", "--width", "4", "--layers", "0"]
        if reader == "predict":
            return ["predict", str(self.model), str(path)]
        if reader == "certify":
            return ["certify", str(self.model), "--data", str(path), "--samples", "1"]
        return ["attack", str(self.model), "--data", str(path), "--preset", "fast", "--samples", "1"]

    def _write(self, path: Path) -> None:
        x, y = self.arrays["x"], self.arrays["y"]
        if path.suffix == ".npz":
            np.savez(path, **self.arrays)
        elif path.suffix == ".safetensors":
            save_file({name: torch.from_numpy(value) for name, value in self.arrays.items()}, path)
        elif path.suffix == ".csv":
            rows = [f"{i},{t},{x[i, t, 0]},{x[i, t, 1]},{y[i]}" for i in range(12) for t in range(5)]
            path.write_text("\n".join(["id,time,a,b,label", *rows]) + "\n")
        else:
            lines = [":".join(",".join(map(str, channel)) for channel in sample.T) for sample in x]
            rows = [f"{values}:{c}" for values, c in zip(lines, y, strict=True)]
            path.write_text("@problemName x\n@classLabel true 0 1\n@data\n" + "\n".join(rows) + "\n")

    def _line(self, chance: random.Random) -> list[str]:
        """A command with odd values; every one has at least one, so none goes far."""
        name = chance.choice(list(COMMANDS))
        first = {"attack": [str(self.model)], "certify": [str(self.model)], "run": ["train", "--dry-run"],
                 "predict": [str(self.model), str(self.folder / "none.npz")],
                 "verdicts": [str(self.folder / "nothing")],
                 "report": [str(self.folder / "nothing")], "analyse": [], "check": [], "bench": []}[name]  # fmt: skip
        chosen = chance.sample(COMMANDS[name], chance.randint(1, 3))
        odd = [text for option in chosen for text in (option, chance.choice(TEXTS))]
        if name in ("check", "bench"):
            odd += ["--layer", chance.choice(("nosuch", "", "\x00"))]
        if name == "analyse":
            odd += ["--init", chance.choice(("nosuch", "", "legs")), "--n", chance.choice(("-1", "0", "x", "10" * 20))]
        if name == "attack":
            odd += ["--data", str(self.folder / "none.npz")]
        return [name, *first, *odd] if chance.random() < 0.8 else [name, *odd]


def run(count: int, first: int = 0, limit: float = 1e9) -> dict[str, object]:
    return {"what": "options"} | run_cases(Options, count, first, limit)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(run(*map(int, sys.argv[1:]))))
