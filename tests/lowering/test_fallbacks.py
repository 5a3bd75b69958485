"""What the kernels of a GPU do not take is left to torch's operations and said once; nothing is said on a CPU.

There is no GPU here: tensors that claim to lie on one, where a decision asks for no more than shape and dtype.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from resolvent.lowering import forms, lowered
from resolvent.lowering.gpu import fused
from resolvent.models import build_model
from resolvent.models.config import MegaConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import S4DConfig, S5Config
from resolvent.models.presets import robustness
from resolvent.ops.linear_scan import constant
from resolvent.ops.projected_scan import operation as projected
from resolvent.runtime import fallback

toeplitz = import_module("resolvent.ops.filter.toeplitz")
biased_silu = import_module("resolvent.ops.pointwise.biased_silu")
conv_silu = import_module("resolvent.ops.pointwise.conv_silu")
skip_norm = import_module("resolvent.ops.pointwise.skip_norm")
gated_block = import_module("resolvent.ops.attention.gated_block")

HALF, WIDE = torch.bfloat16, torch.float64


class Claimed:
    """A tensor that says that it lies on a GPU."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.is_cuda, self.device = True, torch.device("cuda", 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


def claim(tensor: Tensor) -> Any:
    return Claimed(tensor)


def claimed(*shape: int, dtype: torch.dtype = HALF) -> Any:
    return claim(torch.zeros(*shape, dtype=dtype))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What has been logged so far, with nothing said before."""
    fallback._say_once.cache_clear()
    caplog.set_level(logging.INFO, logger="resolvent")
    return lambda: [f"{r.levelname} {r.getMessage()}" for r in caplog.records]


def scan(d: int = 8, b: int = 96, p: int = 32, out: int | None = None, tables: torch.dtype = HALF) -> Any:
    """The arguments of `projected._suits`."""
    matrices = torch.zeros(2 * p, d, dtype=tables), torch.zeros(out or d, 2 * p, dtype=tables)
    return [torch.zeros(p, 2), *matrices, claimed(d, b, 3)]


def weight() -> Any:
    """One that lies on a GPU."""
    return claimed(2, 2, dtype=torch.float32)


class Kernels(SimpleNamespace):
    """Toeplitz kernels that take nothing."""

    def serves(self, x: Any, size: int) -> bool:
        return False


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "length": (lambda: toeplitz._quick(claimed(2, 3, 100), 100), "WARNING Toeplitz products.*fewer than 128 steps"),
    "strides": (
        lambda: toeplitz._quick(claim(torch.zeros(3, 2, 128, dtype=HALF).transpose(0, 1)), 128),
        "WARNING Toeplitz products.*do not lie side by side",
    ),
    "products in float64": (lambda: toeplitz._quick(claimed(2, 3, 128, dtype=WIDE), 128), "INFO Toeplitz.*float64"),
    "channels": (lambda: projected._suits(*scan(d=129)), "WARNING the scan between.*more than 128 channels"),
    "other channels": (lambda: projected._suits(*scan(out=9)), "WARNING the scan between.*other ones out"),
    "states": (lambda: projected._suits(*scan(p=129)), "WARNING the scan between.*more than 128 complex"),
    "tables": (lambda: projected._suits(*scan(tables=WIDE)), "WARNING the scan between.*another dtype"),
    "few": (lambda: projected._suits(*scan(b=95)), "INFO the scan between.*fewer than 96 sequences"),
    "few states": (lambda: projected._suits(*scan(p=16)), "INFO the scan between.*17 states"),
    "scan in float32": (lambda: projected._triton(claimed(2, 3, 4, dtype=torch.float32)), "INFO the scan.*float32"),
    "fused channels": (lambda: fused._suits(weight(), 129, HALF), "WARNING fused blocks.*more than 128 channels"),
    "fused scaling": (
        lambda: fused._suits(weight(), 8, torch.float32, single=False),
        "WARNING fused blocks.*adaptive scaling in float32",
    ),
    "fused in float64": (lambda: fused._suits(weight(), 8, WIDE), "WARNING fused blocks.*float64"),
    "constant": (lambda: constant._triton(claimed(2, 3, 4, dtype=WIDE)), "INFO the scan with constant.*float64"),
    "attention": (lambda: gated_block._triton(claimed(2, 3, 4, dtype=WIDE)), "INFO gated_block.*float64"),
    "wide attention": (
        lambda: gated_block._triton(claimed(1025, 1, 1)),
        "WARNING gated_block.*more than 1024 channels",
    ),
    "silu": (lambda: biased_silu._triton(claimed(2, 3, 4, dtype=torch.float16)), "INFO biased_silu.*float16"),
    "norm": (lambda: skip_norm._triton(claimed(1025, 1, 1), 0), "WARNING skip_norm.*more than 1024 channels"),
    "taps": (
        lambda: conv_silu._triton(claim(torch.zeros(2, 3, 4, dtype=HALF).mT)),
        "WARNING conv_silu.*side by side",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_reason_is_said_once(case: str, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toeplitz, "triton_module", lambda place: Kernels())
    ask, words = CASES[case]
    for _ in range(3):
        assert not ask()
    (lines,) = said()
    assert re.search(words, lines), lines


def test_two_reasons_are_two_lines(said: Callable[[], list[str]]) -> None:
    for b, d in ((1, 8), (96, 200), (2, 8), (96, 300)):
        projected._suits(*scan(d=d, b=b))
    assert [line.split()[0] for line in said()] == ["INFO", "WARNING"]


@pytest.mark.parametrize(
    ("ask", "op"),
    [
        (lambda: gated_block._triton(claimed(2, 3, 4)), "gated_block"),
        (lambda: biased_silu._triton(claimed(2, 3, 4)), "biased_silu"),
        (lambda: fused._suits(weight(), 8, HALF) or None, "fused blocks"),
        (lambda: constant._triton(claimed(2, 3, 4)), "the scan with constant multipliers"),
        (lambda: toeplitz._quick(claimed(2, 3, 128), 128), "Toeplitz products"),
    ],
    ids=["attention", "silu", "fused", "constant", "toeplitz"],
)
def test_a_gpu_without_triton(
    ask: Callable[[], Any], op: str, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("triton", "triton.language"):
        monkeypatch.setitem(sys.modules, path, None)
    for path in [m for m in sys.modules if m.startswith("resolvent.") and m.endswith(("_triton", "_kernels"))]:
        parent, _, name = path.rpartition(".")
        monkeypatch.delattr(sys.modules[parent], name, raising=False)
        monkeypatch.delitem(sys.modules, path)
    for _ in range(2):
        assert ask() is None
    assert said() == [
        f"WARNING {op}: the GPU's own kernels do not take {fallback.ABSENT}; torch's operations run in their place"
    ]


def test_nothing_is_said_on_a_cpu(said: Callable[[], list[str]]) -> None:
    x = torch.zeros(2, 3, 130, dtype=HALF)
    assert toeplitz._quick(x, 128) is None
    lam, W_in, W_out, _ = scan(p=3)
    assert not projected._suits(lam, W_in, W_out, torch.zeros(8, 1, 3, dtype=HALF))
    assert skip_norm._triton(torch.zeros(1025, 1, 1), 0) is None
    assert gated_block._triton(x) is None
    assert fused._suits(torch.nn.Linear(1, 1).weight, 1000, WIDE)
    model = build_model(config())
    with torch.no_grad():
        model(torch.rand(2, 130, 3))
        model.double()(torch.rand(1, 3000, 3, dtype=WIDE))
    assert not said()


def config(layer: Any = None) -> ModelConfig:
    block = ResidualConfig(layer or S4DConfig(4), "linear", "none", final_activation="none")
    return replace(robustness("s4"), d_model=4, layers=1, block=block)


def asked(model: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`serving` for a tensor that lies on a GPU, as far as it can be told here."""
    monkeypatch.setattr(lowered, "is_plain", lambda _: True)
    return lowered.serving(model, x, None)


@pytest.mark.parametrize(
    ("kernels", "dtype", "words"),
    [
        (None, torch.float32, "WARNING Toeplitz products: the GPU's own kernels do not take anything without Triton"),
        (Kernels(takes=lambda *given: True), WIDE, "INFO the lowered form: the GPU's own kernels do not take"),
    ],
    ids=["no kernels", "float64"],
)
def test_a_model_that_runs_as_modules_says_why(
    kernels: Any, dtype: torch.dtype, words: str, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toeplitz, "triton_module", lambda place: kernels)
    model = build_model(config())
    for _ in range(2):
        assert asked(model, claimed(2, 130, 3, dtype=dtype), monkeypatch) is None
    (lines,) = said()
    assert lines.startswith(words)


def test_recurrences_have_another_form(said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toeplitz, "triton_module", lambda place: None)
    assert asked(build_model(config(S5Config(4))), claimed(2, 130, 3, dtype=torch.float32), monkeypatch) is None
    assert not said()


def test_any_length_is_served(said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels(takes=lambda like, size, dtype: size == 128)
    monkeypatch.setattr(toeplitz, "triton_module", lambda place: kernels)
    model = build_model(config())
    for l in (1, 128, 130, 1024, 20_000):
        assert asked(model, claimed(2, l, 3, dtype=torch.float32), monkeypatch) is not None
    assert not said()


@pytest.mark.parametrize(
    ("dtype", "l", "T"),
    [
        (HALF, 2048, 2048),
        (HALF, 130, 130),
        (HALF, 4096, 512),
        (HALF, 2305, 512),
        (torch.float32, 1024, 1024),
        (torch.float32, 130, 130),
        (torch.float32, 1, 128),
        (torch.float32, 4096, 256),
        (WIDE, 5000, 5000),
    ],
)
def test_steps_of_a_block(dtype: torch.dtype, l: int, T: int) -> None:
    """All, or those that cost least, steps beyond the end among them; in float32 a number that the kernels take."""
    assert lowered._steps(l, dtype, dense=False) == T


def test_dense_systems_take_longer_blocks() -> None:
    assert [lowered._steps(16_384, dtype, dense=True) for dtype in (HALF, torch.float32)] == [1024, 512]


def test_long_attention_says_so(said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    block = MegaConfig(z=4, hidden=8, ffn=8, d_state=2, max_length=64, bidirectional=True)
    model = build_model(replace(robustness("mega"), d_model=4, layers=1, block=block))
    monkeypatch.setattr(forms, "LONGEST", {forms.mega: 32})
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: HALF)
    assert asked(model, claimed(2, 32, 3, dtype=torch.float32), monkeypatch) is not None
    for _ in range(2):
        assert asked(model, claimed(2, 33, 3, dtype=torch.float32), monkeypatch) is None
    assert [line.split(";")[0] for line in said()] == [
        "INFO the form of Mega: the GPU's own kernels do not take more than 32 steps"
    ]
