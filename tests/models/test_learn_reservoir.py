"""`learn_reservoir` refuses wrong data before it replaces any weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import resolvent as rv

x, y = torch.randn(12, 9, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"y": y + 1}, "from 0 to 2"),
        ({"y": y - 1}, "from 0 to 2"),
        ({"y": y.float()}, "whole number"),
        ({"y": y[:5]}, "12 samples"),
        ({"x": x[:, :, 0]}, r"\(n, l, c\)"),
        ({"x": x[:, :0]}, "at least 1"),
        ({"x": x[:0], "y": y[:0]}, "at least 1"),
        ({"x": x / 0}, "NaN or infinity"),
        ({"x": x.double() * 1e300}, "NaN or infinity"),
        ({"x": x[:, :, :1]}, "1 channels"),
        ({"lengths": torch.full((12,), 10)}, "lengths|length"),
        ({"lengths": torch.zeros(12, dtype=torch.long)}, "length"),
    ],
)
def test_wrong_data_are_refused_and_change_nothing(change: dict[str, Any], word: str) -> None:
    model = rv.build_model(rv.models.reservoir_config(2, 3, systems=5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=word):
        rv.models.learn_reservoir(model, **({"x": x, "y": y} | change))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_another_model_is_refused() -> None:
    for model in (torch.nn.Linear(2, 3), rv.build_model(rv.ModelConfig(d_model=8, layers=1))):
        with pytest.raises(ValueError, match="reservoir_config"):
            rv.models.learn_reservoir(model, x, y)  # type: ignore[arg-type]


def test_labels_of_any_whole_type_give_the_same_model() -> None:
    found = []
    for labels in (y, y.to(torch.int32), y.to(torch.uint8)):
        torch.manual_seed(0)
        model = rv.build_model(rv.models.reservoir_config(2, 3, systems=5))
        rv.models.learn_reservoir(model, x, labels, generator=torch.Generator().manual_seed(0))
        found.append(model(x))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_systems_drawn_do_not_depend_on_the_default_type() -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = rv.build_model(rv.models.reservoir_config(2, 3, systems=20)).double()
            rv.models.learn_reservoir(model, x, y, generator=torch.Generator().manual_seed(0))
        finally:
            torch.set_default_dtype(before)
        found.append(model.tower.entry.weight)
    assert torch.equal(found[0], found[1])
