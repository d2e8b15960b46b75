"""The notebooks in examples/ run from top to bottom, and are stored without outputs."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.java import need_spark

NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
FIRST_STEPS = NOTEBOOKS / "first_steps.ipynb"
CELL_SECONDS_MAX = 240


def outputs(notebook: Any, kind: str) -> list[str]:
    """Everything of this content type that the cells show, in order."""
    shown = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    return [output.data[kind] for output in shown if kind in output.get("data", {})]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_stored_without_outputs_and_paths_of_a_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook.cells)
    assert not any(folder in path.read_text() for folder in ("/home/", "/tmp/", "/Users/"))


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_first_steps_show_live_rows_and_plot_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_spark()
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE")  # of other tests: the notebook finds its worker's token
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(FIRST_STEPS, as_version=4)  # type: ignore[no-untyped-call]
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=CELL_SECONDS_MAX, kernel_name="python3", resources=resources).execute()
    live, table = outputs(notebook, "text/html")
    assert "the newest 6 of 240 rows" in live
    assert "<td>cellar</td>" in live
    assert table.count("<tr>") == 4, "the first means"
    (plot,) = outputs(notebook, "image/png")
    assert len(plot) > 5000
