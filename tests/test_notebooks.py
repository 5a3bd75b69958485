"""The notebooks are jupytext sources (docs/notebooks/*.py); each is executed as a notebook."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.py"))
NEEDED = ("jupytext", "nbclient", "ipykernel", "matplotlib")


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_a_notebook_runs(source: Path, tmp_path: Path) -> None:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs pip install '.[docs,report]': {', '.join(missing)}")
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(source)
    assert {cell.cell_type for cell in notebook.cells} == {"markdown", "code"}
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert any(out.output_type == "display_data" for out in printed)  # a picture


def test_there_are_three() -> None:
    assert {p.stem for p in SOURCES} == {"attack_a_mamba", "certified_against_attacked", "see_a_transfer_function"}
