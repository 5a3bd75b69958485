"""LayerNorm of one row of WIDTH samples in lanes, (d, WIDTH), and its gradient, as vector instructions.

unit = (z - mean) / deviation,    out = gamma unit + beta,    1 / deviation = (var + eps)^(-1/2)
∂z   = (γ∂ - mean(γ∂) - unit mean(γ∂ unit)) / deviation

The sums run over channels, lane by lane; four channels at a time if d allows, because one chain of additions would
be latency-bound. gamma and beta are rows too, each number WIDTH times. Imported by compiled backends only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from resolvent.runtime.cfunc_numba import leaf
from resolvent.runtime.team import pointer
from resolvent.runtime.vectors_numba import LOOSE, WIDTH, order, plus_product, repeat, spread


class _Row:
    """Loops over a row of d channels, `group` of them at a time."""

    def __init__(self, builder: Any, real: Any, d: Any, group: int) -> None:
        self.builder, self.real, self.d, self.group = builder, real, d, group
        self.vector = ir.VectorType(real, WIDTH * group)

    def array(self, address: Any) -> Any:
        return self.builder.inttoptr(address, self.vector.as_pointer())

    def load(self, array: Any, i: Any) -> Any:
        return self.builder.load(self.builder.gep(array, [i]), align=4)

    def store(self, value: Any, array: Any, i: Any) -> None:
        self.builder.store(value, self.builder.gep(array, [i]), align=4)

    def loop(self, sums: int, body: Callable[..., list[Any]]) -> list[Any]:
        """sums = body(i, *sums) for all groups, from zero: each then summed over the group's channels, (WIDTH,)."""
        zero, groups = ir.Constant(self.vector, [0.0] * (WIDTH * self.group)), self.d.type(self.group)
        found = repeat(self.builder, self.builder.sdiv(self.d, groups), [zero] * sums, body)
        return [self._folded(f) for f in found]

    def mean(self, total: Any) -> Any:
        return self.builder.fdiv(total, self.lanes(self.builder.sitofp(self.d, self.real)))

    def lanes(self, number: Any) -> Any:
        """One number broadcast to WIDTH lanes."""
        return spread(self.builder, number, [0] * WIDTH)

    def spread(self, lanes: Any) -> Any:
        """(WIDTH,) repeated for every channel of a group."""
        return self.builder.shuffle_vector(lanes, lanes, order(list(range(WIDTH)) * self.group))

    def _folded(self, x: Any) -> Any:
        parts = [
            self.builder.shuffle_vector(x, x, order([g * WIDTH + k for k in range(WIDTH)])) for g in range(self.group)
        ]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self.builder.fadd(a, b, flags=LOOSE) for a, b in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]


def _sqrt(module: Any, lanes: Any) -> Any:
    kind = "f64" if isinstance(lanes.element, ir.DoubleType) else "f32"
    return get_or_insert_function(module, ir.FunctionType(lanes, [lanes]), f"llvm.sqrt.v{WIDTH}{kind}")


def _write_norm(group: int) -> Any:
    """normed(eps, (z, gamma, beta, out, rstd), d): z becomes unit."""

    def write(builder: Any, row: _Row, eps: Any, addresses: list[Any]) -> None:
        z, gamma, beta, out = (row.array(a) for a in addresses[:4])
        (total,) = row.loop(1, lambda i, s: [builder.fadd(s, row.load(z, i), flags=LOOSE)])
        mean = row.spread(row.mean(total))

        def squares(i: Any, s: Any) -> list[Any]:
            away = builder.fsub(row.load(z, i), mean)
            return [plus_product(builder, s, away, away)]

        variance = row.mean(row.loop(1, squares)[0])
        lanes = ir.VectorType(eps.type, WIDTH)
        deviation = builder.call(_sqrt(builder.module, lanes), [builder.fadd(variance, row.lanes(eps))])
        rstd = builder.fdiv(row.lanes(ir.Constant(eps.type, 1.0)), deviation)
        builder.store(rstd, builder.inttoptr(addresses[4], lanes.as_pointer()), align=4)
        scale = row.spread(rstd)

        def written(i: Any) -> list[Any]:
            unit = builder.fmul(builder.fsub(row.load(z, i), mean), scale)
            row.store(unit, z, i)
            row.store(plus_product(builder, row.load(beta, i), unit, row.load(gamma, i)), out, i)
            return []

        row.loop(0, written)

    return _intrinsic(group, write)


def _write_slope(group: int) -> Any:
    """sloped(like, (g, unit, gamma, rstd, gz), d): gz may be g itself."""

    def write(builder: Any, row: _Row, like: Any, addresses: list[Any]) -> None:
        g, unit, gamma, gz = (row.array(addresses[k]) for k in (0, 1, 2, 4))

        def sums(i: Any, plain: Any, along: Any) -> list[Any]:
            scaled = builder.fmul(row.load(g, i), row.load(gamma, i))
            return [builder.fadd(plain, scaled, flags=LOOSE), plus_product(builder, along, scaled, row.load(unit, i))]

        mean, along = (row.spread(row.mean(s)) for s in row.loop(2, sums))
        lanes = ir.VectorType(like.type, WIDTH)
        scale = row.spread(builder.load(builder.inttoptr(addresses[3], lanes.as_pointer()), align=4))

        def written(i: Any) -> list[Any]:
            centred = builder.fsub(builder.fmul(row.load(g, i), row.load(gamma, i)), mean)
            rest = builder.fsub(centred, builder.fmul(row.load(unit, i), along, flags=LOOSE), flags=LOOSE)
            row.store(builder.fmul(rest, scale), gz, i)
            return []

        row.loop(0, written)

    return _intrinsic(group, write)


def _intrinsic(group: int, write: Callable[[Any, _Row, Any, list[Any]], None]) -> Any:
    """Code for numba of (number, five addresses, d)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, places, d = args
        addresses = [builder.extract_value(places, k) for k in range(5)]
        write(builder, _Row(builder, number.type, d, group), number, addresses)
        return context.get_dummy_value()

    def typed(context: Any, number: Any, places: Any, d: Any) -> Any:
        return types.void(number, types.UniTuple(types.int64, 5), types.int64), generate

    return intrinsic(typed)


_normed_4, _normed_1, _sloped_4, _sloped_1 = _write_norm(4), _write_norm(1), _write_slope(4), _write_slope(1)


def normalise_rows(dtype: Any) -> int:
    """`count` rows of out from z, which becomes unit, and rstd (count, WIDTH); `own` are gamma, beta and eps."""
    size = dtype.bitwidth // 8

    def body(z: int, own: int, out: int, rstd: int, row: int, count: int, d: int) -> None:
        beta = own + d * WIDTH * size
        eps = carray(pointer(beta + d * WIDTH * size, dtype), (1,))[0]
        for t in range(count):
            places = z + t * row * size, own, beta, out + t * row * size, rstd + t * WIDTH * size
            if d % 4 == 0:
                _normed_4(eps, places, d)
            else:
                _normed_1(eps, places, d)

    return leaf(body)


def differentiate_rows(dtype: Any) -> int:
    """`count` rows of g, the gradient of out, become that of z."""
    size = dtype.bitwidth // 8

    def body(g: int, own: int, unit: int, rstd: int, row: int, count: int, d: int) -> None:
        for t in range(count):
            at = g + t * row * size
            places = at, unit + t * row * size, own, rstd + t * WIDTH * size, at
            if d % 4 == 0:
                _sloped_4(dtype(0), places, d)
            else:
                _sloped_1(dtype(0), places, d)

    return leaf(body)
