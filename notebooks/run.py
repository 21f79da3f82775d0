"""Runs the notebooks and keeps their outputs; with `--fast` only checks that they run.

    python notebooks/run.py                    # all, outputs are written to the files
    python notebooks/run.py --fast 2_simulator # small settings, nothing is written

A cell tagged `parameters` has its small settings in its metadata, under `fast`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def execute(path: Path, *, fast: bool, folder: Path) -> nbformat.NotebookNode:
    """Runs a notebook in a new kernel.

    Args:
        path: the notebook.
        fast: with the small settings.
        folder: working directory of the kernel.

    Returns:
        The notebook with its outputs.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if fast and "fast" in cell.metadata:
            cell.source += f"\n{cell.metadata.fast}"
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        resources=resources,
        record_timing=False,  # times would change the file with every run
        coalesce_streams=True,  # else where output is cut depends on when it came
    )
    return client.execute()


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Removes what depends on the machine, and what nobody reads."""
    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data.pop("text/plain", None)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the notebooks that are named, or all.

    Args:
        argv: command line, that of the process if None.
    """
    parser = argparse.ArgumentParser(description="Run the notebooks.")
    parser.add_argument(
        "names", nargs="*", help="names without .ipynb; all if none is given"
    )
    parser.add_argument(
        "--fast", action="store_true", help="small settings, write nothing"
    )
    args = parser.parse_args(argv)
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    for name in args.names or sorted(path.stem for path in HERE.glob("*.ipynb")):
        path, start = HERE / f"{name}.ipynb", time.perf_counter()
        notebook = execute(path, fast=args.fast, folder=HERE)
        if not args.fast:
            tidy(notebook)
            nbformat.write(notebook, path)
        size = path.stat().st_size / 1000
        print(
            f"{path.name}: {time.perf_counter() - start:.0f} s, {size:.0f} KB",
            flush=True,
        )


if __name__ == "__main__":
    main()
