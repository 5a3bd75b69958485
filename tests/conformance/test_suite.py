"""The suite passes honest layers and catches each dishonest one by the property that guards against it."""

from __future__ import annotations

import io

import faulty_layers as faulty
import pytest
import sample_layers as sample
import torch
from rich.console import Console

from resolvent.conformance import Report, Settings, Traits, check
from resolvent.conformance.properties import PROPERTIES
from resolvent.conformance.result import Result
from resolvent.conformance.runner import measure
from resolvent.conformance.subject import Subject
from resolvent.conformance.table import show

BY_NAME = {p.name: p for p in PROPERTIES}
OPEN = ("one graph, lengths", "export, dynamic", "meta device")  # asked of layers whose traits say so
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
    if layer is sample.Leaky and prop not in ("both directions", "long stream", *OPEN):
        assert result.status == "pass", result.note


@pytest.mark.parametrize("prop", [p.name for p in PROPERTIES])
def test_an_honest_bidirectional_layer_passes(prop: str) -> None:
    result = found(sample.Leaky, prop, traits=BOTH, bidirectional=True)
    assert result.status != "fail", f"{result.error} {result.note}"
    assert (result.status == "pass") or prop in (
        "chunks", "steps", "dense truth", "state in, out", "causality", "gradients", "second gradients", "stability",
        "long stream", "uneven steps", *OPEN,
    )  # fmt: skip


BROKEN = [
    ("chunks", faulty.ForgetsState),
    ("chunks", faulty.WrongFinalState),
    ("steps", faulty.OtherStep),
    ("steps", faulty.WrongFinalState),
    ("dense truth", faulty.OtherSystem),
    ("state in, out", faulty.ForgetsState),
    ("state in, out", faulty.SpoilsState),
    ("causality", faulty.SeesFuture),
    ("uneven steps", faulty.ForgetsTime),
    ("uneven steps", faulty.OtherTime),
    ("gradients", faulty.LosesGradient),
    ("gradcheck", faulty.WrongGradient),
    ("second gradients", faulty.NoSecondGradient),
    ("lengths", faulty.IgnoresLengths),
    ("lengths", faulty.LeaksPadding),
    ("lengths, gradients", faulty.IgnoresLengths),
    ("lengths, gradients", faulty.LeaksPadding),
    ("float32", faulty.LosesDigits),
    ("bfloat16", faulty.LosesHalf),
    ("autocast, backward", faulty.CastsBackward),
    ("torch.compile", faulty.BreaksGraph),
    ("checkpointing", faulty.CountsCalls),
    ("vmap", faulty.LeavesTorch),
    ("jvp", faulty.WrongTangent),
    ("per-sample grads", faulty.LeavesTorch),
    ("frozen", faulty.KeepsTables),
    ("frozen", faulty.NeverFreezes),
    ("determinism", faulty.Rolls),
    ("save, load", faulty.HidesNumbers),
    ("bad input", faulty.AcceptsAnything),
]


@pytest.mark.parametrize(("prop", "layer"), BROKEN, ids=lambda v: getattr(v, "__name__", v))
def test_each_property_can_fail(prop: str, layer: type) -> None:
    assert found(layer, prop).status == "fail"


@pytest.mark.parametrize(
    ("prop", "layer"), [(OPEN[0], sample.Leaky), (OPEN[1], sample.Leaky), (OPEN[2], faulty.BreaksGraph)]
)
def test_what_is_traced_can_fail(prop: str, layer: type) -> None:
    """A loop over time does not leave the length open; without values there is no number to look at."""
    assert found(layer, prop, traits=Traits(open_lengths=True)).status == "fail"


def test_stability_can_fail() -> None:
    assert found(faulty.Explodes, "stability", traits=Traits(stable=True)).status == "fail"


@pytest.mark.parametrize("layer", [faulty.HalfBlind, faulty.WrongWay, faulty.StreamsBothWays])
def test_both_directions_can_fail(layer: type) -> None:
    assert found(layer, "both directions", traits=BOTH, bidirectional=True).status == "fail"


def test_every_property_has_a_layer_that_breaks_it() -> None:
    guarded = {prop for prop, _ in BROKEN} | {"stability", "both directions", "long stream", *OPEN}
    assert guarded == set(BY_NAME)


@pytest.mark.slow
def test_long_stream_can_pass_and_fail() -> None:
    assert found(sample.Leaky, "long stream", full=True).status == "pass"
    assert found(faulty.Drifts, "long stream", full=True).status == "fail"


def test_a_crash_is_a_failure_with_its_message() -> None:
    result = found(sample.Crashes, "chunks")
    assert result.status == "fail"
    assert "the cat sat on the keyboard" in result.note


def test_a_crash_on_an_empty_chunk_names_the_sizes() -> None:
    result = found(faulty.NeedsSteps, "chunks")
    assert result.status == "fail"
    assert result.note.startswith("IndexError: nothing at 0; in chunks of ")
    sizes = [int(s) for s in result.note.split("chunks of ")[1].removesuffix(" steps").split(", ")]
    assert 0 in sizes
    assert sum(sizes) == 29
    assert found(faulty.NeedsSteps, "state in, out").note.endswith("in an empty sequence, a chunk of 0 steps")


def test_a_wrong_chunking_names_the_sizes() -> None:
    assert found(faulty.ForgetsState, "chunks").note.startswith("in chunks of ")
    assert found(sample.Leaky, "chunks").note == ""


def test_bad_input_fails_in_words_not_in_numbers() -> None:
    result = found(faulty.AcceptsAnything, "bad input")
    assert result.error == float("inf")
    assert "was accepted" in result.note
    out = io.StringIO()
    show(Report((result,)), Console(file=out, width=200))
    assert "is more than" not in out.getvalue()
    assert "was accepted" in out.getvalue()


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
