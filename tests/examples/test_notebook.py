"""The notebook of the examples runs, and shows what was stored in it."""

import re
import subprocess
import sys
from pathlib import Path

from nbformat import NotebookNode, read

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
# In a process of its own: the client leaves sockets and event loops behind.
RUN = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=60).execute()
nbformat.write(notebook, sys.argv[2])
"""


def list_outputs(notebook: NotebookNode) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [re.sub(r"apr_[\w-]+", "apr_…", str(dict(sorted(output["data"].items())))) for output in outputs]


def test_the_notebook_runs_and_shows_what_is_stored_in_it(tmp_path: Path) -> None:
    executed = tmp_path / "executed.ipynb"

    subprocess.run([sys.executable, "-c", RUN, NOTEBOOK, executed], check=True, capture_output=True, timeout=120)

    shown, stored = list_outputs(read(executed, as_version=4)), list_outputs(read(NOTEBOOK, as_version=4))
    assert shown == stored
    assert len(shown) == 6
    assert not any("tok_4242" in output for output in shown)
    assert sum("text/html" in output for output in shown) == 5
