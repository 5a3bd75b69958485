"""What the kernels need on GPUs that are not here: each is compiled for several chips, and its assembler's report read.

    python -m benchmarks.gpu.targets                        # to benchmarks/results/targets.json
    python -m benchmarks.gpu.targets --only fused --chip 86

Needs Triton and no GPU: the library's own launches run on CPU tensors, and what they would launch is compiled instead
(by the ptxas that comes with Triton). A row says the shared memory of a program, its registers and spilled bytes, and
whether it fits: exit status 1 where one does not, does not compile, or where a kernel has no case (`cases`).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.about import RESULTS, about
from benchmarks.gpu.targets.cases import cases, every_kernel
from resolvent.runtime import chip

CHIPS = (80, 86, 89, 90, 120)


class Absent:
    """Stands for the driver of a chip that is not here."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> int:
    settings = _settings()
    record = about("none: compiled ahead", settings.commit) | {"rows": []}
    out = settings.out or RESULTS / "targets.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    for capability in settings.chip:
        held = chip.SHARED[capability] << 10
        for name, kernels in compiled(capability, settings.only):
            for row in kernels:
                row |= {"chip": capability, "case": name, "fits": row["shared"] <= held}
                record["rows"].append(row)
                print(f"sm_{capability} {name:40} {row['kernel'].split('.')[-1]:20} {row['shared'] >> 10:4d} KiB, "
                      f"{row['registers']} registers, {row['spilled']} bytes spilled"
                      f"{'' if row['fits'] else ': too much'}", flush=True)  # fmt: skip
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written to {out}")
    whole = settings.only == [""] and 90 in settings.chip  # the one kind that all are made for
    missing = every_kernel() - {row["kernel"] for row in record["rows"]} if whole else set()
    for name in sorted(missing):
        print(f"without a case: {name}")
    return 0 if all(row["fits"] for row in record["rows"]) and not missing else 1


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name holds one of these")
    parser.add_argument(
        "--chip", nargs="*", type=int, default=CHIPS, choices=CHIPS, help="compute capabilities, times ten"
    )
    parser.add_argument("--commit", default="", help="of the measured tree, where git cannot tell")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def compiled(capability: int, only: list[str]) -> Any:
    """(name, what its launches compile to) of each case."""
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver.set_active(Absent(capability))  # type: ignore[arg-type]
    seen: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        made = run(self, *args, grid=grid, warmup=True, **kwargs)
        if made not in (own for _, own in seen):
            seen.append((f"{self.fn.__module__}.{self.fn.__name__}", made))
        return made

    JITFunction.run = compile_only
    try:
        with chip.stand_in(capability):
            for name, launch in cases():
                if any(word in name for word in only):
                    seen.clear()
                    began = time.monotonic()
                    launch()
                    took = round(time.monotonic() - began, 1)
                    yield name, [{"kernel": kernel, "shared": k.metadata.shared, **_usage(k, capability),
                                  "seconds": took} for kernel, k in seen]  # fmt: skip
    finally:
        JITFunction.run = run


def _usage(kernel: Any, capability: int) -> dict[str, int]:
    """Registers of a thread and spilled bytes, as ptxas tells them."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "kernel.ptx"
        source.write_text(kernel.asm["ptx"], encoding="utf-8")
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={sm_arch_from_capability(capability)}"]
        told = subprocess.run([*command, str(source), "-o", f"{place}/o"], capture_output=True, text=True, check=True)
    registers = re.search(r"Used (\d+) registers", told.stderr)
    spilled = re.search(r"(\d+) bytes spill stores", told.stderr)
    return {"registers": int(registers[1]) if registers else -1, "spilled": int(spilled[1]) if spilled else 0}


if __name__ == "__main__":
    raise SystemExit(main())
