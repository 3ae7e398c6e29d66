"""`sgl serve`: a model over HTTP, for programs of this language and for clients of OpenAI's API."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import threading
from dataclasses import Field, fields
from typing import Any

from sgl.runtime.server.server_settings import ServerSettings

from .model_arguments import add_model_arguments, model_and_options

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
SERVER = "sgl.runtime.server.server_listener"  # a second of imports
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
    groups: dict[str, Any] = {"": parser}
    for each in fields(ServerSettings):
        title, name = each.metadata["group"], each.metadata["flag"] or f"--{each.name.replace('_', '-')}"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        if each.metadata["value"] is not None:
            groups[title].add_argument(name, dest=each.name, **_argument(each))
    parser.set_defaults(command=run)


def _argument(setting: Field[Any]) -> dict[str, Any]:
    """What argparse needs to know of a setting, by its type. Without its flag a value is None, a switch its default."""
    doc, kind, default = setting.metadata["doc"], str(setting.type).removesuffix(" | None"), setting.default
    if kind == "bool":
        action = "store_true" if default is False else argparse.BooleanOptionalAction
        return {"help": doc, "action": action, "default": default}
    about: dict[str, Any] = {"metavar": setting.metadata["value"], "type": {"int": int, "float": float}.get(kind, str)}
    if "[" in kind:
        about["action"], doc = "append", f"{doc}; may be repeated"
    shown = setting.metadata["variable"] or (default if about["type"] is int or kind == "str" else None)
    return about | {"help": f"{doc} (default: {shown})" if shown else doc}


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
    from sgl.runtime.server import server_socket

    model, engine_options = model_and_options(options.words)
    gpu = is_gpu_device(str(engine_options.get("device", "auto")))
    engine_options.setdefault("process", gpu)
    engine_options.setdefault("grammar_process", None if gpu else True)
    settings = _settings(options, _folder(engine_options))
    with server_socket.bind(settings) as listener:
        if engine_options["process"]:  # which loads the model, while this one has nothing to do
            threading.Thread(target=importlib.import_module, args=(SERVER,), name="sgl-imports", daemon=True).start()
        with Engine(model, **engine_options) as engine:
            if not settings.api_keys and not settings.local:
                print("sgl serve: anyone who reaches this host can use it; give --api-key", file=sys.stderr)
            if settings.log_content:
                print(f"sgl serve: prompts and answers are written to {settings.log_requests}", file=sys.stderr)
            importlib.import_module(SERVER).serve(engine, settings, listener, _tell_ready)
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


def _settings(options: argparse.Namespace, adapters: str | None = None) -> ServerSettings:
    given = vars(options) | {"adapters": adapters, "allowed_adapters": _allowed(options.allowed_adapters or [])}
    return ServerSettings(**{each.name: _given(each, given[each.name]) for each in fields(ServerSettings)})


def _given(setting: Field[Any], value: Any) -> Any:
    """A setting: what its flag says, else its variable of the environment, else the default."""
    if value is None and (found := os.environ.get(setting.metadata["variable"] or "")):
        value = [found] if "[" in str(setting.type) else found
    if isinstance(value, list):
        return frozenset(value) if setting.default == frozenset() else tuple(value)
    return setting.default if value is None else value


def _refuse(message: str) -> int:
    print(f"sgl serve: {message}", file=sys.stderr)
    return 1
