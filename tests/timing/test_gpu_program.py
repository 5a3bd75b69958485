"""benchmarks/gpu.py without a GPU: the program from end to end on tiny shapes, and what it refuses."""

from __future__ import annotations

import gc
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from resolvent.scan import linear_scan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU = torch.device("cpu")
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def parts() -> Any:
    """The program's modules; their folder is on the path as long as these tests run."""
    sys.path.insert(0, str(BENCHMARKS))
    names = {"gpu": "gpu", "case": "gpu_case", "peers": "gpu_peers", "scans": "gpu_scans", "step": "gpu_step"}
    yield SimpleNamespace(**{part: importlib.import_module(name) for part, name in names.items()})
    sys.path.remove(str(BENCHMARKS))
    gc.unfreeze()  # what the program froze


@pytest.fixture
def run(parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call it with these words; its exit status and what it wrote."""
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(parts.peers, "_tried", {})

    def called(*words: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--tiny", "--out", str(out), *words])
        return parts.gpu.main(), json.loads(out.read_text(encoding="utf-8"))

    return called


def test_one_run_tells_everything(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    status, record = run("--only", "step, s4d", "time last", "selective", "--commit", "abc")
    assert status == 0
    assert {row["commit"] for row in record["rows"]} == {record["runs"][0]["commit"]} == {"abc"}
    assert set(record["runs"][0]["ceilings"]) == {"bytes_per_s", "flops_per_s", "exponentials_per_s"}
    assert record["runs"][0]["complete"]
    names = [row["timing"] for row in record["rows"]]
    assert names == ["step", "forward", "backward", "forward", "forward, states saved", "backward"]
    for row in record["rows"]:
        eager = row["others"]["eager"]
        assert eager["ratio"] == pytest.approx(eager["ms"] / row["ms"], rel=0.05)
    told = capsys.readouterr().out
    assert "25 ms met" in told or "25 ms missed" in told
    assert "peer accelerated-scan (CUDA): not there" in told


def test_a_run_cut_short_goes_on(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--only", "linear scan, complex", "channels last", "--skip-peers", "--commit", "abc")
    status, record = run(*words, "--limit", "0")
    assert (status, record["rows"], record["runs"][0]["complete"]) == (0, [], False)
    assert "stopped after 0 s" in capsys.readouterr().out
    _, first = run("--only", "linear scan, complex", "--skip-peers", "--commit", "abc")
    _, both = run(*words)
    assert both["rows"][: len(first["rows"])] == first["rows"]  # kept, not measured again
    assert [row["commit"] for row in both["rows"]] == ["abc"] * 4
    _, other = run("--only", "linear scan, complex", "--skip-peers", "--commit", "abd")
    assert [row["commit"] for row in other["rows"]] == ["abd"] * 2


def test_rows_of_another_commit_are_kept_when_asked(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--skip-peers", "--keep", "--only")
    run(*words, "linear scan, complex", "selective", "--commit", "abc")
    _, record = run(*words, "selective", "time last", "--commit", "abd")
    found = [(row["case"].split(",")[0], row["commit"], row["run"]) for row in record["rows"]]
    assert (
        found == [("linear scan", "abd", 1)] * 2 + [("linear scan", "abc", 0)] * 2 + [("selective scan", "abd", 1)] * 3
    )
    assert "rows of several commits: abd, abc" in capsys.readouterr().out


def test_a_rival_of_the_same_run_is_the_target(parts: Any) -> None:
    timing = parts.case.Timing("forward", "forward", (), target_ms=1.0, rival="peer")
    row: dict[str, Any] = {
        "ms": 2.0,
        "others": {"peer (a)": {"ms": 2.5}, "peer (b)": {"ms": 1.5}, "eager": {"ms": 1.0}},
    }
    parts.gpu._judge(row, timing)
    assert (row["target_ms"], row["target_of"], row["met"]) == (1.5, "peer (b)", False)
    del row["others"]["peer (b)"]
    parts.gpu._judge(row, timing)
    assert (row["target_ms"], row["target_of"], row["met"]) == (2.5, "peer (a)", True)
    row["others"] = {"peer (a)": {"why": "not there"}}
    parts.gpu._judge(row, timing)
    assert (row["target_ms"], row["target_of"], row["met"]) == (1.0, "", False)


def test_no_speed_for_wrong_numbers(run: Run, parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours wrong in float32 alone: refused, exit status 1, and measured again by the next run."""
    wrong = lambda a, b: linear_scan(a, b) * (1.0 if b.dtype == torch.float64 else 1.001)  # noqa: E731
    words = ("--only", "time last", "--commit", "abc", "--skip-peers")
    with monkeypatch.context() as patch:
        patch.setattr(parts.scans, "linear_scan", wrong)
        status, record = run(*words)
    assert status == 1
    assert all("values differ by 1.0e-03, allowed 1e-05" in row["refused"] for row in record["rows"])
    assert not any("ms" in row for row in record["rows"])
    status, record = run(*words)
    assert status == 0
    assert all("ms" in row for row in record["rows"])


def test_a_peer_that_differs_or_fails_is_a_line(parts: Any) -> None:
    def fails(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel\nand more")

    rivals = [
        parts.scans.Scan("delayed", lambda a, b: linear_scan(a, b).roll(1, 1)),
        parts.scans.Scan("half a gradient", lambda a, b: linear_scan(a.detach(), b) + 0 * a),
        parts.scans.Scan("fails", fails),
    ]
    case = parts.scans.linear((2, 9, 3), torch.float32, CPU)
    case.rivals = lambda: rivals
    settings = SimpleNamespace(skip_eager=False, profile=False)
    rows = parts.gpu._measure(case, parts.case.Ceilings(1e9, 1e9, 1e9), settings)
    others = rows[0]["others"]
    assert "values differ" in others["delayed"]["why"]
    assert "gradients differ" in others["half a gradient"]["why"]
    assert others["fails"]["why"] == "RuntimeError: no such kernel"
    assert not any("ms" in other for other in others.values())


@pytest.mark.parametrize("kind", ["s4", "dss", "s4 gelu", "s4 ads", "s5", "mamba", "mega"])
def test_eager_is_the_same_model(parts: Any, kind: str) -> None:
    """Written out without a line of the modules, and compared with them in float64: logits and all gradients."""
    case = parts.step.StepCase(kind, parts.step.Size(2, 32, 16, 1), CPU)
    errors = case.errors(case.contenders[1])
    bound = 2e-3 if kind.startswith("s4") else 1e-5  # Cauchy sums by FFT in float32, at a radius of 1 - 1e-6
    assert max(errors.values()) < bound


def test_floors_are_those_of_the_docs(parts: Any) -> None:
    """ms at the ceilings of an H200: bytes, products and exponentials as docs/gpu.md and docs/gpu_step.md count."""
    h200 = parts.case.Ceilings(4.27e12, 780e12, 3.8e12)
    floor = lambda timing: h200.floor(timing.costs)  # noqa: E731
    real, pair = (parts.scans.linear((8, 16384, 1536), t, CPU) for t in (torch.float32, torch.complex64))
    assert [floor(t) for t in (*real.timings, *pair.timings)] == pytest.approx([0.57, 0.94, 1.13, 1.89], abs=0.01)
    scan = parts.scans.selective((256, 256, 1024), 16, torch.bfloat16, CPU)
    assert [floor(t) for t in scan.timings] == pytest.approx([0.32, 0.32, 0.60], abs=0.01)
    steps = {kind: h200.floor(parts.step.costs(kind, parts.step.Size())) for kind in ("s4d", "s5", "mamba", "mega")}
    assert steps == pytest.approx({"s4d": 12.6, "s5": 8.3, "mamba": 86.6, "mega": 161}, rel=0.02)


def test_absent_peers_say_why(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise ImportError("No module named 'nobody'")

    monkeypatch.setattr(parts.peers, "_tried", {})
    peer = parts.peers.Peer("nobody", "nobody", "MIT", load)
    assert peer.found() == "ImportError: No module named 'nobody'"
    assert parts.peers.report() == {"nobody": {"licence": "MIT", "absent": "ImportError: No module named 'nobody'"}}
