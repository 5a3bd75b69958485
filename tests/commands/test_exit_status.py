"""What a script relies on: the documented exit statuses, lines in a log, completion by the shell."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from resolvent import cli
from resolvent.commands.run import cells as run_cells

ROOT = Path(__file__).parents[2]
RUN = ["run", "quickstart", "--no-report"]


def interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


def record(**extra: Any) -> dict[str, Any]:
    rows = {"epoch": 1, "test_clean": 0.5}
    return {
        "cell": {"recipe": "quickstart", "tags": ["s4"], "seed": 0},
        "task": {"classes": 10},
        "training": {"summary": {"best": rows, "last": rows}},
        **extra,
    }


def test_done_is_zero(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(run_cells, "_records", lambda *_: [record()])
    assert cli.main([*RUN, "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "50.0" in output
    assert str(tmp_path / "quickstart" / "s4" / "seed-0") in output  # what other commands take as RUN


def test_a_diverged_run_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run_cells, "_records", lambda *_: [record(), record(failed="loss is not finite")])
    assert cli.main([*RUN, "--out", str(tmp_path)]) == 1
    assert "2, 1 diverged" in capsys.readouterr().out


def test_a_wrong_call_is_two(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["run", "quikstart", "--no-report"]) == 2
    assert "did you mean 'quickstart'" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "nowhere")]) == 2
    assert cli.main(["quickstart"]) == 2
    assert "Available subcommands" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["_records", "find"])
def test_ctrl_c_is_130_and_says_how_to_go_on(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run_cells, where, interrupted)
    assert cli.main([*RUN, "--out", str(tmp_path)]) == 130
    assert "the same command resumes from there" in capsys.readouterr().out


def test_ctrl_c_elsewhere_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from resolvent.commands import list as listing

    monkeypatch.setattr(listing, "recipes", interrupted)
    assert cli.main(["list"]) == 130
    assert "stopped" in capsys.readouterr().err


def test_help_and_documentation_tell_the_same_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+)[ ,]", page, re.M) == ["0", "1", "2", "3", "124", "129"]
    cli.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    section = text[text.index("Exit status:") :]
    assert all(f" {status} " in section for status in ("0", "1", "2", "3", "124", "130", "143", "129"))
    assert set(re.findall(r"`resolvent (\w+)", page)) >= set(cli.COMMANDS)


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_each_command_tells_its_purpose_and_status(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: resolvent {name}" in text
    assert name == "list" or "Exit status: 0" in text
    for line in text.splitlines():  # an example keeps its line
        assert line.count("$ resolvent") <= 1


def test_a_log_gets_a_line_for_each_measured_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    from rich.console import Console

    log = logging.getLogger("resolvent.training")
    before = (list(log.handlers), log.level)
    with run_cells.show_epochs(Console()):
        log.info("epoch 3, loss 0.412")
    log.info("epoch 4, loss 0.4")
    assert capsys.readouterr().out == "epoch 3, loss 0.412\n"
    assert (log.handlers, log.level) == before
    with run_cells.show_epochs(Console(force_terminal=True)):
        log.info("epoch 5, loss 0.3")  # there is a bar
    assert capsys.readouterr().out == ""


def test_a_reader_that_has_read_enough(tmp_path: Path) -> None:
    """`resolvent list | head -1`: no traceback."""
    command = [sys.executable, "-c", "from resolvent.cli import main; import sys; sys.exit(main(['list']))"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 2
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


BASH = """
source {script}
f=$(complete -p resolvent | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}; COMPREPLY=()
$f resolvent "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_the_shell_completes(tmp_path: Path) -> None:
    made = [sys.executable, "-m", "resolvent", "--tyro-print-completion", "bash"]
    script = tmp_path / "completion.bash"
    script.write_text(subprocess.run(made, check=True, capture_output=True, text=True).stdout)
    cases = {
        "resolvent an": "analyse",
        "resolvent run --ob": "--objective",
        "resolvent run x --objective ''": "standard pgd-at trades",
    }
    for words, wanted in cases.items():
        code = BASH.format(script=script, words=words)
        done = subprocess.run(["bash", "-c", code], check=True, capture_output=True, text=True)
        assert set(done.stdout.split()) - {"None"} == set(wanted.split()), done.stderr  # None: as if left out
