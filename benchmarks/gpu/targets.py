"""What the kernels need on GPUs that are not here: each is compiled for several chips, and its assembler's report read.

    python -m benchmarks.gpu.targets                        # to benchmarks/results/targets.json
    python -m benchmarks.gpu.targets --only fused --chip 86

Needs Triton and no GPU: the library's own launches run on CPU tensors, and what they would launch is compiled instead
(by the ptxas that comes with Triton). A row says the shared memory of a program, its registers and spilled bytes, and
whether it fits: exit status 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.about import RESULTS, about
from resolvent.runtime import chip

CHIPS = (80, 86, 89, 90, 120)
Launch = Callable[[], None]


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
                print(f"sm_{capability} {name:40} {row['kernel']:20} {row['shared'] >> 10:4d} KiB, "
                      f"{row['registers']} registers, {row['spilled']} bytes spilled"
                      f"{'' if row['fits'] else ': too much'}", flush=True)  # fmt: skip
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written to {out}")
    return 0 if all(row["fits"] for row in record["rows"]) else 1


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
        seen.append(run(self, *args, grid=grid, warmup=True, **kwargs))
        return seen[-1]

    JITFunction.run = compile_only
    try:
        with chip.stand_in(capability):
            for name, launch in cases():
                if any(word in name for word in only):
                    seen.clear()
                    began = time.monotonic()
                    launch()
                    took = round(time.monotonic() - began, 1)
                    yield name, [{"kernel": k.metadata.name, "shared": k.metadata.shared, **_usage(k, capability),
                                  "seconds": took} for k in seen]  # fmt: skip
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


# -- the library's own launches ----------------------------------------------------------------------------------------


def cases() -> list[tuple[str, Launch]]:
    return [
        *_tables(), *_banks(), *_dplr(), *_mimo(), *_toeplitz(), *_linear(), *_selective(), *_fused(), *_post_norm(),
        ("Mega's attention", _attention),
    ]  # fmt: skip


def _tables() -> list[tuple[str, Launch]]:
    from resolvent.layers import DSS, EMA, S4D
    from resolvent.ops.blocked import carry_triton
    from resolvent.ops.modes.triton import maker, response, response_gradients

    def both(layer: Any, source: Any) -> Launch:
        def launch() -> None:
            own = maker(source.modes.kind)
            given = [p.detach() for p in source.parameters]
            made = own.tables(given, source.option, 64, False)
            own.gradients(given, made[3], [*made[:3], None, made[4]], source.option, False)
            response_gradients(source.modes.kind, given, response(source.modes.kind, given, 300))

        return launch

    def carries() -> None:
        z, h0 = torch.zeros(4, 2, 8, 64), torch.zeros(4, 2, 64)
        a = torch.ones(4, 32, dtype=torch.complex64)
        carry_triton.carry(a, z, h0, torch.empty_like(z), torch.empty_like(h0))
        carry_triton.carry_backward(a, z, h0, torch.empty_like(z))
        for whole in (a, torch.ones(4, 64, 64), torch.ones(4, 128, 128)):
            wide = torch.zeros(4, 2, 8, max(64, whole.shape[-1]))
            carry_triton.chain(whole, wide, torch.empty_like(wide, dtype=torch.bfloat16), True)

    s4d = S4D(8)
    return [
        ("tables of S4D", both(s4d, s4d._source(s4d.C, s4d.D))),
        ("tables of DSS", both(None, DSS(8)._source())),
        ("tables of EMA", both(None, EMA(8)._source())),
        ("tables of EMA, one state", both(None, EMA(1, 1)._source())),
        ("tables of DSS, one state", both(None, DSS(1, 1)._source())),
        ("states between blocks", carries),
    ]


def _banks() -> list[tuple[str, Launch]]:
    from resolvent.layers import EMA, S4D
    from resolvent.ops.bank_scan import triton as own

    def both(tables: Any, parameters: Any, kind: Any) -> None:
        x, h0 = torch.zeros(3, 256, 8), torch.zeros(3, 8, tables.ahead.shape[2] - 64)
        for start, lengths in ((h0, None), (None, torch.tensor([256, 9, 1]))):
            y, end, kept = own.run(tables, x, start, lengths)
            *_, found = own.gradients(tables, kept, y, end, start=start is not None)
        if kind is not None:
            own.parameter_gradients(kind, parameters, found, 64, False)

    def diagonal(source: Any, dtype: torch.dtype) -> Launch:
        given, kind = [p.detach() for p in source.parameters], source.modes.kind
        return lambda: both(own.make_tables(kind, given, 64, False, dtype), given, kind)

    def dense(dtype: torch.dtype) -> Launch:
        ahead, whole = torch.zeros(8, 64, 128, dtype=dtype), torch.zeros(8, 64, 64)
        return lambda: both(own.Tables(ahead, ahead, whole, True), None, None)

    s4d = S4D(8)
    made = []
    for dtype in (torch.bfloat16, torch.float32):
        made.append((f"bank of S4D, {dtype}", diagonal(s4d._source(s4d.C, s4d.D), dtype)))
        made.append((f"bank of EMA, {dtype}", diagonal(EMA(8)._source(), dtype)))
        made.append((f"bank of one state, {dtype}", diagonal(EMA(8, 1)._source(), dtype)))
        made.append((f"dense bank, {dtype}", dense(dtype)))
    return made


def _dplr() -> list[tuple[str, Launch]]:
    from resolvent.layers import S4
    from resolvent.ops.dplr_bank import triton as own

    def both(n: int, rank: int) -> Launch:
        layer, T = S4(8, 2 * n, rank=rank), 64
        given = [p.detach() for p in layer._source(layer.C, layer.D).parameters]

        def launch() -> None:
            own.make_tables(given, T, False, torch.bfloat16)
            own.parameter_gradients(given, torch.zeros(8, T + 2 * n, T + 2 * n), T, False)
            own.link_gradients(given, own.make_links(given, 1024))
            K, kept = own.response(given, 784)
            own.response_gradients(given, K, kept)

        return launch

    return [(f"tables of S4, {n} states, rank {rank}", both(n, rank)) for n in (32, 64) for rank in (1, 2)]


def _mimo() -> list[tuple[str, Launch]]:
    from resolvent.ops.mimo_scan.operation import mimo_scan

    def passes(dtype: torch.dtype, D: Any) -> Launch:
        def launch() -> None:
            h0, ends = torch.zeros(2, 64), torch.tensor([9, 7])
            for l, start, lengths in ((1000, h0, None), (1000, None, ends), (10, None, None)):
                given = [torch.zeros(s, requires_grad=True) for s in ((2, l, 256), (32, 2), (64, 256), (256, 64), D)]
                mimo_scan(given[1:], given[0], start, lengths, dtype)[0].sum().backward()

        return launch

    kinds = [("S5 and LRU", (256,)), ("L2RU", (256, 256))]
    made = [(f"scan of {n}, {t}", passes(t, D)) for n, D in kinds for t in (torch.bfloat16, torch.float32)]
    return [*made, ("tables of S5 and LRU", _mimo_tables)]


def _mimo_tables() -> None:
    from resolvent.ops.modes import mimo_triton as own

    pair, one = torch.zeros(32, 2), torch.zeros(32)
    for first, option in (([pair, one], "zoh clip 2.0"), ([pair, one], "bilinear 1.0"), ([one, one, one], " 1.0")):
        given = [*first, torch.zeros(32, 256, 2), torch.zeros(256, 32, 2)]
        own.slopes(given, own.tables(given, option), option)


def _toeplitz() -> list[tuple[str, Launch]]:
    from resolvent.ops.filter import toeplitz_triton as own

    def products(dtype: torch.dtype) -> Launch:
        def launch() -> None:
            fine = dtype == torch.float32
            x, kernel = torch.zeros(2, 256, 1024, dtype=dtype), torch.zeros(2, 1024)
            ahead, back = own.tables(kernel, dtype, own.SIZE, fine)
            own.product(x, ahead, back=False)
            own.product(x, back, back=True, onto=torch.empty_like(x))
            if not fine:
                own.kernel_gradient(x, x)
                link = torch.zeros(2, 256, 64, dtype=dtype), torch.zeros(2, 1024, 64, dtype=dtype)
                own.product(x, back, back=True, onto=torch.empty_like(x), link=link)

        return launch

    return [(f"Toeplitz products, {dtype}", products(dtype)) for dtype in (torch.bfloat16, torch.float32)]


def _linear() -> list[tuple[str, Launch]]:
    """Chunks that hand their states on."""
    from resolvent.ops.linear_scan import triton as own
    from resolvent.ops.linear_scan.relay.launch import cut_relay

    def both(dtype: torch.dtype, steps: int) -> Launch:
        def launch() -> None:
            a, b = torch.empty(1, steps, 64, dtype=dtype), torch.empty(1, 4096, 64, dtype=dtype)
            for reset in (None, torch.zeros(1, 4096, dtype=torch.bool)):
                plan = cut_relay(4096, dtype != torch.float32)
                own._scan(a, b, None, False, reset, plan)
                own._backward(b, a, b, None, False, reset, plan)

        return launch

    dtypes = (torch.float32, torch.complex64, torch.bfloat16)
    return [(f"linear scan of few rows, {t}, a of {n} steps", both(t, n)) for t in dtypes for n in (1, 4096)]


def _selective() -> list[tuple[str, Launch]]:
    """Mamba's inner pass, and S6's, whose outputs are wider than its inputs."""
    from resolvent.ops.pointwise import conv_silu_triton
    from resolvent.ops.selective_scan import triton as own
    from resolvent.ops.selective_scan.inputs import Inputs

    def both(d: int, gated: bool) -> Launch:
        def launch() -> None:
            b, l, n, low = 32, 1024, 16, torch.bfloat16
            u, dt, z = torch.empty(3, b, l, d, dtype=low).unbind()
            B, C = torch.empty(b, l, 16 + 2 * n, dtype=low)[..., 16:].split(n, -1)
            x = Inputs(u, dt, torch.empty(d, n), B, C, torch.empty(d), z if gated else None)
            bias, into = torch.empty(d), low if gated else torch.float32
            y, end, saved = own.forward(x, False, True, None, bias, into)
            own.backward(x, saved, y, end, False, None, bias)

        return launch

    def convolve() -> None:
        x, w, bias = torch.empty(2, 256, 1024, dtype=torch.bfloat16), torch.empty(512, 4), torch.empty(512)
        g = conv_silu_triton.forward(x[..., :512], w, bias)
        for learn in (False, True):
            conv_silu_triton.backward(g, x[..., :512], w, bias, learn, torch.empty_like(x)[..., :512])

    made = [("selective scan of S6", both(256, False)), ("selective scan of Mamba", both(512, True))]
    return [*made, ("convolution of Mamba", convolve)]


def _attention() -> None:
    from resolvent.ops.attention import gated_block_triton as own
    from resolvent.ops.pointwise.skip_norm import Ending

    low, d, z, w, b, l = torch.bfloat16, 128, 64, 256, 2, 1024
    x, wide, v = torch.empty(d, b, l, dtype=low), torch.empty(w, b, l, dtype=low), torch.empty(w)
    for learn in (False, True):
        q, k = own.project(x[:z], v, v.view(2, -1), v.view(2, -1))
        p = own.weigh(q, k, torch.empty(2 * l - 1))
        own.open_gates(wide, wide, v)
        _, rest = own.slope(wide, wide, p, own.open_backward(wide, wide, wide, v, wide, learn)[1])
        own.project_backward((q, k, rest), q, (v, v.view(2, -1), v.view(2, -1)), k, learn)
        _, kept = own.close((x, x, x, x), (v, v), Ending(v, v, None, None, 1e-5))
        own.close_backward(x, (x, x, x, x), (v, v), v, kept or (), (x, x), learn)


def _fused() -> list[tuple[str, Launch]]:
    """With the most channels that a program takes."""
    from resolvent.lowering.gpu import fused_triton as own
    from resolvent.lowering.gpu.fused_torch import Weights

    def weights(sort: str, dtype: torch.dtype) -> Weights:
        d, c = 128, {"entry": 16, "narrow": 3}.get(sort, 128)
        W, v, entry = torch.zeros(d, c), torch.zeros(d), sort in ("entry", "narrow")
        act = "gelu" if sort == "bent" else "none"
        made = {"W": W, "bias": v, "gamma": v, "beta": v, "low": W.to(torch.float32 if entry else dtype)}
        if sort == "scaled":
            made |= {"Wa": W, "ba": v, "low_a": W.to(dtype)}
        return Weights(1e-5, act, "none", "sigmoid" if sort == "scaled" else "none", dtype, **made, entry=entry)

    def passes(sort: str, dtype: torch.dtype) -> Launch:
        def launch() -> None:
            w = weights(sort, dtype)
            if not own.fits(w):
                return print(f"  fused, {sort}, {dtype}: no tile, left to torch", flush=True)
            y = torch.zeros(w.low.shape[1], 4, 128, dtype=torch.float32 if w.entry else dtype)
            y = y.permute(1, 2, 0).contiguous().permute(2, 0, 1) if w.entry else y
            r = None if w.entry else y
            out, kept = own.forward(y, r, w)
            assert kept is not None
            for learn in (False, True):
                own.backward(out, kept, y, w, learn)

        return launch

    low, fine = torch.bfloat16, torch.float32
    sorts = [("plain", low), ("plain", fine), ("bent", low), ("bent", fine)]
    sorts += [(sort, low) for sort in ("scaled", "entry", "narrow")]
    return [(f"fused, {sort}, {dtype}", passes(sort, dtype)) for sort, dtype in sorts]


def _post_norm() -> list[tuple[str, Launch]]:
    """Blocks of passes that learn nothing, on the one kind of chip that they run on."""
    from resolvent.ops.pointwise import post_norm_triton as own

    def passes(kind: str) -> Launch:
        def launch() -> None:
            x, v = torch.zeros(128, 4, 128, dtype=torch.bfloat16), torch.zeros(128)
            if not own.serves(x, 128, 3 if kind == "entry" else 128, x.dtype, kind):
                return
            W = torch.zeros(128, 3) if kind == "entry" else x[:, 0].clone()
            y = torch.zeros(4, 128, 3).permute(2, 0, 1) if kind == "entry" else x
            w = own.Block(kind, 1e-5, v, v, None if kind == "bare" else W, v, v if kind == "bare" else None, W, v)
            w = w if kind == "scaled" else w._replace(Wa=None, ba=None)
            out, kept = own.forward(y, None if kind == "entry" else x, w, x.dtype)
            assert kept is not None
            for g in (out, out[..., :1].expand_as(out)):
                own.backward(g, kept, w, y.shape[0])

        return launch

    return [(f"post-norm, {kind}", passes(kind)) for kind in own.AHEAD]


if __name__ == "__main__":
    raise SystemExit(main())
