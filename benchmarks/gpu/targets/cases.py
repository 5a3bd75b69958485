"""What is compiled: the library's own launches, every kernel at least once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

Launch = Callable[[], None]
SOURCE = Path(__file__).resolve().parents[3] / "src"


def every_kernel() -> set[str]:
    """All Triton kernels that there are, by module and name."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search("^import triton$", text, re.MULTILINE):
            place = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            found |= {f"{place}.{name}" for name in re.findall(r"^def (\w+_kernel)\(", text, re.MULTILINE)}
    return found


def cases() -> list[tuple[str, Launch]]:
    return [
        *_tables(), *_banks(), *_dplr(), *_mimo(), *_toeplitz(), *_linear(), *_selective(), *_fused(), *_post_norm(),
        *_gated(), *_projected(), *_ascent(), ("Mega's attention", _attention), ("pointwise passes", _pointwise),
        ("response of a bank", _bank_response), ("scans in several launches", _chunks),
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
    from resolvent.ops.bank_scan.dense import has_room

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
        def launch() -> None:
            for s in (64, 128):
                ahead, whole = torch.zeros(8, 64, 64 + s, dtype=dtype), torch.zeros(8, s, s)
                if has_room(whole, s):
                    both(own.Tables(ahead, ahead, whole, True), None, None)

        return launch

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
    from resolvent.ops.bank_scan.dense import has_room
    from resolvent.ops.dplr_bank import triton as own

    def both(n: int, rank: int, length: int = 784) -> Launch:
        layer, T = S4(8, 2 * n, rank=rank), 64
        given = [p.detach() for p in layer._source(layer.C, layer.D).parameters]

        def launch() -> None:
            if not has_room(given[0], 2 * n):
                return print(f"  S4, {n} states: no room, left to torch", flush=True)
            own.make_tables(given, T, False, torch.bfloat16)
            own.parameter_gradients(given, torch.zeros(8, T + 2 * n, T + 2 * n), T, False)
            own.link_gradients(given, own.make_links(given, min(length, 1024)))
            K, kept = own.response(given, length)
            own.response_gradients(given, K, kept)

        return launch

    made = [(f"tables of S4, {n} states, rank {rank}", both(n, rank)) for n in (32, 64) for rank in (1, 2)]
    return [*made, ("one step of S4", both(32, 1, 1))]  # sizes of one are constants to the compiler


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

    def both(d: int, gated: bool, b: int = 32) -> Launch:
        def launch() -> None:
            l, n, low = 1024, 16, torch.bfloat16
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
    made.append(("selective scan of one sequence", both(256, True, 1)))
    return [*made, ("convolution of Mamba", convolve)]


def _chunks() -> None:
    """As where chunks do not hand their states on, channels last and time last, and with constant multipliers."""
    from resolvent.ops.linear_scan import constant_triton
    from resolvent.ops.linear_scan import triton as own

    for dtype in (torch.float32, torch.complex64, torch.bfloat16):
        b = torch.empty(1, 4096, 50, dtype=dtype)
        for x in (b, b.mT.contiguous().mT):
            for a in (x, x[:, :1]):
                last, narrow = not x.is_contiguous(), False
                for plan in (own.cut(300, 4096, 50, last, narrow), own.cut(1, 4096, 50, last, narrow)):
                    own._scan(a, x, x[:, 0], False, None, plan)
                    own._backward(x, a, x, x[:, 0], False, torch.zeros(1, 4096, dtype=torch.bool), plan)
        own.short_scan(b[:, :64], b[:, :64])
    for v in (torch.empty(64, 2, 1024), torch.empty(64, 2, 1024, dtype=torch.bfloat16)):
        constant_triton.adjoint(torch.empty(32, 2), v, constant_triton.scan(torch.empty(32, 2), v))
        constant_triton.adjoint(torch.empty(32, 2), v, None)


def _bank_response() -> None:
    from resolvent.ops.modes import bank_response_triton as own

    for n, length in ((32, 784), (64, 784), (1, 1)):
        z, w = torch.zeros(2, 8, n, 2, dtype=torch.float64).unbind()
        own.response_gradients(z, w, own.response(z, w, length))


def _gated() -> list[tuple[str, Launch]]:
    from resolvent.ops.gated_scan import triton as own
    from resolvent.ops.gated_scan.inputs import Inputs

    def both(b: int, dtype: torch.dtype) -> Launch:
        def launch() -> None:
            wide, rate, h0 = torch.empty(b, 1024, 256, dtype=dtype), torch.empty(256), torch.empty(b, 256)
            for start in (None, torch.zeros(b, dtype=torch.bool), torch.zeros(b, 1024, dtype=torch.bool)):
                x = Inputs(wide, wide, wide, rate, h0, start, False)
                own._backward(x, own._forward(x), wide)

        return launch

    return [(f"gated scan of {b}, {t}", both(b, t)) for b in (1, 256) for t in (torch.bfloat16, torch.float32)]


def _projected() -> list[tuple[str, Launch]]:
    from resolvent.ops.projected_scan import triton as own
    from resolvent.runtime import chip

    def both(d: int, p: int) -> Launch:
        def launch() -> None:
            low = torch.bfloat16
            w = own.Tables(torch.empty(p, 2), torch.empty(2 * p, d, dtype=low), torch.empty(d, 2 * p, dtype=low))
            for x in (torch.empty(d, 64, 1024, dtype=low), torch.empty(d, 64, 1000, dtype=low)):
                own.input_gradient(w, own.forward(w, x), x)
                own.gradients(w, x, x)

        return launch

    room = chip.capacity(torch.empty(0)) >= 227  # for 128 states; else `attempt` leaves them to torch
    sizes = ((128, 64), (64, 32), (128, 128))[: 2 + room]
    return [(f"scan between products, {d} channels, {p} states", both(d, p)) for d, p in sizes]


def _ascent() -> list[tuple[str, Launch]]:
    """A step of PGD, and of FAB over as many values as its kernel takes."""
    from resolvent.ops.ascent import fab_triton, step_triton

    def stride(norm: str, n: int) -> Launch:
        def launch() -> None:
            at, x = torch.empty(8, 3, n), torch.empty(8, n)
            threat = SimpleNamespace(norm=norm)
            walk: Any = SimpleNamespace(at=at, x=x, low=x[:1], high=x[:1], odd=torch.empty(8) > 0, threat=threat)
            pace: Any = SimpleNamespace(alpha_max=0.1, eta=1.05)
            fab_triton._stride(walk, at[..., 0], at, pace)

        return launch

    def step() -> None:
        x, region = torch.empty(8, 1024, 3), SimpleNamespace(low=torch.zeros(1), high=torch.zeros(1))
        answers = x[:, 0, 0], x[:, :10, 0]
        step_triton._step(x, x, answers, region, torch.ones(8, 1, 1))  # type: ignore[arg-type]

    made = [(f"a step of FAB, {norm}, {n} values", stride(norm, n)) for norm in ("linf", "l2") for n in (784, 4096)]
    return [*made, ("a step of PGD", step)]


def _pointwise() -> None:
    from resolvent.ops.pointwise import biased_silu_triton, skip_norm_triton
    from resolvent.ops.pointwise.skip_norm import Ending
    from resolvent.runtime.chip_triton import increment_kernel

    increment_kernel[(1,)](torch.zeros(1))
    for d, dtype in ((128, torch.bfloat16), (128, torch.float32), (512, torch.bfloat16)):
        v, x = torch.empty(d), torch.empty(d, 4, 1024, dtype=dtype)
        for learn in (False, True):
            biased_silu_triton.backward(biased_silu_triton.forward(x, v), x, v, learn)
        for axis, y in ((0, x), (-1, x.permute(1, 2, 0).contiguous())):
            for w in (Ending(v, v, None, None, 1e-5), Ending(v, v, v, v, 1e-5)):
                out, unit, rstd = skip_norm_triton.forward(y, y, w, axis)
                still = y[..., :1].expand_as(y) if axis == 0 else y[:, :1].expand_as(y)
                for g in (out, still):
                    skip_norm_triton.backward(g, (unit, rstd, y), w, axis, True)
                    skip_norm_triton.backward(g, (unit, rstd, y), w, axis, False)


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
