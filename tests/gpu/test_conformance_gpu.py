"""Every case of the conformance suite on a GPU, in the dtypes that its kernels are made for."""

from __future__ import annotations

import pytest
import torch

from resolvent.conformance.cases import CASES, Case
from resolvent.conformance.properties import PROPERTIES
from resolvent.conformance.runner import Settings, measure

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=[f"{case.layer}, {case.label}" for case in CASES])
def test_the_contract_holds_on_a_gpu(case: Case, dtype: torch.dtype) -> None:
    subject = case.subject(Settings(dtype, device="cuda"))
    assert subject.build().anchor.is_cuda  # type: ignore[union-attr]
    found = [measure(case.layer, case.label, subject, p) for p in PROPERTIES if not p.costly]
    assert [(r.property, r.error, r.note) for r in found if r.status == "fail"] == []
