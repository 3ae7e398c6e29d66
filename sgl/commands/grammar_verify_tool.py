"""`sgl grammar verify`: independent engines say whether a grammar accepts texts, and where they differ from ours."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sgl.commands.grammar_command import add_grammar_arguments, compiled, given_grammar, shortened, vocabulary_of
from sgl.grammars.errors import GrammarError

_DIFFERS, _UNJUDGED = 1, 2


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "grammar verify",
        help="ask lark, re, interegular and outlines-core whether a grammar accepts texts",
        formatter_class=argparse.HelpFormatter,
        description="Shows the verdicts of independent engines next to ours. Exit status: 0 where another engine "
        "confirms each text, 1 where one differs from ours or the grammar is refused, 2 where no other engine judges "
        "some text.",
    )
    parser.add_argument("words", nargs="*", metavar="FILE TEXT", help="a schema or EBNF file, then the texts")
    add_grammar_arguments(parser)
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        help="a file with one text a line; in a .jsonl file each line is a JSON string",
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="N", help="the most for each engine (default: 30)"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Print the table; see the description for the status."""
    from sgl.grammars import verify

    try:
        words = _with_file(options)
        kind, source = given_grammar(options)
        texts = [*words, *(_texts_of(options.texts) if options.texts else ())]
        if not texts:
            raise ValueError("give texts to verify, as arguments or by --texts FILE")
        grammar = compiled(kind, source, options, vocabulary_of(options.tokenizer))
        found = verify(grammar, texts, seconds=options.seconds)
    except (GrammarError, OSError, ValueError) as error:
        print(f"sgl grammar verify: {error}", file=sys.stderr)
        return _DIFFERS
    print(f"{kind}: {shortened(source)}\n{found}")
    return _DIFFERS if found.differences else _UNJUDGED if found.unjudged else 0


def _with_file(options: argparse.Namespace) -> Sequence[str]:
    """The texts among the words, of which the first is the grammar's file unless an option has the grammar."""
    words: list[str] = options.words
    options.file = None
    if words and (options.regex, options.json_schema, options.ebnf) == (None, None, None):
        options.file = Path(words[0])
        return words[1:]
    return words


def _texts_of(file: Path) -> list[str]:
    lines = file.read_text().split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    return [_text_in_json(line) for line in lines] if file.suffix == ".jsonl" else lines


def _text_in_json(line: str) -> str:
    text = json.loads(line)
    if not isinstance(text, str):
        raise ValueError(f"{line!r} is no JSON string; each line of a .jsonl file of texts has to be one")
    return text
