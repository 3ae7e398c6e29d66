"""`sgl grammar`: what a grammar enforces, its automaton as a picture, and what may come after a text."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgl.grammars.errors import GrammarError, GrammarLimitError

if TYPE_CHECKING:
    from sgl.grammars import Grammar, Vocabulary

_EBNF_ENDINGS = (".lark", ".gbnf", ".ebnf", ".bnf")
_MOST_TOKENS = 16
_HELP = "text goes on after what you typed; an empty line takes the forced text; :back N, :reset, :quit"


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "grammar",
        help="show what a grammar enforces, draw its automaton, test texts against it",
        formatter_class=argparse.HelpFormatter,
        description="Reads a JSON Schema (.json), an EBNF grammar (.lark, .gbnf, .ebnf) or a regex.",
        epilog="sgl grammar verify FILE TEXT... asks other engines whether a grammar accepts texts.",
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a schema or EBNF file")
    add_grammar_arguments(parser)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture of the automaton")
    parser.add_argument(
        "--text", metavar="TEXT", help="show how much of a text the grammar accepts, and what may follow"
    )
    parser.add_argument("-i", "--interactive", action="store_true", help="type text and see what may follow")
    parser.set_defaults(command=run)


def add_grammar_arguments(parser: argparse.ArgumentParser) -> None:
    """The ways to give a grammar other than by file, and what it is compiled with."""
    parser.add_argument("--regex", metavar="PATTERN", help="a regular expression")
    parser.add_argument("--json-schema", metavar="SCHEMA", help="the text of a JSON Schema")
    parser.add_argument("--ebnf", metavar="GRAMMAR", help="the text of an EBNF grammar")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option for JSON Schema, such as order=any or weaken=uniqueItems",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="a model directory whose tokenizer to use (default: the bundled model)",
    )


def run(options: argparse.Namespace) -> int:
    """Status 1 where the grammar is refused or a text is not taken."""
    try:
        kind, source = given_grammar(options)
        print(f"{kind}: {shortened(source)}")
        if kind == "JSON Schema":
            _print_report(source, _options(options.option))
        grammar = _with_first_mask(kind, source, options)
        if options.svg:
            _write_picture(grammar, options.svg, f"{kind} {shortened(source)}")
    except BrokenPipeError:
        raise  # the reader of what is printed has gone: no fault of what was asked
    except (GrammarError, OSError, ValueError) as error:
        print(f"sgl grammar: {error}", file=sys.stderr)
        return 1
    if options.text is not None:
        return 0 if GrammarTrial(grammar).type(options.text) else 1
    return converse(GrammarTrial(grammar), input) if options.interactive else 0


def given_grammar(options: argparse.Namespace) -> tuple[str, str]:
    """(kind, text) of the one grammar that was given."""
    given = [("regex", options.regex), ("JSON Schema", options.json_schema), ("EBNF", options.ebnf)]
    found = [(kind, text) for kind, text in given if text is not None]
    if options.file:
        ebnf = options.file.suffix in _EBNF_ENDINGS
        found.append(("EBNF" if ebnf else "JSON Schema", options.file.read_text()))
    if len(found) != 1:
        raise ValueError("give one grammar: FILE, --regex, --json-schema or --ebnf; see sgl grammar --help")
    if options.option and found[0][0] != "JSON Schema":
        raise ValueError(f"--option {options.option[0]} is for JSON Schema, not for this {found[0][0]}; leave it out")
    return found[0]


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    """`name=value` with JSON values; what is not JSON is text; for `weaken`, keywords with commas."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--option {pair!r} is not NAME=VALUE")
        name = name.replace("-", "_")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value.split(",") if name == "weaken" else value
    return found


def compiled(kind: str, source: str, options: argparse.Namespace, vocabulary: Vocabulary) -> Grammar:
    """The grammar that was given."""
    from sgl import grammars

    if kind == "regex":
        return grammars.compile_regex(source, vocabulary)
    if kind == "EBNF":
        return grammars.compile_ebnf(source, vocabulary)
    return grammars.compile_json_schema(source, vocabulary, **_options(options.option))


def _with_first_mask(kind: str, source: str, options: argparse.Namespace) -> Grammar:
    from sgl.grammars import compile_choices

    vocabulary = vocabulary_of(options.tokenizer)
    compile_choices(["x"], vocabulary)  # a vocabulary's first grammar waits for its tables
    started = time.perf_counter()
    grammar = compiled(kind, source, options, vocabulary)
    mask = grammar.matcher().mask()
    allowed = int.from_bytes(mask.tobytes(), "little").bit_count()
    spent = (time.perf_counter() - started) * 1e3
    print(f"first mask after {spent:.1f} ms: {allowed:,} of {vocabulary.size:,} tokens may begin a text")
    return grammar


def vocabulary_of(folder: Path | None) -> Vocabulary:
    from sgl.grammars import Vocabulary
    from sgl.runtime.text.tokenizer import Tokenizer

    spec = importlib.util.find_spec("sgl.runtime")
    assert spec is not None and spec.submodule_search_locations is not None
    bundled = Path(next(iter(spec.submodule_search_locations))) / "nano"
    return Vocabulary.from_tokenizer(Tokenizer.load(folder or bundled))


def _print_report(source: str, options: dict[str, Any]) -> None:
    from sgl.grammars import explain

    findings = explain(source, **options)
    width = max((len(f.keyword) for f in findings), default=0)
    for finding in findings:
        print(f"  {finding.verdict:<10} {finding.keyword:<{width}}  {finding.where}  {finding.detail}".rstrip())


def _write_picture(grammar: Grammar, path: Path, title: str) -> None:
    from sgl.grammars.drawing import draw

    path.write_text(draw(grammar.automaton, title))
    print(f"picture in {path}")


def shortened(text: str, most: int = 70) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


class GrammarTrial:
    """A text that is typed piece by piece, and what the grammar says of it."""

    def __init__(self, grammar: Grammar) -> None:
        self._automaton = grammar.automaton
        self._vocabulary = grammar.vocabulary
        self._special = _special_tokens(grammar) if self._automaton.names else []
        self._text = ""
        self._state = self._automaton.start

    def type(self, more: str) -> bool:
        """Append text; says where it is not taken, and what may come next.

        The name of a special token is that token where the grammar has it as a terminal, and text elsewhere.
        """
        place = 0
        while place < len(more):
            after, piece = self._after(more, place)
            if after < 0:
                print(f"refused: {piece!r} after {(self._text + more[:place])[-40:]!r}")
                break
            self._state, place = after, place + len(piece)
        self._text += more[:place]
        self.show()
        return place == len(more)

    def _after(self, text: str, place: int) -> tuple[int, str]:
        """The state after the next special token or character of a text, and which it is."""
        for name, token in self._special:
            if text.startswith(name, place) and (after := self._automaton.named(self._state, token)) >= 0:
                return after, name
        return self._automaton.advance(self._state, text[place].encode()), text[place]

    def back(self, count: int) -> None:
        kept = self._text[: max(len(self._text) - count, 0)]
        self._text, self._state = "", self._automaton.start
        self.type(kept)

    def take_forced(self) -> None:
        """Append what must come next."""
        self.type(self._automaton.forced(self._state).decode(errors="ignore"))

    def show(self) -> None:
        from sgl.grammars.drawing.automaton_exploration import moves
        from sgl.grammars.drawing.charset_labels import describe

        automaton, state = self._automaton, self._state
        print(f"text: {self._text[-60:]!r}{' (may end here)' if automaton.final(state) else ''}")
        reached = [describe(chars) for chars in moves(automaton, state).values()]
        print(f"next characters: {' | '.join(reached) or 'none'}")
        if forced := automaton.forced(state):
            print(f"forced: {forced.decode(errors='replace')!r}")
        named = [name for name, token in self._special if automaton.named(state, token) >= 0]
        if named:
            print(f"next special tokens: {' '.join(named)}")
        allowed = list(_tokens(automaton.mask(state), self._vocabulary))
        shown = " ".join(map(repr, allowed[:_MOST_TOKENS]))
        print(f"next tokens: {len(allowed):,}: {shown}{' …' if len(allowed) > _MOST_TOKENS else ''}")
        if not automaton.final(state):
            print(f"shortest end: {_shortest_end(automaton, state)}")


def _shortest_end(automaton: Any, state: int) -> str:
    try:
        return repr(automaton.shortest_end(state).decode(errors="replace")[:60])
    except GrammarLimitError as error:
        return f"not known: {error}"


def _special_tokens(grammar: Grammar) -> list[tuple[str, int]]:
    """The names of special tokens and their numbers, longer ones first."""
    vocabulary = grammar.vocabulary
    found = [(vocabulary.tokens[i].decode(errors="backslashreplace"), i) for i in vocabulary.special_ids]
    return sorted(((name, token) for name, token in found if name), key=lambda pair: (-len(pair[0]), pair))


def _tokens(row: Any, vocabulary: Vocabulary) -> Iterator[str]:
    """The texts of the tokens of a mask row."""
    for token in vocabulary.text_ids:
        if int(row[token >> 5]) >> (token & 31) & 1:
            yield vocabulary.tokens[token].decode(errors="backslashreplace")


def converse(trial: GrammarTrial, read: Callable[[str], str]) -> int:
    """Lines until :quit or the end of input."""
    print(_HELP)
    trial.show()
    while True:
        try:
            line = read("> ")
        except EOFError:
            return 0
        command, _, argument = line.partition(" ")
        if command == ":quit":
            return 0
        if command == ":reset":
            trial.back(1 << 30)
        elif command == ":back":
            trial.back(int(argument) if argument.isdigit() else 1)
        elif line:
            trial.type(line)
        else:
            trial.take_forced()
