"""The command line: each command has a separate file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

COMMANDS = {
    "doctor": "doctor_command",
    "models": "models_command",
    "grammar": "grammar_command",
    "grammar verify": "grammar_verify_tool",
    "check": "check_command",
    "quantize": "quantize_command",
    "shard": "shard_command",
    "push": "push_command",
    "run": "run_command",
    "serve": "serve_command",
    "chat": "chat_command",
}  # modules by command, in the order of the help


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. Where the reader of its output is gone, it ends without a word."""
    from sgl.commands.run_command import OUTPUT_CLOSED, output_closed

    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # what fails at the interpreter's end is a traceback
    except BrokenPipeError:
        if not output_closed():
            raise
        return OUTPUT_CLOSED


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:2] == ["grammar", "verify"]:
        words[:2] = ["grammar verify"]
    options = _parser(words[0] if words else "").parse_args(words)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


class CommandParser(argparse.ArgumentParser):
    """Shows the lines of a description as they are written."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter} | options)


def _parser(first: str = "") -> argparse.ArgumentParser:
    """first: the first word; where it is a command, the others are not imported."""
    from sgl import __version__

    parser = argparse.ArgumentParser(
        prog="sgl", description="A language for structured generation with its own runtime."
    )
    parser.add_argument("--version", action="version", version=f"sgl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=CommandParser)
    for tool in [COMMANDS[first]] if first in COMMANDS else COMMANDS.values():
        import_module(f"sgl.commands.{tool}").add_parser(commands)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
