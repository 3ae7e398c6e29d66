"""Checking texts, files and live programs."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .check_problem import RULES, Problem
from .checked_source import SourceText, notebook_source, read_source

if TYPE_CHECKING:
    from ..sgl_function import SglFunction


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
