"""linear_scan under torch.compile, torch.export and checkpointing: one graph, the same numbers."""

from __future__ import annotations

import pytest
import torch
from linear_cases import multiplier
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from helpers import assert_close
from resolvent.ops.linear_scan.operation import _op
from resolvent.ops.linear_scan.reference import reference_scan
from resolvent.scan import linear_scan


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def loss(a: Tensor, b: Tensor, h0: Tensor | None = None, reverse: bool = False) -> Tensor:
    h = linear_scan(a.sin(), b * 2, h0, reverse)
    return h.abs().square().sum() + h[..., -1, :].abs().sum()


CASES = {
    "varying": (torch.float64, (2, 33, 3)),
    "constant": (torch.float64, (3,)),
    "constant rows": (torch.complex128, (2, 1, 3)),
    "complex": (torch.complex128, (2, 33, 3)),
    "real times complex": (None, (33, 3)),
}


def case(name: str) -> tuple[Tensor, Tensor, Tensor]:
    dtype, shape = CASES[name]
    of_b = dtype or torch.complex128
    a = multiplier(*shape, dtype=dtype or torch.float64)
    b, h0 = torch.randn(2, 33, 3, dtype=of_b), torch.randn(2, 3, dtype=of_b)
    return a.requires_grad_(), b.requires_grad_(), h0.requires_grad_()


def compare(backend: str, name: str) -> None:
    tensors = case(name)
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    for reverse in (False, True):
        want, got = loss(*tensors, reverse), compiled(*tensors, reverse)
        assert_close(got, want)
        assert_close(torch.autograd.grad(got, tensors), torch.autograd.grad(want, tensors))
    with torch.no_grad():
        assert_close(compiled(*tensors), loss(*tensors))


@pytest.mark.parametrize("name", CASES)
def test_one_graph(name: str) -> None:
    compare("aot_eager", name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators")
def test_one_graph_by_inductor(name: str) -> None:
    compare("inductor", name)


def test_half_and_any_length_without_recompiling_wrongly() -> None:
    compiled = torch.compile(linear_scan, fullgraph=True, backend="aot_eager", dynamic=True)
    for l in (2, 7, 64, 65):
        a, b = torch.rand(l, 3, dtype=torch.bfloat16), torch.randn(2, l, 3, dtype=torch.bfloat16)
        got = compiled(a, b)
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, linear_scan(a, b))


def test_compiled_vmap() -> None:
    a, b, h0 = (x.detach() for x in case("varying"))
    mapped = torch.vmap(linear_scan, in_dims=(None, 0, 0))
    compiled = torch.compile(lambda *x: mapped(*x), fullgraph=True, backend="aot_eager")
    assert_close(
        compiled(a[:1, :1], b.expand(4, 2, 33, 3), h0.expand(4, 2, 3)),
        linear_scan(a[:1, :1], b, h0).expand(4, 2, 33, 3),
    )


def test_the_operator_keeps_torchs_rules() -> None:
    """Schema, aliasing, fake tensors, autograd registration and ahead-of-time tracing, as torch itself checks them."""
    for name in ("varying", "constant rows"):
        a, b, h0 = case(name)
        torch.library.opcheck(_op, (a, b, h0, False))
        torch.library.opcheck(_op, (a, b, None, True))


def test_the_operator_has_second_derivatives() -> None:
    a, b, h0 = (x.detach()[..., :2].clone().requires_grad_() for x in case("complex"))
    a, b = (x.detach()[:, :4].clone().requires_grad_() for x in (a, b))
    assert torch.autograd.gradgradcheck(lambda *x: _op(*x, False), (a, b, h0), fast_mode=True)


def test_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return linear_scan(a, b)

    a, b, _ = (x.detach() for x in case("varying"))
    program = torch.export.export(Model(), (a, b))
    assert any("linear_scan" in str(node.target) for node in program.graph.nodes)
    assert_close(program.module()(a, b), linear_scan(a, b))


def test_fake_tensors_outside_of_a_compiler() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        h = linear_scan(torch.rand(3), torch.rand(2, 5, 3))
    assert h.shape == (2, 5, 3)


def test_checkpointed() -> None:
    a, b, h0 = case("varying")
    got = torch.autograd.grad(checkpoint(loss, a, b, h0, use_reentrant=False), (a, b, h0))
    assert_close(got, torch.autograd.grad(loss(a, b, h0), (a, b, h0)))


def test_meta_shapes() -> None:
    h = linear_scan(torch.empty(3, device="meta"), torch.empty(2, 5, 3, device="meta"))
    assert h.shape == (2, 5, 3)
    assert h.device.type == "meta"


def test_reference_is_traced_by_autograd_alone() -> None:
    a, b, h0 = case("varying")
    assert torch.autograd.gradcheck(
        reference_scan, tuple(x[:, :3] if x.dim() == 3 else x for x in (a, b, h0)), fast_mode=True
    )


def test_export_leaves_the_batch_open_beside_a_constant_multiplier() -> None:
    """Even where the batch might be as large as n."""

    class Scan(torch.nn.Module):
        def forward(self, b: Tensor) -> Tensor:
            return linear_scan(torch.linspace(0.1, 0.9, 5), b)

    sizes = {"b": {0: torch.export.Dim("batch", max=64)}}
    program = torch.export.export(Scan(), (torch.randn(3, 7, 5),), dynamic_shapes=sizes).module()
    for batch in (2, 5):
        b = torch.randn(batch, 7, 5)
        assert_close(program(b), Scan()(b))
