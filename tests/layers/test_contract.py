"""Every layer of the library keeps the contract: the conformance suite as tests, one per layer, case and property."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn.utils import prune

from helpers import assert_close
from resolvent import layers
from resolvent.conformance.cases import CASES, Case, plan
from resolvent.conformance.properties import Property
from resolvent.conformance.runner import Settings, measure
from resolvent.runtime.transforms import as_traced

# compiling takes most of the time and each layer's own tests do it too: it waits for the slow run
PLAN = [pair for pair in plan(CASES, full=False) if not (pair[1].costly or pair[1].single)]
FULL_PLAN = [pair for pair in plan(CASES, full=True) if pair[1].costly or pair[1].single]


def named(case: Case, prop: Property) -> str:
    return f"{case.layer}-{case.label}-{prop.name}".replace(", ", ",").replace(" ", "_")


@pytest.mark.parametrize(("case", "prop"), PLAN, ids=[named(*pair) for pair in PLAN])
def test_contract(case: Case, prop: Property) -> None:
    result = measure(case.layer, case.label, case.subject(Settings()), prop)
    if result.status == "n/a":
        pytest.skip(result.note)
    assert result.status == "pass", f"error {result.error}, allowed {result.tolerance}; {result.note}"


@pytest.mark.slow
@pytest.mark.parametrize(("case", "prop"), FULL_PLAN, ids=[named(*pair) for pair in FULL_PLAN])
def test_contract_in_full(case: Case, prop: Property) -> None:
    """Another seed, the compiler's own backend and 100,000 steps."""
    result = measure(case.layer, case.label, case.subject(Settings(seed=1, full=True)), prop)
    assert result.status != "fail", f"error {result.error}, allowed {result.tolerance}; {result.note}"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.layer}-{case.label}")
def test_contract_in_other_dtypes(case: Case, dtype: torch.dtype) -> None:
    """What `--dtype` runs: the properties themselves in float32, and on half inputs."""
    cheap = [prop for _, prop in plan([case], full=False) if not prop.costly]
    results = [measure(case.layer, case.label, case.subject(Settings(dtype=dtype)), prop) for prop in cheap]
    assert not [r for r in results if r.status == "fail"]


@pytest.mark.parametrize("case", {case.layer: case for case in CASES}.values(), ids=lambda case: case.layer)
def test_is_built_where_there_are_no_values(case: Case) -> None:
    """`with torch.device("meta")`: parameters of the same shapes, and a pass over no values."""
    how = Settings()
    with torch.device("meta"):
        layer = case.subject(how).make()
    layer = layer.to("meta")  # what `torch.empty` gives stays behind: conftest fills it with NaN
    x = torch.empty(2, 9, case.settings["d_model"], device="meta")
    assert layer(x)[0].shape == x.shape


@pytest.mark.parametrize("kind", [layers.S6, layers.ScalarS6, layers.RGLRU])
def test_weights_pruned_in_the_other_direction_are_seen(kind: type[layers.S6]) -> None:
    """Pruning makes its weight anew in a hook of the module: the other direction has to be called as one."""
    torch.manual_seed(0)
    layer, x = kind(4, bidirectional=True), torch.randn(2, 9, 4)
    assert layer.other is not None
    name = next(n for n, p in layer.other.named_parameters() if p.dim() > 1)
    before = layer(x)[0].detach()
    prune.identity(layer.other, name)
    assert torch.equal(layer(x)[0], before)
    with torch.no_grad():
        getattr(layer.other, f"{name}_orig").mul_(1.5)
    found = layer(x)[0]
    prune.remove(layer.other, name)
    assert torch.equal(found, layer(x)[0])
    assert not torch.allclose(found, before)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("kind", [layers.S4, layers.S4D, layers.DSS, layers.S5, layers.LRU, layers.L2RU])
def test_a_state_may_come_with_its_conjugation_noted(kind: type[layers.S5], traced: bool) -> None:
    """What `conj()` gives is a view with a mark, of which torch reads no real parts."""
    torch.manual_seed(0)
    layer, x = kind(3, 4), torch.randn(2, 9, 3)
    with torch.no_grad(), as_traced() if traced else nullcontext():
        h = layer(x)[1]
        noted = h.conj().resolve_conj().conj()
        assert noted.is_conj()
        assert_close([layer(x, noted), layer.step(x[:, 0], noted)], [layer(x, h), layer.step(x[:, 0], h)])
