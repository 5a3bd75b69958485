"""torch.export with open batch and length: one program of every published model, as it answers at other sizes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from helpers import assert_close
from resolvent.models import ModelConfig, build_model
from resolvent.models import config as c
from resolvent.models.layer_config import GRUConfig, ScalarS6Config, ShortConvConfig
from resolvent.models.presets.named import named_presets

SIZES = ((2, 100), (5, 17), (1, 131), (2, 64), (3, 1))  # (batch, length), of which the first is traced
SMALL = {"d_state": 4, "z": 4, "hidden": 8, "ffn": 8, "heads": 2, "chunk": 32, "blocks": 2, "d_model": 8, "layers": 1}
QUICK = ("robustness-dss-mnist", "lra-s5-listops", "l2ru-classifier", "both-sides", "chunks")
OTHERS: dict[str, Any] = {  # scaffolds and layers that no preset has
    "attention": c.AttentionConfig(window=16), "both-sides": c.AttentionConfig(window=16, bidirectional=True),
    "chunks": c.MegaConfig(4, 8, 4, chunk=16, bidirectional=True), "h3": c.H3Config(),
    "griffin": c.GriffinConfig(attention_heads=2, window=16),
    "hawk": c.HawkConfig(), "mamba": c.MambaConfig(), "scalar-s6": c.ResidualConfig(ScalarS6Config()),
    "shortconv": c.ResidualConfig(ShortConvConfig()),
}  # fmt: skip
CASES = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in (*named_presets(), *OTHERS)]


def shrink(settings: Any) -> Any:
    """The same settings with every width and count made small."""
    changed: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if hasattr(value, "__dataclass_fields__"):
            changed[field.name] = shrink(value)
        elif field.name in SMALL and type(value) is int:
            changed[field.name] = min(value, SMALL[field.name])
    return replace(settings, **changed)


def drawn(config: ModelConfig, batch: int, length: int) -> Tensor:
    towers = (2,) if isinstance(config.head, c.RetrievalConfig) else ()
    if isinstance(config.input, c.TokensConfig):
        return torch.randint(config.input.vocab, (batch, *towers, length))
    assert isinstance(config.input, c.ChannelsConfig)
    return torch.rand(batch, *towers, length, config.input.channels)


def open_sizes(x: Tensor, lengths: Tensor | None, time: int) -> tuple[Any, ...]:
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=1, max=4096)
    sizes: tuple[Any, ...] = ({0: batch, time: length},)
    return sizes if lengths is None else (*sizes, {0: batch})


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", CASES)
def test_one_program_serves_every_batch_and_length(name: str, padded: bool) -> None:
    torch.manual_seed(0)
    config = shrink(ModelConfig(block=OTHERS[name]) if name in OTHERS else named_presets()[name]())
    model: nn.Module = build_model(config).eval()
    towers = (2,) if isinstance(config.head, c.RetrievalConfig) else ()
    program = None
    for batch, length in SIZES:
        x = drawn(config, batch, length)
        lengths = torch.randint(1, length + 1, (batch, *towers)) if padded else None
        given = (x,) if lengths is None else (x, lengths)
        if program is None:
            exported = export(model, given, dynamic_shapes=open_sizes(x, lengths, 1 + len(towers)))
            program = exported.module()
        with torch.no_grad():
            assert_close(program(*given), model(*given))


def test_what_cannot_be_exported_says_which_module_and_why() -> None:
    model = build_model(ModelConfig(block=c.ResidualConfig(GRUConfig()), d_model=8, layers=1)).eval()
    x = torch.rand(2, 100, 1)
    with pytest.raises(ValueError, match=r"^GRU: torch.export writes torch.nn.GRU out step by step"):
        export(model, (x,), dynamic_shapes=open_sizes(x, None, 1))
    with pytest.raises(
        ValueError, match=r"^Model: an export cannot cut packed documents \(start\) apart; export it with"
    ):
        export(model, (x, None, torch.ones(2, 100, dtype=torch.bool)))
