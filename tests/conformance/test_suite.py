"""The suite passes honest layers and catches each dishonest one by the property that guards against it."""

from __future__ import annotations

import pytest
import sample_layers as sample
import torch

from resolvent.conformance import Report, Settings, Traits, check
from resolvent.conformance.properties import PROPERTIES
from resolvent.conformance.result import Result
from resolvent.conformance.runner import measure
from resolvent.conformance.subject import Subject

BY_NAME = {p.name: p for p in PROPERTIES}
BOTH = Traits(streams=False, unidirectional=lambda: sample.Leaky(3))


def found(layer: type, prop: str, *, traits: Traits | None = None, full: bool = False, **options: object) -> Result:
    """One property of one sample layer, on a short sequence to keep the loops quick."""
    length = 4 if prop == "torch.compile" else 29  # these samples are Python loops, which a compiler unrolls
    subject = Subject(lambda: layer(3, **options), 3, full=full, length=length, traits=traits or Traits())
    return measure(layer.__name__, "", subject, BY_NAME[prop])


@pytest.mark.parametrize("layer", [sample.Leaky, sample.Stranger])
@pytest.mark.parametrize("prop", [p.name for p in PROPERTIES])
def test_an_honest_layer_passes(layer: type, prop: str) -> None:
    traits = Traits(stable=layer is sample.Leaky)
    result = found(layer, prop, traits=traits)
    assert result.status != "fail", f"{result.error} {result.note}"
    if layer is sample.Leaky and prop not in ("both directions", "long stream"):
        assert result.status == "pass", result.note


@pytest.mark.parametrize("prop", [p.name for p in PROPERTIES])
def test_an_honest_bidirectional_layer_passes(prop: str) -> None:
    result = found(sample.Leaky, prop, traits=BOTH, bidirectional=True)
    assert result.status != "fail", f"{result.error} {result.note}"
    assert (result.status == "pass") or prop in (
        "chunks", "steps", "dense truth", "state in, out", "causality", "gradients", "second gradients", "stability",
        "long stream",
    )  # fmt: skip


BROKEN = [
    ("chunks", sample.ForgetsState),
    ("chunks", sample.WrongFinalState),
    ("steps", sample.OtherStep),
    ("steps", sample.WrongFinalState),
    ("dense truth", sample.OtherSystem),
    ("state in, out", sample.ForgetsState),
    ("state in, out", sample.SpoilsState),
    ("causality", sample.SeesFuture),
    ("gradients", sample.LosesGradient),
    ("gradcheck", sample.WrongGradient),
    ("second gradients", sample.NoSecondGradient),
    ("lengths", sample.IgnoresLengths),
    ("lengths", sample.LeaksPadding),
    ("lengths, gradients", sample.IgnoresLengths),
    ("lengths, gradients", sample.LeaksPadding),
    ("float32", sample.LosesDigits),
    ("bfloat16", sample.LosesHalf),
    ("torch.compile", sample.BreaksGraph),
    ("vmap", sample.LeavesTorch),
    ("jvp", sample.WrongTangent),
    ("per-sample grads", sample.LeavesTorch),
    ("frozen", sample.KeepsTables),
    ("frozen", sample.NeverFreezes),
    ("determinism", sample.Rolls),
    ("save, load", sample.HidesNumbers),
    ("bad input", sample.AcceptsAnything),
]


@pytest.mark.parametrize(("prop", "layer"), BROKEN, ids=lambda v: getattr(v, "__name__", v))
def test_each_property_can_fail(prop: str, layer: type) -> None:
    assert found(layer, prop).status == "fail"


def test_stability_can_fail() -> None:
    assert found(sample.Explodes, "stability", traits=Traits(stable=True)).status == "fail"


@pytest.mark.parametrize("layer", [sample.HalfBlind, sample.WrongWay, sample.StreamsBothWays])
def test_both_directions_can_fail(layer: type) -> None:
    assert found(layer, "both directions", traits=BOTH, bidirectional=True).status == "fail"


def test_every_property_has_a_layer_that_breaks_it() -> None:
    guarded = {prop for prop, _ in BROKEN} | {"stability", "both directions", "long stream"}
    assert guarded == set(BY_NAME)


@pytest.mark.slow
def test_long_stream_can_pass_and_fail() -> None:
    assert found(sample.Leaky, "long stream", full=True).status == "pass"
    assert found(sample.Drifts, "long stream", full=True).status == "fail"


def test_a_crash_is_a_failure_with_its_message() -> None:
    result = found(sample.Crashes, "chunks")
    assert result.status == "fail"
    assert "the cat sat on the keyboard" in result.note


def test_check_from_python() -> None:
    report = check(lambda: sample.Leaky(2), length=9, settings=Settings(seed=3))
    assert isinstance(report, Report)
    assert report.ok, report.failures
    assert report.layers == ["Leaky"]
    assert report.settings["seed"] == 3


def test_a_layer_without_width_needs_one() -> None:
    with pytest.raises(ValueError, match="d_model"):
        check(lambda: torch.nn.ReLU())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prop", ["chunks", "steps", "dense truth", "gradients", "lengths", "vmap", "bad input"])
def test_other_dtypes(dtype: torch.dtype, prop: str) -> None:
    subject = Subject(lambda: sample.Leaky(3), 3, dtype=dtype, length=29)
    result = measure("Leaky", "", subject, BY_NAME[prop])
    assert result.status == "pass", f"{result.error} {result.note}"
