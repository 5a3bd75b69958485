"""Layers in somebody's own module and loop: training step, forward pass, first compiled call, memory, streaming step.

    python -m benchmarks.composed                               # on a GPU, to benchmarks/results/composed_gpu.json
    python -m benchmarks.composed --device cpu                  # two threads, float32, to composed_cpu.json
    python -m benchmarks.composed --only S4D EMA --no-compile   # these beside naive S4D, attention, no layer
    python -m benchmarks.composed --shape 1 --out long.json     # the second shape alone
    python -m benchmarks.composed --device cpu --tiny           # tries the program out; its times mean nothing

Four blocks of LayerNorm, layer, GELU, Linear and skip (`modules.py`), AdamW, on a GPU under bf16 autocast. Each
contender's values and gradients are compared with float64 first: one that differs has no time, and where it is ours the
exit status is 1; a rival may differ by ten times as much, and the record says by how much it does. All of a shape take
turns, uncompiled and compiled ones; the least of their turns' medians is told. What is found is written after every
part of the run, so that a run cut short by --limit leaves what it has.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.about import RESULTS, about, accelerator, processor
from benchmarks.composed import measure, table
from benchmarks.composed.measure import Setting, Work
from benchmarks.composed.modules import ATTENTION, EMPTY, NAIVE, Contender, build, contenders

SHAPES = {
    "cuda": [(32, 1024, 256), (8, 4096, 512)],
    "cpu": [(4, 1024, 64), (1, 4096, 128)],
    "tiny": [(2, 70, 8)],
}
BESIDE = (NAIVE, ATTENTION, EMPTY)  # always there
Row = dict[str, Any]


def main() -> int:
    settings = _settings()
    device = torch.device(settings.device)
    if device.type == "cpu":
        torch.set_num_threads(settings.threads)
    name = processor(settings.threads) if device.type == "cpu" else accelerator(settings.device)
    record = about(name, settings.commit) | {
        "tiny": settings.tiny,
        "mode": settings.mode,
        "complete": False,
        "shapes": [],
    }
    autocast = torch.bfloat16 if device.type == "cuda" else None
    end, works = time.monotonic() + settings.limit, list[dict[str, list[Work]]]()
    for i, shape in enumerate(SHAPES["tiny" if settings.tiny else device.type]):
        if settings.shape not in (None, i):
            continue
        rows = record["shapes"]
        rows.append({"shape": shape, "autocast": str(autocast), "rows": []})
        compiles = not settings.no_compile and (i == 0 or settings.compile_all)
        setting = Setting(shape, device, autocast)
        works.append(_measure(rows[-1]["rows"], _chosen(settings), setting, compiles, end, settings))
        _write(settings.out, record)
        print(table.shape_table(rows[-1]), flush=True)
    for part, own in zip(record["shapes"], works, strict=True):
        _count_calls(part["rows"], own)
    record["complete"] = time.monotonic() < end
    record["judged"] = [line for part in record["shapes"] for line in table.judge(part, device.type, contenders())]
    _write(settings.out, record)
    print("\n".join(record["judged"]))
    print(f"written to {settings.out}")
    return 1 if any("refused" in row and row["ours"] for part in record["shapes"] for row in part["rows"]) else 0


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="layers of ours by name; naive S4D, attention and no layer stay")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--shape", type=int, choices=(0, 1), help="one shape alone")
    parser.add_argument("--compile-all", action="store_true", help="compile at every shape, not at the first alone")
    parser.add_argument("--mode", default="default", choices=("default", "reduce-overhead"), help="of torch.compile")
    parser.add_argument("--turns", type=int, default=5, help="medians of each contender, one after the others'")
    parser.add_argument(
        "--limit", type=float, default=1e9, help="compile and time nothing further after so many seconds"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--commit", default="", help="of the measured tree, where git cannot tell")
    parser.add_argument(
        "--out", type=Path, help="composed_gpu.json or composed_cpu.json among the results; of a trial, in out/"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to try this program out")
    settings = parser.parse_args()
    if settings.tiny and settings.shape:
        parser.error("--shape 1: expected 0 with --tiny, which has one shape")
    names = [c.name for c in contenders()]
    if wrong := sorted(set(settings.only or ()) - set(names)):
        parser.error(f"--only: expected some of {', '.join(names)}, got {', '.join(wrong)}")
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"expected a GPU for --device {settings.device}, and torch sees none; --device cpu measures a CPU")
    file = f"composed_{'gpu' if settings.device.startswith('cuda') else 'cpu'}.json"
    settings.out = settings.out or (Path("out") / file if settings.tiny else RESULTS / file)
    return settings


def _chosen(settings: argparse.Namespace) -> list[Contender]:
    return [c for c in contenders() if settings.only is None or c.name in BESIDE or c.name in settings.only]


def _measure(
    rows: list[Row], chosen: list[Contender], setting: Setting, compiles: bool, end: float, settings: Any
) -> dict[str, list[Work]]:
    """Rows of one shape: who is right, what each takes in turns with the others, and what it takes of the device."""
    batch, works = setting.batch(), dict[str, list[Work]]()
    for contender in chosen:
        row: Row = {"name": contender.name, "ours": contender.ours}
        rows.append(row)
        model = build(contender, setting.shape[2], setting.device)
        row["errors"] = measure.distances(contender, model, setting)
        if (why := measure.refusal(row["errors"], setting, contender.ours)) is not None:
            row["refused"] = why
            continue
        work = Work(model, setting, batch)
        works[contender.name] = [work]
        row["peak_gb"] = measure.peak_gb(work)
        if contender.ours and hasattr(contender.make(8), "step"):
            row["stream_ms"] = _streaming(contender, setting, settings.tiny)
        if compiles and contender.compiles and time.monotonic() < end:
            _compile(row, works[contender.name], contender, setting, batch, settings.mode)
        gc.collect()
    turns = settings.turns if time.monotonic() < end else 1
    measure.in_turns([work for some in works.values() for work in some], turns)
    for row in rows:
        for kind, work in zip(("eager", "compiled"), works.get(row["name"], ()), strict=False):
            row[kind] = work.told()
    return works


def _count_calls(rows: list[Row], works: dict[str, list[Work]]) -> None:
    """After all times are taken: a profiler that was once at work makes every later launch slower."""
    for row in rows:
        if row["name"] in works:
            row["calls"] = {which: measure.calls(works[row["name"]][0], which) for which in ("step", "forward")}
        print(table.line(row), flush=True)


def _streaming(contender: Contender, setting: Setting, tiny: bool) -> float | None:
    torch.manual_seed(0)
    layer = contender.make(setting.shape[2]).to(setting.device)
    return measure.streaming_ms(layer, setting.device, setting.shape[2], *((3, 1) if tiny else (200, 5)))


def _compile(row: Row, works: list[Work], contender: Contender, setting: Setting, batch: Any, mode: str) -> None:
    """What fails to compile says why, and has no time."""
    try:
        model = build(contender, setting.shape[2], setting.device)
        work, first = measure.compile_stack(model, setting, batch, mode)
    except Exception as error:  # whatever a compiler throws is a line of the table
        row["compile_failed"] = str(error).strip().splitlines()[0][:200]
        return
    row["first_call"] = asdict(first)
    works.append(work)


def _write(out: Path, record: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
