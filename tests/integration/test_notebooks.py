"""The notebooks of the documentation run from start to end and give outputs of the kinds that are stored in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("matplotlib")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))


def kinds(notebook: Any) -> list[list[list[str]]]:
    """For each cell of code the kinds of its outputs."""
    return [
        [sorted(output.get("data", {output.get("name", "error"): None})) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_outputs_are_stored(path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    run = nbformat.from_dict(stored)
    nbclient.NotebookClient(run, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert kinds(run) == kinds(stored)
    assert any("image/png" in kind for outputs in kinds(run) for kind in outputs)
    assert list(tmp_path.iterdir()) == []  # what it makes is in a folder that is removed


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 5
