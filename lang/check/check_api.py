"""Checking texts, files and live programs."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .check_problem import RULES, Problem

if TYPE_CHECKING:
    from ..sgl_function import SglFunction
_IGNORE = re.compile(r"#\s*sgl:\s*ignore(?:\[([^\]]*)\])?")
_MAGIC = re.compile(r"^(\s*)([%!?].*|[\w.]+\?{1,2})$")
_MAGIC_VALUE = re.compile(r"^(\s*[\w, ]+=\s*)[%!].*$")
_REMOTE = re.compile(r"\b(RuntimeEndpoint|OpenAI|Anthropic|LiteLLM|VertexAI|Crusoe|select_sglang_backend)\b")


def check_source(text: str, path: str = "<string>") -> list[Problem]:
    """The problems of a Python text, in the order of their places; of a notebook if `path` ends in .ipynb.

    Nothing is imported and nothing runs. Raises ValueError for a notebook that is none, and for
    expressions nested too deeply.
    """
    return _check(notebook_source(path, text) if path.endswith(".ipynb") else SourceText(path, text))


def check_path(path: str | Path) -> list[Problem]:
    """The problems of a file. Raises OSError, ValueError if it cannot be read."""
    return _check(read_source(Path(path)))


def check_program(program: SglFunction) -> list[Problem]:
    """The problems of a live program, in the source of its file. Raises OSError if it has no source.

    Only what is in the program itself is reported; the functions and constants of its module are known.
    """
    func: Any = program.func
    lines, first = inspect.getsourcelines(func)
    path = inspect.getsourcefile(func) or "<unknown>"
    file = Path(path)
    if file.is_file():
        found = _check(read_source(file))
        return [problem for problem in found if first <= problem.line < first + len(lines)]
    text = textwrap.dedent("".join(lines))
    return [
        replace(problem, line=problem.line + first - 1)
        for problem in _check(SourceText(path, "from sgl import *; import sgl\n" + text))
        if problem.line > 1
    ]


def files_of(paths: Iterable[str | Path]) -> Iterator[Path]:
    """The Python files and notebooks that are meant; folders are searched, hidden ones left out."""
    for given in map(Path, paths):
        if not given.is_dir():
            yield given
            continue
        for found in sorted(given.rglob("*")):
            inside = found.relative_to(given).parts
            if found.suffix in (".py", ".ipynb") and not any(part.startswith(".") for part in inside):
                yield found


TOO_DEEP = (RecursionError, MemoryError)  # Python's parser calls its full stack a lack of memory


def _check(source: SourceText) -> list[Problem]:
    from .module_bindings import ModuleNames
    from .program_checker import ProgramChecker

    if "sgl" not in source.text:
        return _syntax_only(source)
    try:
        tree = source.parse()
    except (SyntaxError, ValueError, *TOO_DEEP) as error:
        return [_syntax_problem(source, error)]
    try:
        names = ModuleNames(tree)
        found = ProgramChecker(tree, names, source.is_remote).run() if names.uses_sgl else []
    except TOO_DEEP as error:
        return [_syntax_problem(source, error)]
    return [_placed(source, problem) for problem in found if not source.ignores(problem.line, problem.rule)]


def _syntax_only(source: SourceText) -> list[Problem]:
    try:
        source.parse()
    except (SyntaxError, ValueError, *TOO_DEEP) as error:
        return [_syntax_problem(source, error)]
    return []


def _syntax_problem(source: SourceText, error: Exception) -> Problem:
    line = getattr(error, "lineno", None) or 1
    column = getattr(error, "offset", None) or 1
    deep = isinstance(error, TOO_DEEP)
    message = (
        "is nested too deeply to be checked; part the expression"
        if deep
        else f"cannot be parsed: {getattr(error, 'msg', None) or error}"
    )
    return _placed(source, Problem("", line, max(column, 1), "SGL001", RULES["SGL001"].severity, message))


def _placed(source: SourceText, problem: Problem) -> Problem:
    cell, line = source.place(problem.line)
    text = source.line(problem.line)
    column = len(text.encode()[: problem.column - 1].decode(errors="ignore")) + 1
    if problem.rule == "SGL001":
        column = problem.column
    return replace(problem, path=source.path, line=line, column=column, cell=cell, source=text)


@dataclass
class SourceText:
    """`cells` gives for each line (from 0) of a notebook its cell and its line there, both from 1."""

    path: str
    text: str
    cells: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = self.text.splitlines()

    def parse(self) -> ast.Module:
        """The tree. Raises SyntaxError; a notebook may await at top level."""
        flags = ast.PyCF_ONLY_AST | (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if self.cells else 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = compile(self.text, self.path, "exec", flags, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        return tree

    @property
    def is_remote(self) -> bool:
        """Whether programs may run on another engine than ours."""
        return _REMOTE.search(self.text) is not None

    def line(self, number: int) -> str:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def place(self, line: int) -> tuple[int | None, int]:
        """(cell, line in it); no cell in a file."""
        if not self.cells:
            return None, line
        return self.cells[min(max(line, 1), len(self.cells)) - 1]

    def ignores(self, line: int, rule: str) -> bool:
        """Whether a comment on the line says to ignore the rule."""
        found = _IGNORE.search(self.line(line))
        if found is None:
            return False
        listed = found.group(1)
        return listed is None or rule in {part.strip() for part in listed.split(",")}


def read_source(path: Path) -> SourceText:
    """Raises OSError, ValueError for what is not a text or not a notebook."""
    text = path.read_text(encoding="utf-8-sig")
    return notebook_source(str(path), text) if path.suffix == ".ipynb" else SourceText(str(path), text)


def notebook_source(path: str, text: str) -> SourceText:
    """The code cells in their order, without magics. Raises ValueError if the text is not a notebook."""
    try:
        cells = json.loads(text)["cells"]
        return _joined(path, cells)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a notebook: {error!r}") from error


def _joined(path: str, cells: list[dict[str, object]]) -> SourceText:
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] != "code":
            continue
        source = cell["source"]
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        for place, line in enumerate(_without_magics(text), 1):
            lines.append(line)
            places.append((number, place))
    return SourceText(path, "\n".join(lines) + "\n", places or [(1, 1)])


def _without_magics(text: str) -> Iterator[str]:
    """The lines of a cell; what is not Python becomes `pass`, a whole cell in another language nothing."""
    lines = text.splitlines()
    other = bool(lines) and lines[0].startswith("%%") and not lines[0].startswith(("%%time", "%%capture"))
    for line in lines:
        if other:
            yield ""
        elif found := _MAGIC.match(line):
            yield f"{found.group(1)}pass"
        else:
            yield _MAGIC_VALUE.sub(r"\1None", line)
