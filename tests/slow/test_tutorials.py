"""The notebooks run from top to bottom in a real kernel, say what their kept outputs say, and leave nothing behind."""

from __future__ import annotations

import ast
import difflib
import json
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from notebooks import execute, tutorials  # noqa: E402

pytestmark = pytest.mark.slow

TUTORIALS = pytest.mark.parametrize("path", tutorials(), ids=lambda path: path.stem)
MOST_BYTES = 400_000
ALIKE = 0.9  # of the words of a cell: in bfloat16 a close call may fall the other way with other batches or another CPU
SPEAKING = {"print", "display", "show", "system"}  # calls that have an output
LEFT = """
import gc, psutil, sgl
gc.collect()
print(sum(issubclass(type(one), sgl.Engine) and not one.closed for one in gc.get_objects()), "engines open,", end=" ")
print(len(psutil.Process().children(recursive=True)), "processes left")
"""


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# --- what is kept ----------------------------------------------------------------------------------------------


@TUTORIALS
def test_it_is_kept_small_tidy_and_with_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < MOST_BYTES
    assert notebook.metadata.kernelspec.name == "python3"
    for number, cell in enumerate(code_cells(notebook), 1):
        assert cell.execution_count == number, (
            f"code cell {number} was not kept from a run of its notebook from top to bottom: make tutorials"
        )
        assert cell.outputs or is_silent(cell.source), (
            f"code cell {number} was kept without its output: make tutorials\n{cell.source}"
        )
        assert not [output for output in cell.outputs if output.output_type == "error"], (
            f"code cell {number} was kept with an error"
        )


def is_silent(source: str) -> bool:
    """Whether a cell only defines things: nothing outside of its functions prints
    or draws, and it does not end in a value.
    """
    body = ast.parse(TransformerManager().transform_cell(source)).body
    if isinstance(body[-1], ast.Expr) and not isinstance(body[-1].value, ast.Call):
        return False
    return not any(_name(node) in SPEAKING for part in body for node in outside_of_functions(part))


def outside_of_functions(node: ast.AST):
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from outside_of_functions(child)


def _name(node: ast.AST) -> str | None:
    """What a call calls; None for other nodes."""
    called = node.func if isinstance(node, ast.Call) else None
    return getattr(called, "id", getattr(called, "attr", None))


@pytest.mark.parametrize(
    ("source", "silent"),
    [
        ("import sgl\nx = 3\ndef f():\n    print(x)", True),
        ("names = []\nnames.append(3)", True),
        ("engine.close()", True),
        ("x = 3\nx", False),
        ("print(3)", False),
        ("for i in x:\n    print(i)", False),
        ("!ls", False),
    ],
)
def test_silent_cells_are_told_from_others(source, silent):
    assert is_silent(source) == silent


HERE = re.compile(r"/(?:home|root|tmp|work|Users|var/folders)/[\w.-]+")


@TUTORIALS
def test_no_path_of_this_machine_is_kept(path):
    for number, cell in enumerate(code_cells(nbformat.read(path, as_version=4)), 1):
        for kind, text in texts_of(cell.outputs, pictures=True):
            found = HERE.search(text) or (str(ROOT) in text and str(ROOT))
            assert not found, f"the {kind} of code cell {number} names a path of this machine: {found}"


@TUTORIALS
def test_its_links_lead_somewhere(path):
    prose = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        page = (path.parent / file) if file else path
        assert page.exists(), f"{target} does not exist"
        assert not anchor or page.suffix != ".md" or anchor in anchors(page), f"{file} has no heading #{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@TUTORIALS
def test_it_shows_its_prompts(path):
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert "import prompts" not in cell.source and "nano.nano_prompts" not in cell.source, (
            "write the prompt with sgl.fields, a toolbox, or as text"
        )


# --- what it does ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder as in the repository, with the data beside it; temporary files go elsewhere."""
    shutil.copytree(ROOT / "examples", tmp_path / "sgl/examples", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "sgl/tutorials").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    return tmp_path / "sgl/tutorials"


@pytest.mark.whole
@TUTORIALS
def test_it_runs_and_says_what_is_kept(path, folder):
    kept, fresh = (nbformat.read(path, as_version=4) for _ in range(2))
    before = listing(folder.parent)
    left = execute(fresh, folder, LEFT)
    assert left.split("\n")[-2:] == ["0 engines open, 0 processes left", ""], left
    assert listing(folder.parent) == before, "it wrote files beside itself; use a temporary folder"
    differing = [
        told
        for number, pair in enumerate(zip(code_cells(kept), code_cells(fresh), strict=True), 1)
        if (told := difference(number, *pair))
    ]
    assert not differing, "\n\n".join([*differing, "If that is right, keep it: make tutorials"])


def listing(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def difference(number, kept, fresh) -> str | None:
    """What distinguishes the outputs of a cell from the kept ones, beyond figures; None if nothing does.

    Cells tagged "varies" (what they say depends on how threads met) must have outputs of the same kinds.
    """
    old, new = texts_of(kept.outputs), texts_of(fresh.outputs)
    if [kind for kind, _ in old] != [kind for kind, _ in new]:
        return (
            f"code cell {number} gives {[kind for kind, _ in new]}, kept are "
            f"{[kind for kind, _ in old]}\n{fresh.source}"
        )
    if "varies" in kept.metadata.get("tags", ()):
        return None
    for (_, before), (_, now) in zip(old, new, strict=True):
        if not same(before, now):
            lines = difflib.unified_diff(
                masked(before).splitlines(), masked(now).splitlines(), "kept", "now", lineterm="", n=0
            )
            return f"code cell {number}:\n{fresh.source}\n" + "\n".join(lines) + "\n" + counts_told(before, now)
    return None


def texts_of(outputs, pictures: bool = False) -> list[tuple[str, str]]:
    """The kind and the text of each output; pictures count by their presence. Logs (stderr) are left out."""
    found = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stdout":
            found.append(("stdout", output.text))
        for kind, data in sorted(output.get("data", {}).items()):
            text = data if isinstance(data, str) else json.dumps(data)
            shown = kind.startswith("text/") and (pictures or kind == "text/plain")
            found.append((kind, text if shown or (pictures and kind == "image/svg+xml") else ""))
    return found


def masked(text: str) -> str:
    """A text without its figures, identities, and the widths and rules that hang on them."""
    text = re.sub(r"\b(?=[0-9a-f-]*\d)[0-9a-f]{8,}[0-9a-f-]*\b", "ID", text)
    text = re.sub(r"bfloat16|float32", "DTYPE", text)
    text = re.sub(r"[-+]?\d[\d,.]*(?:e[-+]?\d+)?", "#", text)
    return re.sub(r"[-─━═█▏▎▍▌▋▊▉░▒▓ \t]+", " ", text)


def same(before: str, now: str) -> bool:
    one, other = masked(before).split(), masked(now).split()
    alike = one == other or difflib.SequenceMatcher(None, one, other, autojunk=False).ratio() >= ALIKE
    return alike and not counts_told(before, now)


COUNT = re.compile(r"(\d+) of (\d+)")


def counts_told(before: str, now: str) -> str:
    """The first "a of b" that has moved by more than a tenth of b and two: results, other than times, must hold."""
    for (a, b), (c, d) in zip(COUNT.findall(before), COUNT.findall(now), strict=False):
        if b == d and abs(int(a) - int(c)) > int(b) / 10 + 2:
            return f"kept: {a} of {b}, now: {c} of {d}"
    return ""


@pytest.mark.parametrize(
    ("before", "now", "alike"),
    [
        ("ready in 0.31 s, bfloat16", "ready in 12.5 s, float32", True),
        ("id 908dcc828a98-1 made", "id 65be634861024fd7 made", True),
        ("Anna Weber   0.99", "Anna Weber 1.0", True),
        ("Booking(city='Lisbon')", "Booking(city='Rome')", False),
        ("60 of 70 right", "58 of 70 right", True),
        ("60 of 70 right", "12 of 70 right", False),
        ("a b c d e", "a b c d", False),
    ],
)
def test_the_comparison_sees_what_matters(before, now, alike):
    assert same(before, now) == alike


# --- all of them -----------------------------------------------------------------------------------------------


def test_the_overview_has_every_tutorial():
    overview = (ROOT / "tutorials/README.md").read_text(encoding="utf-8")
    assert tutorials() and re.findall(r"\]\((\d+_\w+\.ipynb)\)", overview) == [path.name for path in tutorials()]
