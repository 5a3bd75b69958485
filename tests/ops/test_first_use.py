"""Which backend is chosen must not depend on the modes in which an operation is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST = {
    "compiled": "torch.compile(layer, fullgraph=True, backend='aot_eager')(x)[0].sum().backward()",
    "inference": "with torch.inference_mode():\n    layer(x.detach()), layer.step(x[:, 0].detach())",
    "autocast": "with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):\n    layer(x), layer.step(x[:, 0])",
    "vmap": "torch.func.vmap(lambda x: layer(x)[0])(x.detach()[None])",
}
SCRIPT = """
import logging, torch, resolvent as rv
logging.basicConfig(level=logging.WARNING)
torch.set_num_threads(1)
for layer in (rv.S6(8), rv.LRU(8), rv.RGLRU(8)):
    x = torch.randn(2, 33, 8, requires_grad=True)
    {first}
    layer(x)[0].sum().backward()
    layer.step(x[:, 0].detach())
"""


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST.keys())
def test_first_use(first: str) -> None:
    script = SCRIPT.format(first=first.replace("\n", "\n    "))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "skipping" not in done.stderr, done.stderr
