"""The first mask of grammars of programming languages and formats, from compile to mask, against llguidance.

    python benchmarks/grammar_languages.py --vocab tekken GRAMMAR.lark GRAMMAR.gbnf ...

The engines take turns grammar by grammar, in one process. Times are of the thread's processor time, and the least of
some rounds, each of which compiles anew. Priorities of terminals are removed for both, since llguidance refuses them
and sgl ignores them; GBNF is converted by llguidance's own converter for it. Grammars that neither engine compiles are
named at the end.
"""

from __future__ import annotations

import argparse
import gc
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench_results import keep_text
from grammar_engines import ENGINES
from grammar_vocabularies import load

now = time.thread_time_ns
_PRIORITY = re.compile(r"(?m)^([?!]*[A-Za-z_]\w*)\s*\.-?\d+(\s*:)")
_WARM = {"lark": 'start: "a" | "b" start', "gbnf": 'start: "a" | "b" start'}


class First(NamedTuple):
    """Milliseconds to the first mask and the tokens in it, or why there is none."""

    time: float
    allowed: int
    error: str = ""


def sources(path: Path) -> dict[str, str]:
    """A grammar as each engine reads it."""
    text = path.read_text()
    if path.suffix == ".gbnf":
        from llguidance.gbnf_to_lark import any_to_lark

        return {"gbnf": text, "lark": any_to_lark(text)}
    plain = _PRIORITY.sub(r"\1\2", text)
    return {"gbnf": plain, "lark": plain}


def first_mask(engine: Any, source: dict[str, str], size: int = 0) -> First:
    """Of the first `size` tokens those in the mask are counted."""
    gc.collect()
    gc.disable()
    try:
        engine.forget()
        began = now()
        engine.compile("ebnf", source)
        engine.start()
        engine.mask()
        taken = (now() - began) / 1e6
        return First(taken, sum(map(engine.allowed, range(size))))
    except Exception as error:
        return First(0, 0, " ".join(f"{type(error).__name__}: {error}".split())[:90])
    finally:
        gc.enable()


def in_turn(engines: dict[str, Any], source: dict[str, str], size: int, rounds: int) -> dict[str, First]:
    """For every engine the least of its rounds."""
    found = {name: first_mask(engine, source, size) for name, engine in engines.items()}
    for _ in range(rounds - 1):
        for name, engine in engines.items():
            if not found[name].error:
                found[name] = found[name]._replace(time=min(found[name].time, first_mask(engine, source).time))
    return found


def report(paths: Sequence[Path], engines: dict[str, Any], size: int, rounds: int) -> str:
    lines, refused = list[str](), list[str]()
    for path in paths:
        name = f"{path.parent.name}/{path.name}"
        ours, theirs = in_turn(engines, sources(path), size, rounds).values()
        if ours.error and theirs.error:
            refused.append(f"{name}: {ours.error}")
            continue
        shown = (f"{one.error:>24.60}" if one.error else f"{one.time:10.2f} {one.allowed:12}" for one in (ours, theirs))
        ratio = "" if ours.error or theirs.error else f"{ours.time / theirs.time:8.2f}"
        lines.append(f"{name:56} {path.stat().st_size:7}  {'  '.join(shown)}  {ratio}")
    head = (
        f"{'':56} {'bytes':>7}"
        + "".join(f"  {engine.package[:10]:>10} {'tokens':>12}" for engine in engines.values())
        + "     ratio"
    )
    return "\n".join([head, *lines, "", "compiled by neither:", *refused, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grammars", nargs="+", type=Path)
    parser.add_argument("--vocab", default="nano", help="nano, tekken, or a file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", help="of the kept result")
    parser.add_argument("--note", default="", help="where the grammars come from, kept with the result")
    options = parser.parse_args()
    vocabulary = load(options.vocab)
    engines = {name: ENGINES[name](vocabulary) for name in ("sgl", "llguidance")}
    for engine in engines.values():
        first_mask(engine, _WARM)
    versions = ", ".join(f"{name} {engine.version()}" for name, engine in engines.items())
    table = report(options.grammars, engines, vocabulary.size, options.rounds)
    head = (
        f"vocabulary {options.vocab}; ms to the first mask, the least of {options.rounds} rounds, tokens in it; "
        f"{versions}"
    )
    text = "\n".join([head, options.note, "", table])
    print(text)
    keep_text(options.name or f"grammar_languages_{options.vocab}", text)


if __name__ == "__main__":
    main()
