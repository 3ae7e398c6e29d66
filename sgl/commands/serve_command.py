"""`sgl serve`: a model over HTTP, for programs of this language and for clients of OpenAI's API."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from dataclasses import fields
from typing import Any

from .model_arguments import add_model_arguments, model_and_options

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
SLOTS = 8  # of adapters on a GPU, where adapters=FOLDER says nothing else
INTERRUPTED = 130  # as shells report a program that Ctrl-C ended

_ABOUT = """\
Loads a model and serves POST /generate (for programs with sgl.RuntimeEndpoint(url)), /v1/completions,
/v1/chat/completions, /v1/responses, /v1/embeddings, Anthropic's /v1/messages and Ollama's /api/chat.
Ctrl-C or SIGTERM stops the server; running requests get up to 10 seconds to finish.

  sgl serve                                          the bundled model at http://127.0.0.1:30000
  sgl serve path/to/model --port 8000 kv_memory=2GB dtype=bfloat16
  sgl serve path/to/model adapters=path/to/folder    each folder in it is an adapter, which clients name as a model

On a GPU the engine runs in a separate process; process=false keeps it in the server's process.
"""


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("serve", help="serve a model over HTTP", description=_ABOUT)
    add_model_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=30000, help="port to listen on; 0 takes a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="require this key in requests; may be repeated (default: SGL_API_KEY)",
    )
    parser.add_argument(
        "--admin-key",
        metavar="KEY",
        default=os.environ.get("SGL_ADMIN_KEY"),
        help="require this key for /adapters/load, /adapters/unload, /adapters and /flush_cache (default: "
        "SGL_ADMIN_KEY)",
    )
    parser.add_argument(
        "--allow-adapters",
        action="append",
        default=[],
        metavar="KEY=NAMES",
        help="the adapters that an API key may name, separated by commas; may be repeated (default: all)",
    )
    parser.add_argument(
        "--served-name",
        action="append",
        metavar="NAME",
        help="the model's name in answers; may be repeated (default: the directory's name)",
    )
    parser.add_argument(
        "--tool-format",
        metavar="NAME",
        help="format of the model's tool calls, such as hermes (default: by the model's name)",
    )
    parser.add_argument(
        "--reasoning-format",
        metavar="NAME",
        help="format of the model's reasoning, such as qwen3 (default: by the model's name)",
    )
    _add_limits(parser)
    _add_sharing(parser)
    _add_watching(parser)
    parser.set_defaults(command=run)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-body-bytes",
        type=int,
        default=10_000_000,
        metavar="N",
        help="largest request body (default: %(default)s)",
    )
    limits.add_argument(
        "--max-open-bytes",
        type=int,
        default=64_000_000,
        metavar="N",
        help="total size of request bodies being received (default: %(default)s)",
    )
    limits.add_argument("--max-prompt-tokens", type=int, metavar="N", help="most tokens of a prompt")
    limits.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="most tokens of an answer, and the default; requests for more are refused",
    )
    limits.add_argument(
        "--max-choices", type=int, default=64, metavar="N", help="most samples of one prompt (default: %(default)s)"
    )
    limits.add_argument("--request-timeout", type=float, metavar="SECONDS", help="abort requests after this time")


def _add_sharing(parser: argparse.ArgumentParser) -> None:
    sharing = parser.add_argument_group("sharing")
    sharing.add_argument(
        "--max-queue",
        type=int,
        metavar="N",
        help="most samples running or waiting; further requests get status 429 (default: 4 times max_running)",
    )
    sharing.add_argument(
        "--tenant-share",
        type=float,
        metavar="SHARE",
        help="largest share of that queue for one API key (default: 0.5 with several keys)",
    )
    sharing.add_argument(
        "--isolate",
        action=argparse.BooleanOptionalAction,
        help="share cached prefixes only within an API key (default: with several keys)",
    )
    sharing.add_argument(
        "--store-bytes",
        type=int,
        default=64_000_000,
        metavar="N",
        help="memory for stored answers of /v1/responses (default: %(default)s)",
    )
    sharing.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="allow browser pages of this origin to use the server, * for all; may be repeated (default: none)",
    )
    sharing.add_argument("--allow-priority", action="store_true", help="let requests set their priority")


def _add_watching(parser: argparse.ArgumentParser) -> None:
    watching = parser.add_argument_group("watching")
    watching.add_argument(
        "--page", action=argparse.BooleanOptionalAction, default=True, help="serve the status page at /"
    )
    watching.add_argument("--metrics", action=argparse.BooleanOptionalAction, default=True, help="serve GET /metrics")
    watching.add_argument("--open-metrics", action="store_true", help="serve /metrics without an API key")
    watching.add_argument("--log-requests", metavar="FILE", help="log one JSON line per request; - is standard output")
    watching.add_argument("--log-content", action="store_true", help="include prompts and answers in the log")
    watching.add_argument(
        "--trace", action="store_true", help="emit OpenTelemetry spans; configure them with the OTEL_ variables"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it; returns the exit status."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _refuse(f"{' and '.join(missing)} must be installed for this: pip install 'sgl[server]'")
    from sgl.runtime.errors import RuntimeFailure

    try:
        _serve(options)
    except (RuntimeFailure, OSError) as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        print("sgl serve: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _serve(options: argparse.Namespace) -> None:
    from sgl.runtime.engine import Engine
    from sgl.runtime.executor.device_choice import is_gpu_device
    from sgl.runtime.server import server_listener

    model, engine_options = model_and_options(options.words)
    gpu = is_gpu_device(str(engine_options.get("device", "auto")))
    engine_options.setdefault("process", gpu)
    engine_options.setdefault("grammar_process", None if gpu else True)
    settings = _settings(options, _folder(engine_options))
    with server_listener.bind(settings) as listener, Engine(model, **engine_options) as engine:
        if not settings.api_keys and not settings.local:
            print("sgl serve: anyone who reaches this host can use it; give --api-key", file=sys.stderr)
        if settings.log_content:
            print(f"sgl serve: prompts and answers are written to {settings.log_requests}", file=sys.stderr)
        server_listener.serve(engine, settings, listener, _tell_ready)
    _print("ended")


def _tell_ready(url: str) -> None:
    _print(f"ready at {url}")


def _print(text: str) -> None:
    """Print to the terminal that started the server, unless its reader has gone."""
    try:
        print(f"sgl serve: {text}", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _folder(engine_options: dict[str, Any]) -> str | None:
    """Of `adapters=FOLDER`: where they are loaded from when clients ask for them. Named ones are the engine's own."""
    from sgl.runtime.executor.device_choice import is_gpu_device

    if not isinstance(engine_options.get("adapters"), str):
        return None
    if is_gpu_device(str(engine_options.get("device", "auto"))):
        engine_options.setdefault("adapter_slots", SLOTS)
    return str(engine_options.pop("adapters"))


def _allowed(words: list[str]) -> dict[str, tuple[str, ...]]:
    pairs = (word.rpartition("=") for word in words)
    return {key: tuple(filter(None, names.split(","))) for key, _, names in pairs}


def _settings(options: argparse.Namespace, adapters: str | None = None) -> Any:
    from sgl.runtime.server.server_settings import ServerSettings

    from_environment = [key] if (key := os.environ.get("SGL_API_KEY")) else []
    given = vars(options) | {
        "api_keys": frozenset(options.api_key or from_environment),
        "served_name": tuple(options.served_name) if options.served_name else None,
        "cors_origins": tuple(options.cors_origin),
        "adapters": adapters,
        "allowed_adapters": _allowed(options.allow_adapters),
    }
    return ServerSettings(**{field.name: given[field.name] for field in fields(ServerSettings)})


def _refuse(message: str) -> int:
    print(f"sgl serve: {message}", file=sys.stderr)
    return 1
