"""benchmarks/gpu without a GPU: the program from end to end on tiny shapes, and what it refuses."""

from __future__ import annotations

import copy
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

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def parts() -> Any:
    """The program's modules; their package is on the path as long as these tests run."""
    sys.path.insert(0, str(ROOT))
    names = {"gpu": "__main__", "check": "step_check"} | {name: name for name in ("case", "peers", "scans", "step")}
    yield SimpleNamespace(**{part: importlib.import_module(f"benchmarks.gpu.{name}") for part, name in names.items()})
    sys.path.remove(str(ROOT))
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
    output = capsys.readouterr().out
    assert "18 ms met" in output or "18 ms missed" in output
    assert "peer accelerated-scan (CUDA): not there" in output


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
    forward, backward = (row["others"] for row in rows)
    assert "values differ" in forward["delayed"]["why"]
    assert "gradients differ" in backward["half a gradient"]["why"]
    assert forward["fails"]["why"] == "RuntimeError: no such kernel"
    timed = [name for others in (forward, backward) for name, other in others.items() if "ms" in other]
    assert timed == ["half a gradient"]  # its forward pass, which says so
    assert forward["half a gradient"]["wrong"] == "gradients"
    assert "x, its gradients differ)" in importlib.import_module("benchmarks.gpu.table").line(rows[0])


FULL = {f"{name}, full size" for name in ("logits", "x", "x, frozen")}
REPEATED = {"logits, repeated", "parameters, repeated"}  # no graphs on a CPU


@pytest.mark.parametrize("kind", ["s4d", "s5", "mamba", "mega"])
def test_a_step_is_compared_as_it_is_timed(parts: Any, kind: str) -> None:
    case = parts.step.StepCase(kind, parts.step.Size(3, 32, 16, 1), CPU)
    errors = case.errors(case.contenders[0])
    whole = set() if kind in parts.step.SLOW else {"parameters, full size"}
    assert set(errors) == {"logits", "x", "parameters", "x, frozen"} | FULL | whole | REPEATED
    assert max(errors.values()) < 1e-4


def refused(parts: Any, case: Any) -> str:
    settings = SimpleNamespace(skip_eager=True, profile=False)
    (row,) = parts.gpu._measure(case, parts.case.Ceilings(1e9, 1e9, 1e9), settings)
    assert "ms" not in row
    return str(row["refused"])


def test_no_speed_for_a_batch_that_is_wrong_at_its_full_size(parts: Any) -> None:
    """Right on the smaller batch, and inside `frozen()`; outside of it one row of the timed batch is not."""
    case = parts.step.StepCase("s4d", parts.step.Size(3, 32, 16, 1), CPU)

    def off(module: Any, given: Any, output: torch.Tensor) -> torch.Tensor:
        wrong = len(output) == 3 and output.dtype == torch.float32 and not module.tower.body.is_frozen
        return output * torch.tensor([[1.0], [1.0], [1.1]]) if wrong else output

    case._model().register_forward_hook(off)
    printed = refused(parts, case)
    assert "logits, full size differ" in printed
    assert "parameters, full size differ" in printed
    assert "x, frozen, full size" not in printed


def test_no_speed_for_an_attack_that_is_wrong_at_its_full_size(parts: Any) -> None:
    case = parts.step.StepCase("mega", parts.step.Size(3, 32, 16, 1), CPU)

    def off(module: Any, given: Any, output: torch.Tensor) -> torch.Tensor:
        if len(output) != 3 or not module.tower.body.is_frozen:
            return output
        return output + 0.1 * (output - output.detach())  # the right values, another slope

    case._model().register_forward_hook(off)
    assert refused(parts, case).startswith("x, frozen, full size differ by 1.0e-01")


def test_no_speed_for_a_recording_that_forgets(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model was when its step was recorded is what the step goes on to compute."""
    right, seen = parts.step.pgd_at, dict[int, Any]()

    def stale(*args: Any, **more: Any) -> Any:
        objective = right(*args, **more)

        def step(model: Any, batch: Any) -> Any:
            turn, copied = seen.get(id(model), (0, None))
            seen[id(model)] = turn + 1, copied if turn else copy.deepcopy(dict(model.named_parameters()))
            if turn < 2:
                return objective(model, batch)
            now = {name: p.detach().clone() for name, p in model.named_parameters()}
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.data = copied[name].data
            loss = objective(model, batch)
            found = torch.autograd.grad(loss.value, list(model.parameters()), allow_unused=True)
            for name, p in model.named_parameters():
                p.data = now[name]
            value = sum((p * g).sum() for p, g in zip(model.parameters(), found, strict=True) if g is not None)
            return SimpleNamespace(value=value, output=loss.output)

        return step

    monkeypatch.setattr(parts.step, "pgd_at", stale)
    case = parts.step.StepCase("s4d", parts.step.Size(3, 32, 16, 1), CPU)
    printed = refused(parts, case)
    assert "parameters, repeated differ" in printed
    assert "full size" not in printed


def test_a_recording_must_be_able_to_show_that_it_forgets(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.check, "MOVED", 1e-5)
    case = parts.step.StepCase("s5", parts.step.Size(3, 32, 16, 1), CPU)
    assert "a recording of older parameters would pass" in refused(parts, case)


def test_contenders_take_turns(parts: Any) -> None:
    """Those near ours in turns, each in all of them; one that is far once."""
    order: list[str] = []

    class Running:
        def __init__(self, name: str, first: float) -> None:
            self.name, self.first, self.medians = name, first, list[float]()

        def turn(self) -> None:
            order.append(self.name)
            self.medians.append(self.first + len(self.medians))

        def measured(self) -> Any:
            return parts.case.Measured(sorted(self.medians)[len(self.medians) // 2], tuple(self.medians), None)

    def running(contender: Any, timing: Any) -> Running:
        if contender.name == "fails":
            raise RuntimeError("no memory\nleft")
        return Running(contender.name, contender.first)

    times = {"ours": 1.0, "far": 50.0, "near": 2.0, "fails": 0.0}
    case: Any = SimpleNamespace(running=running)
    contenders = [SimpleNamespace(name=n, first=t) for n, t in times.items()]
    timing = parts.case.Timing("forward", "forward", ())
    seen = parts.gpu._in_turns(case, timing, contenders, {name: {} for name in times})
    assert order == ["far"] + ["ours", "near"] * 3
    assert (seen["ours"].ms, seen["near"].ms, seen["far"].ms) == (2.0, 3.0, 50.0)
    assert seen["fails"] == "RuntimeError: no memory"
    numbers = parts.gpu._numbers(seen["near"])
    assert numbers["turns"] == {"least": 2.0, "median": 3.0, "most": 4.0}


@pytest.mark.parametrize("kind", ["s4", "dss", "s4 gelu", "s4 ads", "s5", "mamba", "mega"])
def test_eager_is_the_same_model(parts: Any, kind: str) -> None:
    """Written out without a line of the modules, and compared with them in float64: logits and all gradients."""
    case = parts.step.StepCase(kind, parts.step.Size(2, 32, 16, 1), CPU)
    errors = case.errors(case.contenders[1])
    bound = 2e-3 if kind.startswith("s4") else 1e-5  # Cauchy sums by FFT in float32, at a radius of 1 - 1e-6
    assert max(errors.values()) < bound


def test_floors_are_those_of_the_docs(parts: Any) -> None:
    """ms at the ceilings of an H200: bytes, products and exponentials as docs/gpu.md and its notes count."""
    h200 = parts.case.Ceilings(4.27e12, 780e12, 3.8e12)
    floor = lambda timing: h200.floor(timing.costs)  # noqa: E731
    real, pair = (parts.scans.linear((8, 16384, 1536), t, CPU) for t in (torch.float32, torch.complex64))
    assert [floor(t) for t in (*real.timings, *pair.timings)] == pytest.approx([0.57, 0.94, 1.13, 1.89], abs=0.01)
    scan = parts.scans.selective((256, 256, 1024), 16, torch.bfloat16, CPU)
    assert [floor(t) for t in scan.timings] == pytest.approx([0.32, 0.32, 0.35], abs=0.01)
    steps = {kind: h200.floor(parts.step.costs(kind, parts.step.Size())) for kind in ("s4d", "s5", "mamba", "mega")}
    assert steps == pytest.approx({"s4d": 12.6, "s5": 8.3, "mamba": 86.6, "mega": 161}, rel=0.02)


def test_absent_peers_say_why(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise ImportError("No module named 'nobody'")

    monkeypatch.setattr(parts.peers, "_tried", {})
    peer = parts.peers.Peer("nobody", "nobody", "MIT", load)
    assert peer.found() == "ImportError: No module named 'nobody'"
    assert parts.peers.report() == {"nobody": {"licence": "MIT", "absent": "ImportError: No module named 'nobody'"}}


def test_an_extension_compiled_beforehand_is_used(parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerated-scan's own module asks torch to compile; what lies on the path is taken in its place."""
    package = tmp_path / "accelerated_scan"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "warp.py").write_text(
        "from torch.utils.cpp_extension import load_inline\n"
        "module = load_inline(name='warpscan', cpp_sources=[''], functions=['nothing'])\n"
        "scan = lambda gates, tokens: module.forward(gates, tokens)\n"
    )
    (tmp_path / "warpscan.py").write_text("def forward(gates, tokens):\n    return gates + tokens\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("accelerated_scan", "accelerated_scan.warp", "warpscan"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(parts.peers, "_needs_cuda", lambda: None)
    monkeypatch.setattr(parts.peers, "_builder", [])
    parts.peers.build()
    assert not parts.peers._builder
    a, b = torch.rand(2, 5, 3), torch.rand(2, 5, 3)
    torch.testing.assert_close(parts.peers._accelerated_cuda()(a, b), a + b)
    for name in ("accelerated_scan", "accelerated_scan.warp", "warpscan"):
        sys.modules.pop(name, None)
