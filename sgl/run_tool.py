"""`sgl run script.py`: a program written for sglang (or for sgl) runs here, unchanged."""

from __future__ import annotations

import argparse
import io
import os
import runpy
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

INTERRUPTED = 130  # as shells report a program that Ctrl-C ended
_OURS = (__file__, runpy.__file__, "<frozen runpy>")  # files whose frames come before the program's own

_ABOUT = """\
Runs a program with `import sglang` meaning sgl, and the embedded engine as its default backend.
RuntimeEndpoint(url), sgl.Runtime(...) and servers that the program launches are the embedded engine too,
unless a server answers at the URL. With --backend, they are all the server at that URL.
"""


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "run",
        help="run a program that was written for sglang, unchanged",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="sgl run [--backend URL | --model PATH] [--force] [-m] PROGRAM [ARGUMENT ...]",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--backend", metavar="URL", help="a server that speaks sglang's protocol")
    where.add_argument(
        "--model",
        metavar="PATH",
        help="the model to load, whatever the program names (default: SGL_MODEL, else the bundled one)",
    )
    parser.add_argument("--force", action="store_true", help="also where a real sglang is installed")
    parser.add_argument("-m", dest="is_module", action="store_true", help="PROGRAM is the name of a module")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """The exit status of the program; 2 where it cannot be started."""
    if not options.is_module and not Path(options.program).exists():
        print(
            f"sgl run: no file {options.program!r}; for a module, say -m {options.program}", file=sys.stderr
        )
        return 2
    _arrange_arguments(options)
    try:
        _prepare(options)
    except Exception as error:
        print(f"sgl run: {error}", file=sys.stderr)
        return 2
    return _run_program(options)


def _arrange_arguments(options: argparse.Namespace) -> None:
    """sys.argv and sys.path as `python` would have them."""
    sys.argv = [options.program, *options.arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if options.is_module else str(Path(options.program).resolve().parent)


def _prepare(options: argparse.Namespace) -> None:
    """The alias, and the default backend. Raises what keeps them from being there."""
    from sgl.lang import compat
    from sgl.lang.compat.settings import configure
    from sgl.lang.config import set_default_backend

    compat.install(force=options.force)
    configure(local=options.backend is None, url=options.backend, model=options.model)
    if options.backend is not None:
        from sgl.lang.backends.native.endpoint import RuntimeEndpoint

        set_default_backend(RuntimeEndpoint(options.backend))
    elif options.model or os.environ.get("SGL_MODEL"):
        from sgl.lang.compat.local import LocalBackend
        from sgl.lang.compat.server_args import ServerArgs

        set_default_backend(LocalBackend(ServerArgs(), "inproc://default"))


def _run_program(options: argparse.Namespace) -> int:
    try:
        if options.is_module:
            runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        else:
            _run_script(os.path.abspath(options.program))
    except KeyboardInterrupt:
        print("sgl run: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        traceback.print_exception(type(error), error, _of_the_program(error.__traceback__))
        return 1
    return 0


def _run_script(path: str) -> None:
    """As `python path`: the module `__main__` stays, with an absolute `__file__`; sys.argv is left alone."""
    if os.path.isdir(path):
        runpy.run_path(path, run_name="__main__")
        return
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    exec(code, vars(main))


def _of_the_program(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's own first line on."""
    while frames is not None and frames.tb_frame.f_code.co_filename in _OURS:
        frames = frames.tb_next
    return frames
