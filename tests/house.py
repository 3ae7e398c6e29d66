"""The house rules that a script can see: arrows between the floors, and sizes. Run by `make check`."""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLOORS = ("sgl", "lang", "runtime", "grammars")  # each may import itself and those after it
LONGEST_FILE = 600
FORBIDDEN = {
    "sgl": {"torch", "transformers"},
    "lang": {"torch", "transformers"},
    "grammars": {"torch", "transformers", "triton"},
}
EXEMPT = ("grammars/kernels.py", "grammars/device/")  # imported only where they are used


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import statement, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
            if node.module == "sgl":
                yield from ((node.lineno, f"sgl.{alias.name}") for alias in node.names)


def arrows(floor: str, path: Path, tree: ast.AST) -> Iterator[str]:
    """Imports that run up the tower, or that pull torch into a floor without it."""
    above = FLOORS[: FLOORS.index(floor)]
    for line, module in imports(tree):
        head, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if head in FORBIDDEN.get(floor, ()) and not path.as_posix().startswith(EXEMPT):
            yield f"{path}:{line} imports {head}; {floor}/ must work without it"
        if head == "sgl" and floor != "sgl" and (target in above or target not in FLOORS):
            yield f"{path}:{line} imports {module}; {floor}/ may import only {', '.join(FLOORS[FLOORS.index(floor) :])}"


def functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def main() -> int:
    problems: list[str] = []
    for floor in FLOORS:
        files, spans = [], []
        for path in sorted((ROOT / floor).rglob("*.py")):
            text = path.read_text()
            tree = ast.parse(text)
            short = path.relative_to(ROOT)
            problems += arrows(floor, short, tree)
            files.append((sum(1 for line in text.splitlines() if line.strip()), short))
            spans += [(length, f"{short}:{name}") for name, length in functions(tree)]
        problems += [f"{path} has {size} lines; split it" for size, path in files if size > LONGEST_FILE]
        print(summary(floor, files, spans))
    print("\n".join(problems) or "arrows: all downwards")
    return 1 if problems else 0


def summary(floor: str, files: list[tuple[int, Path]], spans: list[tuple[int, str]]) -> str:
    lengths = sorted(length for length, _ in spans) or [0]
    longest, longest_file = max(spans, default=(0, "-")), max(files, default=(0, Path("-")))
    return (
        f"{floor:9} {len(files):3} files {sum(size for size, _ in files):6} lines · longest file {longest_file[1]} "
        f"({longest_file[0]}) · functions: median {statistics.median(lengths):.0f}, p90 "
        f"{lengths[int(0.9 * (len(lengths) - 1))]}, longest {longest[1]} ({longest[0]})"
    )


if __name__ == "__main__":
    sys.exit(main())
