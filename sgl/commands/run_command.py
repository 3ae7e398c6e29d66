"""`sgl run script.py`: a program written for sglang (or for sgl) runs here, unchanged."""

from __future__ import annotations

import argparse
import io
import os
import runpy
import select
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from sgl.tracebacks import print_brief, user_frames

INTERRUPTED = 130  # as shells report a program that Ctrl-C ended
GRACE_SECONDS = 1.0  # what threads have to end in after Ctrl-C
OUTPUT_CLOSED = 141  # as shells report a program whose output is no longer read: `| head`
STANDARD_INPUT = "-"
FULL = "--full-traceback"

_ABOUT = """\
Runs a program in which `import sglang` imports sgl, with the embedded engine as the default backend.
RuntimeEndpoint(url), sgl.Runtime(...) and servers that the program launches also use the embedded engine,
unless a server answers at the URL. With --backend, all of them use the server at that URL.
"""


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "run",
        help="run a program written for sglang, unchanged",
        description=_ABOUT,
        usage=f"sgl run [--backend URL | --model PATH] [--force] [{FULL}] [-m] PROGRAM [ARGUMENT ...]",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--backend", metavar="URL", help="a server that speaks sglang's protocol")
    where.add_argument(
        "--model",
        metavar="PATH",
        help="the model to load, regardless of the program's (default: SGL_MODEL, or the bundled one)",
    )
    parser.add_argument("--force", action="store_true", help="use sgl even if a real sglang is installed")
    parser.add_argument("-m", dest="is_module", action="store_true", help="PROGRAM is a module name")
    parser.add_argument(FULL, action="store_true", help="include sgl's own lines in tracebacks")
    parser.add_argument("program", metavar="PROGRAM", help="a file, a folder with __main__.py, or - for stdin")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="arguments of the program"
    )
    rest.required = False
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """The exit status of the program; 2 where it cannot be started."""
    if (complaint := _cannot_start(options)) is not None:
        print(f"sgl run: {complaint}", file=sys.stderr)
        return 2
    _arrange_arguments(options)
    try:
        _prepare(options)
    except Exception as error:
        print(f"sgl run: {error}", file=sys.stderr)
        return 2
    return _run_program(options)


def _cannot_start(options: argparse.Namespace) -> str | None:
    """Why there is nothing to run, None if there is."""
    program, path = options.program, Path(options.program)
    if options.is_module or program == STANDARD_INPUT:
        return None
    if path.is_dir() and not (path / "__main__.py").exists():
        return f"the folder {program!r} has no __main__.py; give one of its files"
    if path.exists():
        return None
    hint = f" in {os.getcwd()}" if path.suffix else f"; for a module, say -m {program}"
    return f"no file {program!r}{hint}"


def _arrange_arguments(options: argparse.Namespace) -> None:
    """sys.argv and sys.path as `python` would have them."""
    sys.argv = [options.program, *options.arguments]
    if not sys.flags.safe_path:
        script = Path(options.program).resolve()
        here = options.is_module or options.program == STANDARD_INPUT
        sys.path[0] = os.getcwd() if here else str(script.parent)


def _prepare(options: argparse.Namespace) -> None:
    """The alias, and the default backend. Raises what keeps them from being there."""
    from sgl.lang import compat
    from sgl.lang.backends.default_backend import set_default_backend
    from sgl.lang.compat.sglang_alias_settings import configure

    compat.install(force=options.force)
    configure(local=options.backend is None, url=options.backend, model=options.model)
    if options.backend is not None:
        from sgl.lang.backends.native.runtime_endpoint import RuntimeEndpoint

        set_default_backend(RuntimeEndpoint(options.backend))
    elif options.model or os.environ.get("SGL_MODEL"):
        from sgl.lang.compat.local_backend import LocalBackend
        from sgl.lang.compat.server_args import ServerArgs

        set_default_backend(LocalBackend(ServerArgs(), "inproc://default"))


def _run_program(options: argparse.Namespace) -> int:
    try:
        if options.is_module:
            runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        else:
            _run_script(options.program)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("sgl run: interrupted", file=sys.stderr)
        _leave_soon()
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and output_closed():
            return OUTPUT_CLOSED
        _tell(error, options.full_traceback)
        return 1
    return 0


def _leave_soon() -> None:
    """Make the process end, also while threads of the program run (a body that sleeps or computes)."""

    def leave() -> None:
        sys.stderr.flush()
        os._exit(INTERRUPTED)

    timer = threading.Timer(GRACE_SECONDS, leave)
    timer.daemon = True
    timer.start()


def output_closed() -> bool:
    """Whether stdout is closed at its other end; if so, what is still to be written is thrown away."""
    try:
        stdout = sys.stdout.fileno()
        reading_end = select.poll()
    except (AttributeError, OSError, ValueError):
        return False
    reading_end.register(stdout, 0)
    if not any(event & select.POLLERR for _, event in reading_end.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return True


def _tell(error: Exception, full: bool) -> None:
    if full:
        traceback.print_exception(error)
    elif isinstance(error, ImportError) and not user_frames(error):
        print(f"sgl run: {error}", file=sys.stderr)
    else:
        print_brief(error, f"sgl run {FULL}")


def _run_script(program: str) -> None:
    """As `python program`: the module `__main__` stays, with an absolute `__file__`; sys.argv is left alone."""
    if os.path.isdir(program):
        runpy.run_path(program, run_name="__main__")
        return
    main = ModuleType("__main__")
    if program == STANDARD_INPUT:
        code = compile(sys.stdin.read(), "<stdin>", "exec", dont_inherit=True)
    else:
        main.__file__ = os.path.abspath(program)
        with io.open_code(main.__file__) as file:
            code = compile(file.read(), main.__file__, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, vars(main))
