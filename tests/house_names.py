"""Names of product code: words that they may not use, and class names that more than one module has.

A name is a folder's, a file's, a class's, a function's or a parameter's. It is split at underscores and camel case, so
`one_row` is in `linear_one_row.py` and in `OneRowLayer`. JSON keys, options and variables are not looked at.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from house_imports import FLOORS, parsed

INSTEAD = {  # a word or words in a row -> what to say instead
    "law": "reference",
    "laws": "reference",
    "beside": "parallel, with, in the same batch",
    "besides": "other, rest",
    "behind": "after, rest, suffix",
    "told": "describe, report, notify; a result or an error",
    "nobody": "unused, none",
    "whoever": "caller, reader",
    "lone": "single, gemv",
    "twin": "python, reference",
    "twins": "python, reference",
    "kin": "variants",
    "leash": "die_with_parent",
    "pulse": "heartbeat",
    "ear": "silence, heartbeat",
    "hearing": "silence, heartbeat",
    "newcomer": "new_request",
    "newcomers": "new_requests, admission",
    "pace": "prefill_budget",
    "borders": "checkpoint_positions",
    "twig": "branch",
    "twigs": "branches",
    "unborn": "pending",
    "birth": "spawn",
    "plenty": "cardinality",
    "postbox": "queue",
    "mailbox": "p2p, queue",
    "arrivals": "queue, inbox",
    "one_row": "gemv, single",
    "few_rows": "skinny_gemm, small_batch",
    "many_rows": "gemm",
    "few_bits": "quantized",
    "few_claims": "support",
    "over_ranks": "tensor_parallel, all_reduce",
    "one_way": "gather, broadcast",
    "joins": "residual_norm",
    "by_law": "reference",
    "claims": "supports",
    "course": "execution_plan",
    "survey": "estimate",
    "spread": "sharding, placement, split",
    "wording": "describe",
    "catalogue": "listing",
    "culprit": "failing_sequence",
    "talk": "request_run",
    "standing": "policy",
    "twofold": "double_quantized",
    "keeping": "keep_quantized",
    "owed": "pending_tokens",
    "charged": "budgeted",
    "shadow": "adapted_model",
    "cards": "gpus",
    "guess": "draft, estimate",
    "guesses": "drafts",
    "asked": "requested, options, request",
    "said": "described, message, given",
    "say": "describe, format",
    "says": "describe, has",
    "bring": "fetch",
    "fan": "branches",
    "breathe": "yield",
    "flats": "flattened",
    "judge": "validator",
    "int_row": "int_array",
    "text_tools": "detokenizer_resources",
    "once_values": "memoized_values",
    "error_shapes": "error_formats",
}
LEFT: dict[str, int] = {}  # how often such words are in names today: only ever lower
ONE_MODULE = ("Plan", "Step", "Told", "Layout", "Call", "Choice", "Source", "Kept")
MOST_SHARED = 7  # class names that more than one module has: only ever lower
SPLIT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


class Name(NamedTuple):
    """kind: folder, file, class, function or parameter."""

    kind: str
    name: str
    path: str
    line: int = 0

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


def names(root: Path) -> list[Name]:
    """Every name that product code defines, below `root`."""
    return [name for floor in FLOORS for path in sorted((root / floor).rglob("*")) for name in _of_path(root, path)]


def _of_path(root: Path, path: Path) -> Iterator[Name]:
    short = str(path.relative_to(root))
    if path.suffix in (".py", ".c", ".h"):
        yield Name("file", path.stem, short)
    elif path.is_dir():
        yield Name("folder", path.name, short)
    if path.suffix == ".py":
        yield from _defined(parsed(path.read_text(encoding="utf-8")), short)


def _defined(tree: ast.AST, path: str) -> Iterator[Name]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield Name("class", node.name, path, node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Name("function", node.name, path, node.lineno)
        elif isinstance(node, ast.arg):
            yield Name("parameter", node.arg, path, node.lineno)


def words(name: str) -> list[str]:
    """`OneRow_plan` is one, row, plan."""
    return [word.lower() for word in SPLIT.findall(name)]


def misnamed(found: list[Name]) -> dict[str, list[Name]]:
    """The names that use a word of INSTEAD, by that word."""
    uses = defaultdict(list)
    for name in found:
        parts = words(name.name)
        for word in {*parts, *map("_".join, pairwise(parts))} & INSTEAD.keys():
            uses[word].append(name)
    return dict(sorted(uses.items()))


def shared(found: list[Name]) -> dict[str, list[str]]:
    """The class names that more than one module has, with the modules' files."""
    files = defaultdict(set)
    for name in found:
        if name.kind == "class":
            files[name.name].add(name.path)
    return {name: sorted(paths) for name, paths in sorted(files.items()) if len(paths) > 1}


def problems(found: list[Name], left: dict[str, int] = LEFT, most_shared: int = MOST_SHARED) -> Iterator[str]:
    for word, uses in misnamed(found).items():
        if len(uses) > left.get(word, 0):
            places = ", ".join(f"{use.kind} {use.name} ({use.place})" for use in uses[:40])
            yield f"“{word}” is in {len(uses)} names, at most {left.get(word, 0)} (better: {INSTEAD[word]}): {places}"
    several = shared(found)
    for name in ONE_MODULE:
        if name in several:
            yield f"the class name {name} is in more than one module: {', '.join(several[name])}"
    if len(several) > most_shared:
        listed = "; ".join(f"{name}: {', '.join(paths)}" for name, paths in several.items())
        yield f"{len(several)} class names are in more than one module, at most {most_shared}: {listed}"


def summary(found: list[Name]) -> str:
    left = ", ".join(f"{word} {len(uses)}" for word, uses in misnamed(found).items()) or "no old word"
    return f"names: {len(found)}, {len(shared(found))} class names in more than one module · still in names: {left}"
