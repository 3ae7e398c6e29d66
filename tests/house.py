"""The house rules that a script can see: who may import whom, sizes, and the prose of guides. Run by `make check`."""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import house_comments
import house_names
from house_imports import FLOORS, Import, circle, circles, imports, modules, parsed
from house_prose import GUIDES, prose
from house_rooms import LOOSE, ROOMS, SUBROOMS, Rows

ROOT = Path(__file__).parent.parent
LONGEST_FILE = 600
MOST_FILES = 20  # of a folder, its `__init__.py` not counted
LARGE = (
    "runtime/models/families",
    "runtime/quantization/readers",
    "grammars/schema",
)  # one file a model, format, keyword
MOST_TYPING_CIRCLES = 3  # of files, where imports under TYPE_CHECKING count too
FORBIDDEN = {
    "sgl": {"torch", "transformers"},
    "lang": {"torch", "transformers"},
    "grammars": {"torch", "transformers", "triton"},
    "common": {"torch", "transformers", "triton", "numpy"},
}
READING, MOST_READ, MOST_PAGES = "docs/reading.md", 6000, 30  # the guided path, its lines, its files


def floor_of(module: str) -> str:
    return module.partition(".")[0]


def room_of(module: str, folder: str = "") -> str:
    """`cache` for runtime.cache.row; a floor's front is called as the floor.

    folder: the room whose rooms are meant: `spec` for runtime.models.spec.names in runtime/models.
    """
    parts = module.split(".")[folder.count("/") :]
    return parts[1] if len(parts) > 1 else parts[0]


def is_in(folder: str, module: str) -> bool:
    return f"{module}.".startswith(folder.replace("/", ".") + ".")


def arrows(edges: list[Import]) -> Iterator[str]:
    """Imports that run up the tower, or that pull torch into a floor without it."""
    for edge in edges:
        floor = floor_of(edge.source)
        below = FLOORS[FLOORS.index(floor) :]
        if edge.foreign and edge.target in FORBIDDEN.get(floor, ()):
            yield f"{edge.place} imports {edge.target}; {floor}/ must work without it"
        if not edge.foreign and floor_of(edge.target) not in below:
            yield f"{edge.place} imports {edge.target}; {floor}/ may import only {', '.join(below)}"


def doors(folder: str, rows: Rows, edges: list[Import]) -> Iterator[str]:
    """Imports between the rooms of a floor, or of a room, for which the table has no door."""
    front = folder.rpartition("/")[2]
    for edge in edges:
        here, there = room_of(edge.source, folder), room_of(edge.target, folder)
        if here not in (there, front) and there not in rows.get(here, there).split():
            yield (
                f"{edge.place} imports {edge.target}; the room {folder}/{here} may import only: "
                f"{rows[here] or 'no other'}"
            )


def plan(folder: str, rows: Rows, names: list[str]) -> Iterator[str]:
    """Where the table and the tree disagree, or a row names what does not stand above it."""
    front = folder.rpartition("/")[2]
    built = {room_of(name, folder) for name in names} - {front}
    yield from (f"{folder}/{room} has no row in house_rooms.py" for room in sorted(built - set(rows)))
    yield from (f"house_rooms.py has {folder}/{room}, the tree has not" for room in rows if room not in built)
    above = {front}
    for room, allowed in rows.items():
        wrong = [name for name in allowed.split() if name not in above]
        yield from (f"house_rooms.py: {folder}/{room} names {name}, which does not stand above it" for name in wrong)
        above.add(room)


def loose(floor: str, names: list[str], files: dict[str, Path]) -> Iterator[str]:
    lying = [name for name in names if "." in name and files[name].parent == Path(floor)]
    if len(lying) > LOOSE[floor]:
        yield (
            f"{len(lying)} files lie loose in {floor}/ ({', '.join(map(room_of, lying))}); {LOOSE[floor]} may: "
            "give them a room"
        )


def rooms(root: Path, table: dict[str, Rows]) -> Iterator[str]:
    """What the table, the tree and its imports say against each other, and circles of files.

    table: of floors and, by their paths, of rooms that have rooms.
    """
    files, edges = modules(root), imports(root)
    yield from arrows(edges)
    edges = [edge for edge in edges if not edge.foreign]
    for folder, rows in table.items():
        names = [name for name in files if is_in(folder, name)]
        within = [edge for edge in edges if is_in(folder, edge.source) and is_in(folder, edge.target)]
        yield from plan(folder, rows, names)
        yield from doors(folder, rows, within)
        if folder in FLOORS:
            yield from loose(folder, names, files)
            if ring := circle([edge for edge in within if not edge.typing]):
                yield f"a circle of files: {' -> '.join(ring)}"


def typing_circles(found: list[list[str]], most: int = MOST_TYPING_CIRCLES) -> Iterator[str]:
    """Circles of files that only type checkers see: a type is in the wrong file, or a Protocol is missing."""
    if len(found) > most:
        yield f"{len(found)} circles of files that only type checkers see; at most {most}:"
        yield from (f"    {' '.join(group)}" for group in found)


def path_read(root: Path) -> list[Path]:
    """The files of the guided path, in its order."""
    page = root / READING
    links = re.findall(r"\]\((\.\./[^)\s]+\.(?:py|c|h))\)", page.read_text())
    return [(page.parent / link).resolve() for link in links]


def lines_read(root: Path) -> int:
    return sum(len(page.read_text().splitlines()) for page in path_read(root) if page.exists())


def reading(root: Path) -> Iterator[str]:
    pages, lines = path_read(root), lines_read(root)
    yield from (f"{READING} leads to {page}, which is not there" for page in pages if not page.exists())
    if lines > MOST_READ or len(pages) > MOST_PAGES:
        yield f"{READING} leads through {len(pages)} files of {lines} lines; at most {MOST_PAGES} and {MOST_READ}"


def folders(root: Path) -> Iterator[str]:
    """Folders with too many Python and C files."""
    for floor in FLOORS:
        held: dict[str, int] = {}
        for path in (root / floor).rglob("*"):
            if path.suffix in (".py", ".c", ".h") and path.name != "__init__.py":
                folder = path.parent.relative_to(root).as_posix()
                held[folder] = held.get(folder, 0) + 1
        for folder, number in sorted(held.items()):
            if number > MOST_FILES and folder not in LARGE:
                yield f"{folder} has {number} files, at most {MOST_FILES}; make a folder in it for one of its ideas"


def functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def sizes(root: Path) -> Iterator[str]:
    """Files that are too long; prints a line of sizes for each floor."""
    for floor in FLOORS:
        files, spans = [], []
        for path in sorted((root / floor).rglob("*.py")):
            text, short = path.read_text(), path.relative_to(root)
            files.append((sum(1 for line in text.splitlines() if line.strip()), short))
            spans += [(length, f"{short}:{name}") for name, length in functions(parsed(text))]
        print(summary(floor, files, spans))
        yield from (f"{path} has {size} lines; split it" for size, path in files if size > LONGEST_FILE)


def summary(floor: str, files: list[tuple[int, Path]], spans: list[tuple[int, str]]) -> str:
    lengths = sorted(length for length, _ in spans) or [0]
    longest, longest_file = max(spans, default=(0, "-")), max(files, default=(0, Path("-")))
    return (
        f"{floor:9} {len(files):3} files {sum(size for size, _ in files):6} lines · longest file {longest_file[1]} "
        f"({longest_file[0]}) · functions: median {statistics.median(lengths):.0f}, p90 "
        f"{lengths[int(0.9 * (len(lengths) - 1))]}, longest {longest[1]} ({longest[0]})"
    )


def main(root: Path = ROOT, table: dict[str, Rows] = ROOMS | SUBROOMS) -> int:
    rings = circles([edge for edge in imports(root) if not (edge.typing and edge.source == "sgl")])  # which has all
    names = house_names.names(root)
    problems = [
        *sizes(root),
        *folders(root),
        *rooms(root, table),
        *typing_circles(rings),
        *house_names.problems(names),
        *house_comments.problems(root),
        *reading(root),
        *prose(root),
    ]
    print(house_names.summary(names))
    counted = ", ".join(f"{floor} {len(rows)}" for floor, rows in table.items())
    summary_line = (
        f"rooms: {counted} · arrows: all downwards, no circles, {len(rings)} for type checkers · "
        f"{READING}: {len(path_read(root))} files, {lines_read(root)} lines · prose: {len(GUIDES)} guides"
    )
    print("\n".join(problems) or summary_line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
