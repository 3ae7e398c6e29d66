"""`sgl check`: finds mistakes in programs without running them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sgl.lang.check import RULES, Problem, check_path, files_of

OK, FOUND, UNREADABLE = 0, 1, 2
_GITHUB = {"error": "error", "warning": "warning", "info": "notice"}


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "check",
        help="find mistakes in programs without running them",
        formatter_class=argparse.HelpFormatter,
        description="Checks Python files, notebooks and folders. Exits with 1 if there are errors, 2 if a file "
        "cannot be read. A comment `# sgl: ignore[SGL101]` silences a line.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH")
    parser.add_argument("--format", choices=("text", "json", "github"), default="text")
    parser.add_argument(
        "--select",
        type=_ids,
        metavar="IDS",
        help="check only these rules, e.g. SGL101,SGL5 (a prefix selects all rules that start with it)",
    )
    parser.add_argument("--ignore", type=_ids, default=(), metavar="IDS", help="skip these rules")
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Print what is found."""
    problems: list[Problem] = []
    unreadable, files = False, list(files_of(options.paths))
    if not files:
        print(f"sgl check: no Python file and no notebook below {', '.join(map(str, options.paths))}", file=sys.stderr)
        return UNREADABLE
    for path in files:
        try:
            problems += [problem for problem in check_path(path) if _wanted(problem.rule, options)]
        except (OSError, ValueError) as error:
            print(f"sgl check: {path} cannot be read: {error}", file=sys.stderr)
            unreadable = True
    for line in _FORMATS[options.format](problems) if problems or not unreadable else ():
        print(line)
    counted = ("error", "warning") if options.strict else ("error",)
    failed = any(problem.severity in counted for problem in problems)
    return UNREADABLE if unreadable else FOUND if failed else OK


def _ids(text: str) -> tuple[str, ...]:
    """Rule ids, or their first letters. Raises ArgumentTypeError for what is none."""
    ids = tuple(part.strip().upper() for part in text.split(",") if part.strip())
    for given in ids:
        if not any(rule.startswith(given) for rule in RULES):
            raise argparse.ArgumentTypeError(f"{given!r} is not a rule; the rules are {', '.join(RULES)}")
    return ids


def _wanted(rule: str, options: argparse.Namespace) -> bool:
    selected = options.select is None or rule.startswith(options.select)
    return selected and not (options.ignore and rule.startswith(options.ignore))


def _as_text(problems: Sequence[Problem]) -> Iterator[str]:
    for problem in problems:
        mark = "" if problem.severity == "error" else f" ({problem.severity})"
        yield f"{problem.place}: {problem.rule} {problem.message}{mark}"
        if problem.source.strip():
            yield from _caret(problem)
    yield _summary(problems)


def _caret(problem: Problem) -> Iterator[str]:
    """The source line with a caret under the column, tabs kept as they are."""
    line = problem.source
    gutter = f"{problem.line:>5} | "
    space = "".join("\t" if char == "\t" else " " for char in line[: problem.column - 1])
    yield f"{gutter}{line}"
    yield f"{' ' * (len(gutter) - 2)}| {space}^"


def _summary(problems: Sequence[Problem]) -> str:
    if not problems:
        return "no problems found"
    counts = [(sum(p.severity == kind for p in problems), kind) for kind in ("error", "warning", "info")]
    return ", ".join(f"{count} {_plural(kind, count)}" for count, kind in counts if count)


def _plural(kind: str, count: int) -> str:
    return f"{kind}s" if count != 1 and kind != "info" else kind


def _as_json(problems: Sequence[Problem]) -> Iterator[str]:
    yield json.dumps([dataclasses.asdict(problem) for problem in problems], indent=2, ensure_ascii=False)


def _as_github(problems: Sequence[Problem]) -> Iterator[str]:
    """Workflow commands, which GitHub shows next to the lines of a pull request."""
    for problem in problems:
        message = f"{problem.rule} {problem.message}".replace("%", "%25").replace("\n", "%0A").replace("\r", "%0D")
        place = f"file={problem.path},line={problem.line},col={problem.column},title={problem.rule}"
        yield f"::{_GITHUB[problem.severity]} {place}::{message}"


_FORMATS: dict[str, Callable[[Sequence[Problem]], Iterable[str]]] = {
    "text": _as_text,
    "json": _as_json,
    "github": _as_github,
}
