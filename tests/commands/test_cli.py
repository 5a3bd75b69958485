"""The command line: exit status, one clear line for each mistake, tables and JSON that tell the truth."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resolvent import cli

SAMPLES = Path(__file__).parents[1] / "conformance" / "sample_layers.py"
LAYER = f"{SAMPLES}:"


@pytest.fixture
def few_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is under test here, not the suite: three properties are enough."""
    from resolvent.commands.check import layers
    from resolvent.conformance import cases, properties, runner

    chosen = tuple(p for p in properties.PROPERTIES if p.name in ("chunks", "steps", "frozen"))
    for module in (cases, layers, runner):
        monkeypatch.setattr(module, "PROPERTIES", chosen)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("resolvent 0.")


@pytest.mark.parametrize("shell", ["tcsh", "nosuch"])
def test_a_shell_without_completion_is_one_line(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--tyro-print-completion", shell]) == 2
    assert capsys.readouterr().err == f"resolvent: completion is for bash, zsh, fish; got {shell!r}.\n"


@pytest.mark.parametrize("shell", cli.SHELLS)
def test_completion_knows_the_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--tyro-print-completion", shell]) == 0
    assert "dry-run" in capsys.readouterr().out


def test_help_tells_commands_and_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for word in ("list", "run", "report", "check", "attack", "certify", "demo", "Exit status"):
        assert word in text


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_help_fits_a_screen(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main([*([name] if name else []), "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 50


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_is_explained_or_named_in_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def flags(*words: str) -> set[str]:
        assert cli.main([name, *words]) == 0
        return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out)) - {"--help-all"}

    assert flags("--help-all") <= flags("--help")


@pytest.mark.parametrize("words", [["--norm", "Linf"], ["--norm=L_inf"], ["--norm", "linf"]])
def test_norms_as_people_write_them(words: list[str]) -> None:
    for command in (["attack", "RUN"], ["certify", "RUN"], ["run", "train", "--data", "mine.csv"]):
        assert "linf" in str(cli.parse([*command, *words]))
        assert "linf" in str(cli.parse([*command, "--norm", "l2", *words]))
    with pytest.raises(SystemExit):
        cli.parse(["attack", "RUN", "--norm", "Linfinite"])


def test_help_does_not_import_torch() -> None:
    code = "import sys; from resolvent.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert time.perf_counter() - start < 10  # generous for a busy machine; what must not be there is torch


@pytest.mark.usefixtures("few_properties")
def test_a_foreign_layer_that_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report.json"
    status = cli.main(["check", "--module", LAYER + "Stranger", "--kwargs", '{"d_model": 2}', "--json", str(out)])
    assert status == 0
    made = json.loads(out.read_text())
    assert made["ok"] is True
    assert made["settings"]["device"] == "cpu"
    assert {r["property"]: r["status"] for r in made["results"]} == {"chunks": "pass", "steps": "pass", "frozen": "n/a"}
    assert "Stranger" in capsys.readouterr().out
    assert list(out.parent.iterdir()) == [out]  # no partial file stays


@pytest.mark.usefixtures("few_properties")
def test_a_foreign_layer_that_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    assert cli.main(["check", "--module", LAYER + "Crashes", "--json", str(out)]) == 1
    text = capsys.readouterr().out
    assert "FAIL" in text
    assert "the cat sat on the keyboard" in text
    assert "Traceback" not in text
    assert json.loads(out.read_text())["results"][0]["error"] == "inf"


@pytest.mark.usefixtures("few_properties")
def test_one_layer_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--layer", "shortconv", "--dtype", "float32", "--seed", "4"]) == 0
    text = capsys.readouterr().out
    assert "ShortConv" in text
    assert "float32" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "S4E"], "did you mean S4"),
        (["--layer", "S4", "--module", "a:B"], "not both"),
        (["--module", "no_colon"], "package.module:Class"),
        (["--module", "missing.py:Layer"], "no file 'missing.py'"),
        (["--module", "no_such_package:Layer"], "no_such_package"),
        (["--module", LAYER + "Leeky"], "did you mean Leaky"),
        (["--module", LAYER + "Leaky", "--kwargs", "{"], "not JSON"),
        (["--module", LAYER + "Leaky", "--kwargs", "[1]"], "JSON object"),
        (["--module", LAYER + "Leaky", "--kwargs", '{"width": 3}'], "width"),
        (["--module", "torch.nn:ReLU"], "resolvent check: ReLU has no attribute d_model; "),
        (["--module", "torch.nn:ReLU"], "--kwargs"),
        (["--layer", "S4", "--kwargs", '{"d_model": 3}'], "--kwargs goes with --module"),
        (["--layer", "S4", "--device", "abacus"], "--device 'abacus' cannot be used here"),
    ],
)
def test_mistakes_are_one_line_and_status_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("resolvent check: ")
    assert error.count("\n") == 1


def _forbid_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from resolvent.commands.check import layers, page

    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work began")

    for module, name in ((layers, "check_all"), (layers, "load_class"), (page, "check_all")):
        monkeypatch.setattr(module, name, work)


@pytest.mark.parametrize("place", ["file/report.json", "file/deep/report.json", "folder", "x" * 300])
@pytest.mark.parametrize("what", [["--layer", "S4"], ["--module", LAYER + "Leaky"]])
def test_json_that_cannot_be_written_is_refused_first(
    what: list[str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _forbid_work(monkeypatch)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    assert cli.main(["check", *what, "--json", str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("resolvent check: cannot write ")
    assert "--json" in error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_that_cannot_be_written_is_refused_before_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from resolvent import report

    monkeypatch.setattr(report, "require_packages", lambda: None)
    _forbid_work(monkeypatch)
    (tmp_path / "file").write_text("in the way")
    for place in ("file", "file/deep"):
        assert cli.main(["check", "--page", str(tmp_path / place)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("resolvent check: cannot write ")
        assert "--page" in error


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that no import looks in, with a layer in a file whose name an installed package has too."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    source = SAMPLES.read_text()
    (tmp_path / "json.py").write_text(source)
    (tmp_path / "mine_of_the_current_folder.py").write_text(source)
    return tmp_path


def test_a_layer_outside_the_path_compiles(elsewhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from resolvent.commands.check import layers
    from resolvent.conformance import properties, runner

    chosen = tuple(p for p in properties.PROPERTIES if p.name == "torch.compile")
    for module in (layers, runner):
        monkeypatch.setattr(module, "PROPERTIES", chosen)
    out = tmp_path / "report.json"
    assert cli.main(["check", "--module", f"{elsewhere / 'json.py'}:Globals", "--json", str(out)]) == 0
    assert sys.modules["json"] is json
    (result,) = json.loads(out.read_text())["results"]
    assert (result["property"], result["status"]) == ("torch.compile", "pass")


def test_a_file_that_fails_stays_out_of_the_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken_layer.py").write_text("raise RuntimeError('half way')")
    assert cli.main(["check", "--module", f"{tmp_path / 'broken_layer.py'}:Layer"]) == 2
    assert "half way" in capsys.readouterr().err
    assert not [name for name in sys.modules if "broken_layer" in name]


@pytest.mark.usefixtures("few_properties")
def test_a_module_of_the_current_folder(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(elsewhere)
    try:
        assert cli.main(["check", "--module", "mine_of_the_current_folder:Leaky"]) == 0
    finally:
        sys.modules.pop("mine_of_the_current_folder", None)


@pytest.mark.usefixtures("few_properties")
def test_a_log_gets_one_line_for_each_layer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from resolvent.conformance import cases

    monkeypatch.setattr(cases, "CASES", tuple(c for c in cases.CASES if c.layer in ("ShortConv", "EMA")))
    assert cli.main(["check"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " hold, 0 fail, " in line]
    assert [line.split(":")[0] for line in lines[:-1]] == ["1/2 EMA", "2/2 ShortConv"]
    assert cli.main(["check", "--module", LAYER + "Stranger"]) == 0
    assert "1/1 Stranger: 2 hold, 0 fail, " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["bogus"], ["check", "--dtype", "int8"], ["check", "--fast", "--full"]])
def test_bad_usage_is_status_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err


def test_list_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    text = capsys.readouterr().out
    for word in ("S4D", "RGLRU", "HiPPO legs", "ring", "robustness", "lru_stack"):
        assert word in text


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "resolvent", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("resolvent ")
