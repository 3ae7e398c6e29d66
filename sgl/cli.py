"""The command line: `sgl doctor` tells what this machine can run programs with; the other commands have files of their own."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic", "httpx")
OPTIONAL_PACKAGES = ("triton", "flashinfer-python", "fastapi", "uvicorn", "openai", "anthropic", "litellm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def doctor() -> int:
    """Print what the parts of sgl find here. Status 1 if programs cannot run."""
    healthy = True
    for name, check in _CHECKS.items():
        try:
            lines = list(check())
        except Exception as error:
            healthy = False
            lines = [f"PROBLEM: {type(error).__name__}: {error}"]
        for line in lines:
            print(f"{name:<10} {line}")
    return 0 if healthy else 1


def _parser() -> argparse.ArgumentParser:
    from sgl import __version__, chat_tool, check_tool, grammar_tool, run_tool, serve_tool

    parser = argparse.ArgumentParser(
        prog="sgl", description="A language for structured generation with its own runtime."
    )
    parser.add_argument("--version", action="version", version=f"sgl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "doctor", help="tell what this machine can run programs with, and what is missing"
    )
    check.set_defaults(command=lambda options: doctor())
    grammar_tool.add_parser(commands)
    check_tool.add_parser(commands)
    run_tool.add_parser(commands)
    serve_tool.add_parser(commands)
    chat_tool.add_parser(commands)
    return parser


def _python() -> Iterator[str]:
    from sgl import __version__

    yield f"sgl {__version__} at {Path(__file__).parent}"
    yield f"Python {platform.python_version()} on {platform.platform()}"


def _packages() -> Iterator[str]:
    for name in PACKAGES:
        yield f"{name} {importlib.metadata.version(name)}"
    for name in OPTIONAL_PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)} (optional)"
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} is not installed (optional)"


def _device() -> Iterator[str]:
    from sgl.runtime.executor.device import choose_device

    yield from choose_device().reasons


def _grammars() -> Iterator[str]:
    from sgl.grammars import core_name

    slow = "the Python core is in use: correct but slower; with a C compiler at hand, reinstall sgl"
    yield "the C core is in use" if core_name() == "C" else slow


def _model() -> Iterator[str]:
    from sgl.runtime.engine import NANO

    weights = sorted(NANO.glob("*.safetensors"))
    if not weights or not (NANO / "config.json").is_file():
        raise FileNotFoundError(
            f"the bundled model is not in {NANO}; give a model: sgl.Engine('path/to/model')"
        )
    size = sum(file.stat().st_size for file in weights)
    yield f"the bundled model is in {NANO} ({size / 1e6:.1f} MB of weights)"


_CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    "python": _python,
    "packages": _packages,
    "device": _device,
    "grammars": _grammars,
    "model": _model,
}


if __name__ == "__main__":
    raise SystemExit(main())
