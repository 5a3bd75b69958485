"""Everything on one GPU in one run: ours, the straightforward eager version and the peers, each beside its floor.

    python -m benchmarks.gpu                                   # the whole table, to benchmarks/results/gpu.json
    python -m benchmarks.gpu --only "step, s5" selective       # rows whose name holds one of these
    python -m benchmarks.gpu --limit 300                       # stop between rows after so many seconds; call again

Ceilings are measured first. Every contender's values and gradients are then compared with float64, those of our
training step on the batch that is timed and as it was recorded: one that differs gets no time. Contenders about as
quick as ours are timed in turns with it. Rows that --out holds of the same commit, device and sizes are kept, so that a
run cut short goes on; with --keep those of other commits too, unless --only names them. Each row carries the commit
that it was measured at.
`--device cpu --tiny` runs the program itself on a machine without a GPU; its times mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.about import RESULTS, UNKNOWN, measured_commit, placed
from benchmarks.gpu import ceilings as gpu_ceilings
from benchmarks.gpu import peers as gpu_peers
from benchmarks.gpu import record as gpu_record
from benchmarks.gpu import scans as gpu_scans
from benchmarks.gpu import step as gpu_step
from benchmarks.gpu import table as gpu_table
from benchmarks.gpu.case import EAGER, OURS, Case, Ceilings, Measured, Running, Timing

RECORD = RESULTS / "gpu.json"
TOGETHER = 6  # processes that compile at a time: each holds the inputs of its row
TURNS = 3  # medians of each contender, one after the other's
Seen = Measured | str  # a time, or why there is none
NEAR = 5.0  # times as long as ours: beyond it a contender has one turn, alone, and its memory is given back


def main() -> int:
    started, settings = time.monotonic(), _settings()
    device = torch.device(settings.device)
    made = _cases(device, settings.tiny)
    if settings.skip_peers or settings.ahead is not None:
        gpu_peers.leave_out(triton=settings.skip_peers)
    if settings.ahead is not None:
        return _once(made[settings.ahead])
    commit = measured_commit(settings.commit)
    record = gpu_record.held(settings.out, device, settings.tiny, None if settings.keep else commit)
    done = {row["case"] for row in record["rows"] if row["commit"] == commit != UNKNOWN}
    order = [case.name for case in made]
    chosen = [i for i, name in enumerate(order) if name not in done and any(word in name for word in settings.only)]
    if device.type == "cuda":
        if not settings.skip_peers:
            gpu_peers.build()
        _compile_ahead(chosen, settings)
    ceilings = gpu_ceilings.measure(device, settings.tiny)
    gpu_record.begin(record, ceilings, commit)
    print(gpu_table.describe(ceilings), flush=True)
    for i in chosen:
        if settings.limit is not None and time.monotonic() - started > settings.limit:
            print(f"stopped after {settings.limit:.0f} s; the same command goes on with the rows that are left")
            break
        gpu_record.add(record, _measure(made[i], ceilings, settings), order)
        record["peers"] |= gpu_peers.report()
        gpu_record.write(settings.out, record)  # a run cut short leaves what it has
    else:
        record["runs"][-1]["complete"] = True
    gpu_record.write(settings.out, record)
    print(gpu_table.table(record))
    print(f"written to {settings.out}")
    return 1 if any("refused" in row for row in record["rows"]) else 0


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="rows whose name holds one of these")
    parser.add_argument("--skip-eager", action="store_true", help="leave the eager version out")
    parser.add_argument("--skip-peers", action="store_true", help="leave the peers out")
    parser.add_argument("--keep", action="store_true", help="keep rows of other commits that are not measured anew")
    parser.add_argument("--limit", type=float, help="start no further row after so many seconds")
    parser.add_argument("--profile", action="store_true", help="add the kernels of our steps, by time")
    parser.add_argument("--commit", default="", help="of the measured tree, where git cannot tell")
    parser.add_argument("--out", type=Path, help=f"{RECORD.name} among the results; of a trial, in out/")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to try this program out")
    parser.add_argument("--ahead", type=int, help="run this row once, so that its kernels are compiled, and no more")
    settings = parser.parse_args()
    settings.out = placed(parser, settings.out, RECORD, settings.device, settings.tiny)
    made = _cases(torch.device(settings.device), settings.tiny)
    if not any(word in case.name for word in settings.only for case in made):
        names = "\n  ".join(case.name for case in made)
        parser.error(
            f"--only {' '.join(settings.only)}: expected words of a row's name, and no row has them:\n  {names}"
        )
    return settings


def _cases(device: torch.device, tiny: bool) -> list[Case]:
    return [*gpu_step.cases(device, tiny), *gpu_scans.cases(device, tiny)]


# -- one case ----------------------------------------------------------------------------------------------------------


def _measure(case: Case, ceilings: Ceilings, settings: argparse.Namespace) -> gpu_record.Rows:
    """Ours first; a contender that disagrees, or fails, says why and has no time."""
    began = time.monotonic()
    chosen = [c for c in case.contenders if not (settings.skip_eager and c.name == EAGER)]
    found = {OURS: _errors(case, chosen[0])}
    refusal = _refusal(case, found[OURS])
    rows: gpu_record.Rows
    if refusal is not None:
        rows = [{"case": case.name, "timing": t.name, "refused": refusal} for t in case.timings]
    else:
        found |= {c.name: _errors(case, c) for c in chosen[1:]}
        rows = [_row(case, t, _in_turns(case, t, chosen, found), ceilings, found) for t in case.timings]
        for row, timing in zip(rows, case.timings, strict=True):
            _judge(row, timing)
        if settings.profile and torch.cuda.is_available() and isinstance(case, gpu_step.StepCase):
            rows[0]["kernels"] = case.kernels()
    rows[0]["seconds"] = round(time.monotonic() - began, 1)  # of the whole case
    case.clear()
    _release()
    gc.freeze()  # what was imported so far is not looked through again after every contender
    for row in rows:
        print(gpu_table.line(row), flush=True)
    return rows


def _errors(case: Case, contender: Any) -> dict[str, float] | str:
    """Its distances from float64, or how it failed."""
    try:
        return case.errors(contender)
    except Exception as error:  # out of memory among them: the other contenders and rows still count
        return gpu_peers.first_line(error)
    finally:
        _release()


def _refusal(case: Case, errors: dict[str, float] | str, kind: str = "") -> str | None:
    """Why there is no speed: how it failed, or which distance is too large; a forward pass needs no right gradients."""
    if isinstance(errors, str):
        return errors
    asked = [name for name in errors if not (kind == "forward" and name == "gradients")]
    far = [f"{name} differ by {errors[name]:.1e}, allowed {case.limit(name):.0e}" for name in asked
           if not errors[name] <= case.limit(name)]  # fmt: skip
    return f"{'; '.join(far)}: no speed is told" if far else None


def _in_turns(case: Case, timing: Timing, contenders: Sequence[Any], errors: dict[str, Any]) -> dict[str, Seen]:
    """What each of them took, or why it has no time. Ours comes first: it tells who is near."""
    held: dict[str, Running] = {}
    seen: dict[str, Seen] = {}
    for contender in contenders:
        refused = _refusal(case, errors[contender.name], timing.kind)
        if refused is not None:
            seen[contender.name] = refused
            continue
        try:
            running = case.running(contender, timing)
            if not held or running.first <= NEAR * held[OURS].first:
                held[contender.name] = running
            else:
                running.turn()
                seen[contender.name] = running.measured()
        except Exception as error:  # somebody else's code: whatever it throws is a line of the table
            seen[contender.name] = gpu_peers.first_line(error)
        finally:
            running = None  # type: ignore[assignment]
            _release()
        if OURS in seen:  # refused: nobody is timed
            return seen
    for _ in range(TURNS):
        for running in held.values():
            running.turn()
    return seen | {name: running.measured() for name, running in held.items()}


def _row(
    case: Case, timing: Timing, seen: dict[str, Seen], ceilings: Ceilings, errors: dict[str, Any]
) -> dict[str, Any]:
    row: dict[str, Any] = {"case": case.name, "timing": timing.name, "errors": errors[OURS]}
    ours = seen[OURS]
    if isinstance(ours, str):
        return row | {"refused": ours}
    floor = ceilings.floor(timing.costs)
    return row | {
        **_numbers(ours),
        "rate": timing.rate(ours.ms),
        "floor_ms": round(floor, 4),
        "of_floor": round(floor / ours.ms, 3),
        "quoted": timing.quoted,
        "others": {name: _other(case, seen[name], found, ours.ms) for name, found in errors.items() if name != OURS},
    }


def _numbers(seen: Measured) -> dict[str, Any]:
    spread = {"least": min(seen.medians), "median": seen.ms, "most": max(seen.medians)}  # over the turns
    record = {"ms": round(seen.ms, 4), "turns": {name: round(ms, 4) for name, ms in spread.items()}}
    return record | {"peak_gb": seen.peak_gb} | ({"recorded": True} if seen.recorded else {})


def _other(case: Case, seen: Seen, errors: Any, ours: float) -> dict[str, Any]:
    """Another contender's numbers, or why it has none; `wrong` where its gradients are, though its values are not."""
    if isinstance(seen, str):
        return {"why": seen}
    wrong = {"wrong": "gradients"} if _refusal(case, errors) is not None else {}
    return _numbers(seen) | {"ratio": round(seen.ms / ours, 3), "errors": errors} | wrong


def _judge(row: dict[str, Any], timing: Timing) -> None:
    """What was to be reached: a time, or that of a rival in the same run."""
    if "refused" in row:
        return
    rivals = {o["ms"]: name for name, o in row["others"].items() if "ms" in o and name.startswith(timing.rival or "?")}
    row["target_ms"] = min(rivals, default=timing.target_ms)
    row["target_of"] = rivals.get(row["target_ms"], "")
    row["met"] = None if row["target_ms"] is None else row["ms"] <= row["target_ms"]


def _release() -> None:
    """Give memory back: a failed contender's tensors may wait in cycles."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


# -- before the first row ----------------------------------------------------------------------------------------------


def _compile_ahead(chosen: list[int], settings: argparse.Namespace) -> None:
    """Every row once, in processes of their own: kernels compile side by side and wait in Triton's cache."""
    flags = [*(["--tiny"] if settings.tiny else []), *(["--skip-peers"] if settings.skip_peers else [])]

    def one(i: int) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu", "--device", settings.device, *flags, "--ahead", str(i)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    began = time.monotonic()
    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(one, chosen))
    print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)


def _once(case: Case) -> int:
    """Ours and the peers whose kernels are compiled; what fails here fails again, and is told, in its row."""
    logging.disable(logging.WARNING)
    for contender in case.contenders:
        if contender.ahead:
            case.once(contender)
    return 0


if __name__ == "__main__":
    sys.exit(main())
