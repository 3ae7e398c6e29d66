"""The command line: each command has a separate file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. Where the reader of its output is gone, it ends without a word."""
    from sgl.commands.run_tool import OUTPUT_CLOSED, output_closed

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
    options = _parser().parse_args(words)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def _parser() -> argparse.ArgumentParser:
    from sgl import __version__
    from sgl.commands import (
        chat_tool,
        check_tool,
        doctor_tool,
        grammar_tool,
        grammar_verify_tool,
        models_tool,
        push_tool,
        quantize_tool,
        run_tool,
        serve_tool,
        shard_tool,
    )

    parser = argparse.ArgumentParser(
        prog="sgl", description="A language for structured generation with its own runtime."
    )
    parser.add_argument("--version", action="version", version=f"sgl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for tool in (
        doctor_tool,
        models_tool,
        grammar_tool,
        grammar_verify_tool,
        check_tool,
        quantize_tool,
        shard_tool,
        push_tool,
        run_tool,
        serve_tool,
        chat_tool,
    ):
        tool.add_parser(commands)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
