"""Every layer of the library keeps the contract: the conformance suite as tests, one per layer, case and property."""

from __future__ import annotations

import pytest
import torch

from resolvent.conformance.cases import CASES, Case, plan
from resolvent.conformance.properties import Property
from resolvent.conformance.runner import Settings, measure

PLAN = list(plan(CASES, full=False))


def named(case: Case, prop: Property) -> str:
    return f"{case.layer}-{case.label}-{prop.name}".replace(", ", ",").replace(" ", "_")


@pytest.mark.parametrize(("case", "prop"), PLAN, ids=[named(*pair) for pair in PLAN])
def test_contract(case: Case, prop: Property) -> None:
    result = measure(case.layer, case.label, case.subject(Settings()), prop)
    if result.status == "n/a":
        pytest.skip(result.note)
    assert result.status == "pass", f"error {result.error}, allowed {result.tolerance}; {result.note}"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.layer}-{case.label}")
def test_contract_in_full(case: Case, dtype: torch.dtype) -> None:
    """Another seed, float32 throughout, the compiler's own backend and 100,000 steps."""
    how = Settings(dtype=dtype, seed=1, full=True)
    results = [measure(case.layer, case.label, case.subject(how), prop) for _, prop in plan([case], full=True)]
    assert not [r for r in results if r.status == "fail"]
