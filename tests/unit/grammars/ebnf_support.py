"""Random small grammars, and the slow and obvious way to know their language."""

from __future__ import annotations

import random
from functools import reduce

Tree = tuple  # ("text", s) | ("call", name) | ("seq", *trees) | ("alt", *trees) | ("repeat", tree, least, most)
NAMES = ("root", "x", "y", "z")
LONGEST = 6
_COUNTS = (
    (0, None, "*"),
    (1, None, "+"),
    (0, 1, "?"),
    (2, 3, "{2,3}"),
    (2, None, "{2,}"),
    (2, 2, "{2}"),
    (0, 5, "{0,5}"),
)


def random_tree(rng: random.Random, letters: str, depth: int) -> Tree:
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        if rng.random() < 0.55:
            return ("text", rng.choice(letters))
        return ("call", rng.choice(NAMES)) if rng.random() < 0.9 else ("text", "")
    if kind < 0.62:
        return ("seq", *(random_tree(rng, letters, depth - 1) for _ in range(rng.randint(2, 3))))
    if kind < 0.87:
        return ("alt", *(random_tree(rng, letters, depth - 1) for _ in range(rng.randint(2, 4))))
    return ("repeat", random_tree(rng, letters, depth - 1), *rng.choice(_COUNTS))


def random_grammar(rng: random.Random, letters: str = "ab") -> dict[str, Tree]:
    return {name: random_tree(rng, letters, rng.choice((1, 2, 2, 3))) for name in NAMES}


def written(tree: Tree) -> str:
    kind, *parts = tree
    if kind == "text":
        return f'"{parts[0]}"'
    if kind == "call":
        return str(parts[0])
    if kind == "repeat":
        return f"({written(parts[0])}){parts[3]}"
    return "(" + (" " if kind == "seq" else " | ").join(map(written, parts)) + ")"


def as_bnf(grammar: dict[str, Tree]) -> str:
    return "".join(f"{name} ::= {written(tree)}\n" for name, tree in grammar.items())


def as_lark(grammar: dict[str, Tree], ignored: str) -> str:
    rules = "".join(f"{name}: {_in_lark(tree)}\n" for name, tree in grammar.items())
    return f'{rules}%ignore "{ignored}"\n'


def _in_lark(tree: Tree) -> str:
    kind, *parts = tree
    if kind in ("text", "call"):
        return written(tree)
    if kind != "repeat":
        return "(" + (" " if kind == "seq" else " | ").join(map(_in_lark, parts)) + ")"
    item, least, most, sign = parts
    inner = f"({_in_lark(item)})"
    if len(sign) == 1:
        return inner + sign
    return f"{inner}~{least} {inner}*" if most is None else f"{inner}~{least}..{most}"


def with_ignored(grammar: dict[str, Tree], ignored: str) -> dict[str, Tree]:
    """The grammar that says itself what `%ignore` means."""
    gap = ("repeat", ("text", ignored), 0, None, "*")

    def spaced(tree: Tree) -> Tree:
        if tree[0] == "text":
            return ("seq", tree, gap)
        return tuple(spaced(part) if isinstance(part, tuple) else part for part in tree)

    first = next(iter(grammar))
    found = {name: spaced(tree) for name, tree in grammar.items()}
    return {"start": ("seq", gap, ("call", first)), **found}


def language(grammar: dict[str, Tree], longest: int = LONGEST) -> set[str]:
    """All texts of the first rule that are not longer than that, grown until nothing is new."""
    known: dict[str, set[str]] = {name: set() for name in grammar}
    while True:
        grown = {name: _texts(tree, known, longest) for name, tree in grammar.items()}
        if grown == known:
            return known[next(iter(grammar))]
        known = grown


def _texts(tree: Tree, known: dict[str, set[str]], longest: int) -> set[str]:
    kind, *parts = tree
    if kind == "text":
        return {parts[0]}
    if kind == "call":
        return known[parts[0]]
    if kind == "alt":
        return set().union(*(_texts(p, known, longest) for p in parts))
    if kind == "seq":
        return reduce(lambda left, p: _joined(left, _texts(p, known, longest), longest), parts, {""})
    item, (least, most) = _texts(parts[0], known, longest), parts[1:3]
    found, power = set(), {""}
    for count in range(least + longest + 1 if most is None else most + 1):
        found |= power if count >= least else set()
        power = _joined(power, item, longest)
    return found


def _joined(left: set[str], right: set[str], longest: int) -> set[str]:
    return {a + b for a in left for b in right if len(a) + len(b) <= longest}
