"""Every public name says in its docstring what it is and shows an example, and the example runs."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import resolvent
from test_reference import PARTS

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
ALIASES = {"layers.State", "training.Objective"}  # of types; what they stand for is said where they are assigned
NEEDS = {"predictor.SequenceClassifier": "sklearn"}


def names_of(part: str) -> dict[str, Any]:
    """The public names of a part but modules inside of it, whose own pages show them."""
    module = importlib.import_module(f"resolvent.{part}")
    named = {f"{part}.{name}": getattr(module, name) for name in module.__all__}
    return {name: thing for name, thing in named.items() if not inspect.ismodule(thing) and name not in ALIASES}


@pytest.mark.parametrize("part", PARTS)
def test_every_public_name_has_a_sentence_and_an_example(part: str) -> None:
    texts = {name: thing.__doc__ or "" for name, thing in names_of(part).items()}
    bare = [name for name, text in texts.items() if not text.strip() or text.startswith(name.split(".")[1] + "(")]
    assert bare == []
    assert [name for name, text in texts.items() if ">>>" not in text] == []


@pytest.mark.parametrize("part", PARTS)
def test_the_examples_run(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    for name, thing in names_of(part).items():
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            continue
        torch.manual_seed(0)
        held = {"torch": torch, "rv": resolvent}  # as the reference says
        runner.run(doctest.DocTestParser().get_doctest(thing.__doc__, held, name, None, 0))
    failed, tried = runner.summarize(verbose=False)
    assert tried > 0
    assert failed == 0
