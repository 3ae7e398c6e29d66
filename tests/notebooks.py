"""Runs the tutorials and keeps their outputs: `python tests/notebooks.py [NAME ...]`, all of them by default.

A name is a path, or the beginning of a file's name in tutorials/: `python tests/notebooks.py 7`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "tutorials"
SECONDS = 120  # for one cell


def tutorials() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"), key=lambda path: int(path.stem.split("_")[0]))


def execute(notebook: NotebookNode, folder: Path, exit_message: str = "") -> str:
    """Run a notebook with `folder` as its working folder, in a kernel of its own; its outputs are replaced.

    `exit_message` is code that runs behind the last cell; what it prints is returned and not kept in the notebook.
    Raises nbclient.exceptions.CellExecutionError for a cell that fails.
    """
    if exit_message:
        notebook.cells.append(nbformat.v4.new_code_cell(exit_message))
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources=resources,
        coalesce_streams=True,
        record_timing=False,
    )
    client.execute(env=os.environ | {"SGL_AMX": "0"})  # what is kept does not depend on whether the CPU has it
    said = notebook.cells.pop().outputs if exit_message else []
    return "".join(output.get("text", "") for output in said)


def keep(path: Path) -> None:
    """Run a notebook in its place and write it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    started = time.perf_counter()
    execute(notebook, path.parent)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
    }
    nbformat.write(notebook, path)
    print(f"{path.name:32} {time.perf_counter() - started:5.1f} s  {path.stat().st_size / 1000:4.0f} kB")


def named(name: str) -> list[Path]:
    """The tutorials that a word of the command line means. Raises SystemExit if there is none."""
    found = [Path(name)] if Path(name).is_file() else [path for path in tutorials() if path.name.startswith(name)]
    if not found:
        raise SystemExit(f"no tutorial {name!r}; there are: {', '.join(path.stem for path in tutorials())}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    for name in parser.parse_args().names or [path.name for path in tutorials()]:
        for path in named(name):
            keep(path)


if __name__ == "__main__":
    sys.exit(main())
